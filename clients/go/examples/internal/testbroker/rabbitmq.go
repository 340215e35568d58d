// Package testbroker gives tests queues and topics of their own, with messages as Postrider sends them.
package testbroker

import (
	"crypto/rand"
	"fmt"
	"testing"
	"time"

	"github.com/postrider/postrider/clients/go/internal/mongotest"
	amqp "github.com/rabbitmq/amqp091-go"
)

// Message is one that Postrider would send.
type Message struct {
	ID, Key, Body string
	Headers       map[string]any
}

// Messages returns n messages of the keys in turns, numbered from 0: the payload of a message has its number as n.
func Messages(n int, keys ...string) []Message {
	var messages []Message
	for i := range n {
		key := keys[i%len(keys)]
		body := fmt.Sprintf(`{"order":%q,"n":%d}`, key, i)
		messages = append(messages, Message{ID: fmt.Sprintf("message-%d", i), Key: key, Body: body})
	}
	return messages
}

// Queue is a queue with a queue for its dead letters.
type Queue struct {
	Name    string
	t       testing.TB
	channel *amqp.Channel
	dead    string
}

// NewQueue declares a queue of this type (classic or quorum), and deletes it at the end of the test.
func NewQueue(t testing.TB, queueType string) *Queue {
	t.Helper()
	connection, err := amqp.Dial(mongotest.Env(t, "POSTRIDER_TEST_AMQP_URI"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = connection.Close() })
	channel, err := connection.Channel()
	if err != nil {
		t.Fatal(err)
	}
	name := "go-" + rand.Text()[:12]
	q := &Queue{Name: name, t: t, channel: channel, dead: name + "-dead"}
	q.declare(q.dead, amqp.Table{})
	q.declare(q.Name, amqp.Table{
		"x-queue-type": queueType, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": q.dead,
	})
	return q
}

func (q *Queue) declare(name string, arguments amqp.Table) {
	q.t.Helper()
	if _, err := q.channel.QueueDeclare(name, true, false, false, false, arguments); err != nil {
		q.t.Fatal(err)
	}
	q.t.Cleanup(func() { _, _ = q.channel.QueueDelete(name, false, false, false) })
}

// Publish sends messages, and waits for their confirms.
func (q *Queue) Publish(messages ...Message) {
	q.t.Helper()
	if err := q.channel.Confirm(false); err != nil {
		q.t.Fatal(err)
	}
	for _, message := range messages {
		headers := amqp.Table{"message-key": message.Key}
		for name, value := range message.Headers {
			headers[name] = value
		}
		confirm, err := q.channel.PublishWithDeferredConfirm("", q.Name, true, false, amqp.Publishing{
			MessageId: message.ID, Type: "OrderChanged", ContentType: "application/json",
			DeliveryMode: amqp.Persistent, Headers: headers, Body: []byte(message.Body),
		})
		if err != nil {
			q.t.Fatal(err)
		}
		if !confirm.Wait() {
			q.t.Fatal("a message was not confirmed")
		}
	}
}

// DeadLetter waits for a dead letter, and returns its message id.
func (q *Queue) DeadLetter() string {
	q.t.Helper()
	var id string
	mongotest.Eventually(q.t, "a dead letter", func() bool {
		message, ok, err := q.channel.Get(q.dead, true)
		if err != nil {
			q.t.Fatal(err)
		}
		id = message.MessageId
		return ok
	})
	return id
}

// AwaitEmpty waits until all messages have been acknowledged. No consumer may be connected.
func (q *Queue) AwaitEmpty() {
	q.t.Helper()
	mongotest.Eventually(q.t, "an empty queue", func() bool {
		queue, err := q.channel.QueueDeclarePassive(q.Name, true, false, false, false, nil)
		if err != nil {
			q.t.Fatal(err)
		}
		return queue.Consumers == 0 && queue.Messages == 0
	})
}

const connectTimeout = 10 * time.Second
