package testbroker

import (
	"context"
	"crypto/rand"
	"strings"
	"testing"

	"github.com/postrider/postrider/clients/go/internal/mongotest"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

// Topic is a topic with a topic for its dead letters.
type Topic struct {
	Name        string
	t           testing.TB
	kafka, dead *kgo.Client
}

// NewTopic makes a topic with this number of partitions, and deletes it at the end of the test.
func NewTopic(t testing.TB, partitions int32) *Topic {
	t.Helper()
	name := "go-" + rand.Text()[:12]
	dead := name + ".dead"
	kafka := newClient(t)
	admin := kadm.NewClient(kafka)
	made, err := admin.CreateTopics(t.Context(), partitions, 1, nil, name, dead)
	if err == nil {
		err = made.Error()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _, err := admin.DeleteTopics(context.Background(), name, dead); err != nil {
			t.Error(err)
		}
	})
	// Made when the topic is there: a client that has not found one asks again some time later only.
	letters := newClient(t, kgo.ConsumeTopics(dead), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	return &Topic{name, t, kafka, letters}
}

func newClient(t testing.TB, options ...kgo.Opt) *kgo.Client {
	t.Helper()
	brokers := strings.Split(mongotest.Env(t, "POSTRIDER_TEST_KAFKA_BROKERS"), ",")
	client, err := kgo.NewClient(append(options, kgo.SeedBrokers(brokers...))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	return client
}

// Publish sends messages, and waits for their confirms.
func (topic *Topic) Publish(messages ...Message) {
	topic.t.Helper()
	var records []*kgo.Record
	for _, message := range messages {
		records = append(records, &kgo.Record{
			Key: []byte(message.Key), Value: []byte(message.Body),
			Headers: []kgo.RecordHeader{
				{Key: "message-id", Value: []byte(message.ID)}, {Key: "message-type", Value: []byte("OrderChanged")},
			},
		})
	}
	topic.PublishRecords(records...)
}

// PublishRecords sends records as they are, and waits for their confirms.
func (topic *Topic) PublishRecords(records ...*kgo.Record) {
	topic.t.Helper()
	for _, record := range records {
		record.Topic = topic.Name
	}
	if err := topic.kafka.ProduceSync(topic.t.Context(), records...).FirstErr(); err != nil {
		topic.t.Fatal(err)
	}
}

// DeadLetter waits for a dead letter, and returns its headers.
func (topic *Topic) DeadLetter() map[string]string {
	topic.t.Helper()
	ctx, cancel := context.WithTimeout(topic.t.Context(), mongotest.WaitLimit)
	defer cancel()
	fetches := topic.dead.PollRecords(ctx, 1)
	if err := fetches.Err(); err != nil {
		topic.t.Fatalf("no dead letter: %v", err)
	}
	headers := make(map[string]string)
	for _, header := range fetches.Records()[0].Headers {
		headers[header.Key] = string(header.Value)
	}
	return headers
}

// Committed returns the sum of the offsets that a group has committed.
func (topic *Topic) Committed(group string) int64 {
	topic.t.Helper()
	offsets, err := kadm.NewClient(topic.kafka).FetchOffsets(topic.t.Context(), group)
	if err != nil {
		topic.t.Fatal(err)
	}
	var sum int64
	offsets.Each(func(offset kadm.OffsetResponse) {
		if offset.Topic == topic.Name {
			sum += max(offset.At, 0)
		}
	})
	return sum
}
