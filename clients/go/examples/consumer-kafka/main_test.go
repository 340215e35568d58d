package main

import (
	"errors"
	"strings"
	"syscall"
	"testing"

	"github.com/postrider/postrider/clients/go/examples/internal/testbroker"
	"github.com/postrider/postrider/clients/go/examples/internal/testprogram"
	"github.com/postrider/postrider/clients/go/internal/mongotest"
	"github.com/twmb/franz-go/pkg/kgo"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
)

func TestMain(m *testing.M) { testprogram.Main(m, main) }

// scene is a topic, a database and the program.
type scene struct {
	t     *testing.T
	topic *testbroker.Topic
	db    *mongo.Database
}

func newScene(t *testing.T, partitions int32) *scene {
	t.Helper()
	client := mongotest.Client(t)
	return &scene{t, testbroker.NewTopic(t, partitions), mongotest.Database(t, client)}
}

func (s *scene) group() string { return s.topic.Name }

func (s *scene) start() *testprogram.Program {
	s.t.Helper()
	return s.startAt(mongotest.URI(s.t, s.db))
}

func (s *scene) startAt(uri string) *testprogram.Program {
	s.t.Helper()
	return testprogram.Start(s.t, nil, "MONGODB_URI="+uri,
		"KAFKA_BROKERS="+mongotest.Env(s.t, "POSTRIDER_TEST_KAFKA_BROKERS"), "TOPIC="+s.topic.Name, "GROUP="+s.group(),
		"INSTANCE=one")
}

func TestConsumerAppliesEachMessageOnceWhenKafkaRepeats(t *testing.T) {
	t.Parallel()
	s := newScene(t, 2)
	messages := testbroker.Messages(12, "a", "b", "c")
	s.topic.Publish(append(messages, messages...)...)

	consumer := s.start()

	testbroker.AwaitEffects(t, s.db.Collection("received"), messages)
	mongotest.Eventually(t, "all repetitions", func() bool { return strings.Count(consumer.Output(), " again\n") == 12 })
	mongotest.Eventually(t, "all offsets", func() bool { return s.topic.Committed(s.group()) == 24 })
	consumer.Stop(syscall.SIGTERM)
}

func TestConsumerAppliesEachMessageOnceWhenKilledBetweenCommitAndOffset(t *testing.T) {
	t.Parallel()
	server := mongotest.ReplicaSet(t)
	client := mongotest.Connect(t, server)
	s := &scene{t, testbroker.NewTopic(t, 1), mongotest.Database(t, client)}
	messages := testbroker.Messages(4, "a", "b")
	s.topic.Publish(messages...)
	// MongoDB commits, and answers with a failed write concern: the driver repeats the commit for two minutes.
	mongotest.FailCommands(t, client, "alwaysOn", bson.D{
		{Key: "failCommands", Value: bson.A{"commitTransaction"}}, {Key: "appName", Value: "held"},
		{Key: "writeConcernError", Value: bson.D{{Key: "code", Value: 64}, {Key: "errmsg", Value: "held by the test"}}},
	})
	address, query, _ := strings.Cut(server, "?")
	uri := address + s.db.Name() + "?" + query
	received := s.db.Collection("received")
	consumer := s.startAt(uri + "&appName=held")
	mongotest.Eventually(t, "a commit", func() bool { return testbroker.CountEffects(t, received) == 1 })
	consumer.Kill()
	if offsets := s.topic.Committed(s.group()); offsets != 0 {
		t.Fatalf("offset %d is committed, so the kill was not where it should be", offsets)
	}

	consumer = s.startAt(uri)

	testbroker.AwaitEffects(t, received, messages)
	mongotest.Eventually(t, "the offsets", func() bool { return s.topic.Committed(s.group()) == 4 })
	if n := strings.Count(consumer.Output(), " again\n"); n != 1 {
		t.Errorf("%d messages were repeated, want 1", n)
	}
}

func TestConsumerCommitsTheOffsetOfEachMessageWhenManyHaveCome(t *testing.T) {
	t.Parallel()
	s := newScene(t, 1)
	received := s.db.Collection("received")
	unlock := testbroker.Lock(t, received, "locked")
	poison := testbroker.Message{ID: "poison", Key: "a", Body: "{"}
	messages := append(testbroker.Messages(9, "a", "b", "c"), testbroker.Message{ID: "m", Key: "locked", Body: `{"n":7}`})
	s.topic.Publish(append([]testbroker.Message{poison}, messages...)...)
	conflicts := testbroker.Conflicts(t, s.db)
	consumer := s.start()
	// All have come at once, and the last one waits for the lock.
	mongotest.Eventually(t, "a conflict", func() bool { return testbroker.Conflicts(t, s.db) > conflicts })
	consumer.Kill()
	if offsets := s.topic.Committed(s.group()); offsets != 10 {
		t.Errorf("%d offsets are committed, want those of the 10 before the lock", offsets)
	}
	unlock()
	mongotest.EndTransactions(t, s.db)

	consumer = s.start()

	testbroker.AwaitEffects(t, received, messages)
	mongotest.Eventually(t, "the offsets", func() bool { return s.topic.Committed(s.group()) == 11 })
	if consumer.Prints(" again\n") || consumer.Prints("poison") {
		t.Errorf("a message was repeated:\n%s", consumer.Output())
	}
}

func TestConsumerContinuesAtItsOffsetWhenStopped(t *testing.T) {
	t.Parallel()
	s := newScene(t, 2)
	messages := testbroker.Messages(10, "a", "b", "c")
	s.topic.Publish(messages[:6]...)
	consumer := s.start()
	mongotest.Eventually(t, "the first offsets", func() bool { return s.topic.Committed(s.group()) == 6 })
	consumer.Stop(syscall.SIGTERM)
	s.topic.Publish(messages[6:]...)

	consumer = s.start()

	testbroker.AwaitEffects(t, s.db.Collection("received"), messages)
	if consumer.Prints(" again\n") {
		t.Error("a message was repeated after an orderly stop")
	}
}

func TestConsumerProducesPoisonMessagesToTheDeadTopic(t *testing.T) {
	t.Parallel()
	s := newScene(t, 1)
	received := s.db.Collection("received")
	if _, err := received.InsertOne(t.Context(), bson.M{"_id": "stuck", "n": "not an array"}); err != nil {
		t.Fatal(err)
	}
	s.topic.Publish(
		testbroker.Message{ID: "not-json", Key: "a", Body: "{"},
		testbroker.Message{ID: "effect", Key: "stuck", Body: `{"n":1}`},
		testbroker.Message{Key: "without-id", Body: `{"n":1}`},
		testbroker.Message{ID: "behind", Key: "a", Body: `{"n":2}`},
	)

	consumer := s.start()

	for _, want := range []struct{ id, failure string }{
		{"not-json", "unexpected end of JSON input"}, {"effect", "must be an array"}, {"", "no message-id"},
	} {
		letter := s.topic.DeadLetter()
		if letter["message-id"] != want.id || letter["message-type"] != "OrderChanged" ||
			!strings.Contains(letter["failure"], want.failure) {
			t.Errorf("headers of the dead letter = %v, want those of %q and the failure %q", letter, want.id, want.failure)
		}
	}
	mongotest.Eventually(t, "the effect of the message behind", func() bool {
		n, err := received.CountDocuments(t.Context(), bson.D{{Key: "_id", Value: "a"}, {Key: "n", Value: bson.A{2}}})
		return n == 1 && err == nil
	})
	for _, id := range []string{"not-json", "effect"} {
		if n := strings.Count(consumer.Output(), " "+id+" "); n != maxAttempts {
			t.Errorf("%d attempts of %s, want %d", n, id, maxAttempts)
		}
	}
	mongotest.Eventually(t, "the end of the counts", func() bool {
		n, err := s.db.Collection("inbox_failures").CountDocuments(t.Context(), bson.D{})
		return n == 0 && err == nil
	})
}

func TestConsumerProducesIncompleteMessagesToTheDeadTopic(t *testing.T) {
	t.Parallel()
	s := newScene(t, 1)
	withID := func(id []byte) []kgo.RecordHeader { return []kgo.RecordHeader{{Key: "message-id", Value: id}} }
	body := []byte(`{"n":1}`)
	s.topic.PublishRecords(
		&kgo.Record{}, // a tombstone of another program
		&kgo.Record{Key: []byte("a"), Value: body, Headers: withID(nil)},
		&kgo.Record{Key: []byte("a"), Value: body, Headers: withID([]byte{})},
		&kgo.Record{Key: []byte("a"), Headers: withID([]byte("tombstone"))},
		&kgo.Record{Value: body, Headers: withID([]byte("no-key"))},
	)
	messages := testbroker.Messages(1, "behind")
	s.topic.Publish(messages...)

	s.start()

	for _, want := range []string{
		"no message-id", "no message-id", "no message-id", "unexpected end of JSON input", "no key",
	} {
		if letter := s.topic.DeadLetter(); !strings.Contains(letter["failure"], want) {
			t.Errorf("headers of the dead letter = %v, want the failure %q", letter, want)
		}
	}
	testbroker.AwaitEffects(t, s.db.Collection("received"), messages)
	mongotest.Eventually(t, "all offsets", func() bool { return s.topic.Committed(s.group()) == 6 })
}

// The process ends while it applies the message: here it waits for a lock then, and is killed.
func TestConsumerProducesAMessageThatEndsTheProcessToTheDeadTopic(t *testing.T) {
	t.Parallel()
	s := newScene(t, 1)
	received := s.db.Collection("received")
	s.topic.Publish(
		testbroker.Message{ID: "before", Key: "a", Body: `{"n":1}`},
		testbroker.Message{ID: "poison", Key: "held", Body: `{"n":2}`},
		testbroker.Message{ID: "behind", Key: "a", Body: `{"n":3}`},
	)
	unlock := testbroker.Lock(t, received, "held")
	// The first process applies the one before: those behind it are not counted in this process.
	for counted := range maxAttempts + 1 {
		conflicts := testbroker.Conflicts(t, s.db)
		consumer := s.start()
		mongotest.Eventually(t, "a conflict", func() bool { return testbroker.Conflicts(t, s.db) > conflicts })
		if n := s.attempts("poison"); n != counted {
			t.Fatalf("%d attempts, want %d", n, counted)
		}
		consumer.Kill()
	}
	unlock()

	s.start()

	if letter := s.topic.DeadLetter(); letter["message-id"] != "poison" || letter["failure"] != "it ended the process" {
		t.Errorf("dead letter %v, want poison", letter)
	}
	testbroker.AwaitEffects(t, received, []testbroker.Message{{Key: "a", Body: `{"n":1}`}, {Key: "a", Body: `{"n":3}`}})
	mongotest.Eventually(t, "the end of the counts", func() bool {
		n, err := s.db.Collection("inbox_failures").CountDocuments(t.Context(), bson.D{})
		return n == 0 && err == nil
	})
}

func (s *scene) attempts(id string) int {
	s.t.Helper()
	var counted struct{ Attempts int }
	err := s.db.Collection("inbox_failures").FindOne(s.t.Context(), bson.M{"_id.message": id}).Decode(&counted)
	if err != nil && !errors.Is(err, mongo.ErrNoDocuments) {
		s.t.Fatal(err)
	}
	return counted.Attempts
}
