package main

import (
	"errors"
	"strings"
	"syscall"
	"testing"

	"github.com/postrider/postrider/clients/go/examples/internal/testbroker"
	"github.com/postrider/postrider/clients/go/examples/internal/testprogram"
	"github.com/postrider/postrider/clients/go/internal/mongotest"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
)

func TestMain(m *testing.M) { testprogram.Main(m, main) }

// scene is a queue, a database and the program.
type scene struct {
	t     *testing.T
	queue *testbroker.Queue
	db    *mongo.Database
}

func newScene(t *testing.T, queueType string) *scene {
	t.Helper()
	client := mongotest.Client(t)
	return &scene{t, testbroker.NewQueue(t, queueType), mongotest.Database(t, client)}
}

func (s *scene) start(amqpURI string) *testprogram.Program {
	s.t.Helper()
	return testprogram.Start(s.t, nil, "MONGODB_URI="+mongotest.URI(s.t, s.db), "AMQP_URI="+amqpURI,
		"QUEUE="+s.queue.Name)
}

func (s *scene) uri() string { return mongotest.Env(s.t, "POSTRIDER_TEST_AMQP_URI") }

func TestConsumerAppliesEachMessageOnceWhenRabbitMQRepeats(t *testing.T) {
	t.Parallel()
	s := newScene(t, "quorum")
	messages := testbroker.Messages(12, "a", "b", "c")
	s.queue.Publish(append(messages, messages...)...)

	consumer := s.start(s.uri())

	testbroker.AwaitEffects(t, s.db.Collection("received"), messages)
	mongotest.Eventually(t, "all repetitions", func() bool { return strings.Count(consumer.Output(), " again\n") == 12 })
	consumer.Stop(syscall.SIGTERM)
	s.queue.AwaitEmpty()
}

func TestConsumerAppliesEachMessageOnceWhenKilled(t *testing.T) {
	t.Parallel()
	for _, queueType := range []string{"quorum", "classic"} {
		t.Run(queueType+", between commit and acknowledgement", func(t *testing.T) {
			t.Parallel()
			s := newScene(t, queueType)
			messages := testbroker.Messages(20, "a", "b", "c")
			s.queue.Publish(messages...)
			// Fewer times than a message has attempts.
			for range 3 {
				proxy := testbroker.NewProxy(t, 4)
				consumer := s.start(proxy.URI)
				<-proxy.Lost
				consumer.Kill()
			}

			consumer := s.start(s.uri())

			testbroker.AwaitEffects(t, s.db.Collection("received"), messages)
			if !consumer.Prints(" again\n") {
				t.Error("no message was repeated, so the kill was not where it should be")
			}
			consumer.Stop(syscall.SIGTERM)
			s.queue.AwaitEmpty()
		})
	}
	t.Run("within a transaction", func(t *testing.T) {
		t.Parallel()
		s := newScene(t, "quorum")
		received := s.db.Collection("received")
		unlock := testbroker.Lock(t, received, "locked")
		messages := append(testbroker.Messages(5, "a"), testbroker.Message{ID: "m", Key: "locked", Body: `{"n":7}`})
		s.queue.Publish(messages...)
		consumer := s.start(s.uri())
		mongotest.Eventually(t, "all but one effect", func() bool { return testbroker.CountEffects(t, received) == 5 })
		consumer.Kill()
		unlock()
		mongotest.EndTransactions(t, s.db)

		s.start(s.uri())

		testbroker.AwaitEffects(t, received, messages)
	})
}

func TestConsumerTriesAgainWhenAnotherTransactionIsInTheWay(t *testing.T) {
	t.Parallel()
	s := newScene(t, "quorum")
	received := s.db.Collection("received")
	unlock := testbroker.Lock(t, received, "a")
	if err := s.db.RunCommand(t.Context(), bson.D{{Key: "profile", Value: 2}}).Err(); err != nil {
		t.Fatal(err)
	}
	messages := testbroker.Messages(2, "a")
	s.queue.Publish(messages...)
	s.start(s.uri())
	mongotest.Eventually(t, "a conflict", func() bool {
		n, err := s.db.Collection("system.profile").CountDocuments(t.Context(), bson.M{"errCode": 112})
		return n > 0 && err == nil
	})
	unlock()

	testbroker.AwaitEffects(t, received, messages)

	if n := failures(t, s.db, "message-0"); n != 0 {
		t.Errorf("%d failures, want 0", n)
	}
}

func TestConsumerRejectsPoisonMessagesAfterFiveAttempts(t *testing.T) {
	t.Parallel()
	for name, poison := range map[string]testbroker.Message{
		"not JSON":             {ID: "poison", Key: "a", Body: "{"},
		"an effect that fails": {ID: "poison", Key: "stuck", Body: `{"n":1}`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newScene(t, "quorum")
			received := s.db.Collection("received")
			if _, err := received.InsertOne(t.Context(), bson.M{"_id": "stuck", "n": "not an array"}); err != nil {
				t.Fatal(err)
			}
			s.queue.Publish(testbroker.Message{ID: "before", Key: "a", Body: `{"n":1}`}, poison,
				testbroker.Message{ID: "behind", Key: "a", Body: `{"n":2}`})

			consumer := s.start(s.uri())

			if id := s.queue.DeadLetter(); id != "poison" {
				t.Errorf("dead letter %s, want poison", id)
			}
			mongotest.Eventually(t, "the effect of the message behind", func() bool {
				n, err := received.CountDocuments(t.Context(), bson.D{{Key: "n", Value: bson.A{1, 2}}})
				return n == 1 && err == nil
			})
			if n := failures(t, s.db, "poison"); n != 0 {
				t.Errorf("%d failures are left, want 0", n)
			}

			// An operator moves it back.
			s.queue.Publish(poison)
			if id := s.queue.DeadLetter(); id != "poison" {
				t.Errorf("dead letter %s, want poison", id)
			}
			if n := strings.Count(consumer.Output(), " poison "); n != 2*maxAttempts {
				t.Errorf("%d attempts, want %d twice", n, maxAttempts)
			}
		})
	}
}

// The process ends while it applies the message: here it waits for a lock then, and is killed.
func TestConsumerRejectsAMessageThatEndsTheProcess(t *testing.T) {
	t.Parallel()
	for _, queueType := range []string{"quorum", "classic"} {
		t.Run(queueType, func(t *testing.T) {
			t.Parallel()
			s := newScene(t, queueType)
			received := s.db.Collection("received")
			s.queue.Publish(testbroker.Message{ID: "poison", Key: "held", Body: `{"n":1}`},
				testbroker.Message{ID: "behind", Key: "a", Body: `{"n":2}`})
			unlock := testbroker.Lock(t, received, "held")
			for range maxAttempts {
				conflicts := testbroker.Conflicts(t, s.db)
				consumer := s.start(s.uri())
				mongotest.Eventually(t, "a conflict", func() bool { return testbroker.Conflicts(t, s.db) > conflicts })
				consumer.Kill()
			}
			unlock()

			s.start(s.uri())

			if id := s.queue.DeadLetter(); id != "poison" {
				t.Errorf("dead letter %s, want poison", id)
			}
			testbroker.AwaitEffects(t, received, []testbroker.Message{{Key: "a", Body: `{"n":2}`}})
			if n := failures(t, s.db, "poison"); n != 0 {
				t.Errorf("%d failures are left, want 0", n)
			}
		})
	}
}

func TestConsumerRejectsMessagesWithoutIDAtOnce(t *testing.T) {
	t.Parallel()
	s := newScene(t, "quorum")
	s.queue.Publish(testbroker.Message{Key: "a", Body: `{"n":1}`})

	s.start(s.uri())

	if id := s.queue.DeadLetter(); id != "" {
		t.Errorf("dead letter %s, want the one without id", id)
	}
	if n := failures(t, s.db, ""); n != 0 {
		t.Errorf("%d failures, want 0", n)
	}
}

func TestConsumerLeavesRowsToTheTTLMonitor(t *testing.T) {
	t.Parallel()
	s := newScene(t, "quorum")
	s.queue.Publish(testbroker.Messages(1, "a")...)
	s.start(s.uri())
	testbroker.AwaitEffects(t, s.db.Collection("received"), testbroker.Messages(1, "a"))

	for _, name := range []string{"inbox", "inbox_failures"} {
		indexes, err := s.db.Collection(name).Indexes().ListSpecifications(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if len(indexes) != 2 || indexes[1].ExpireAfterSeconds == nil || *indexes[1].ExpireAfterSeconds != 30*24*3600 {
			t.Errorf("indexes of %s = %v, want one with 30 days", name, indexes)
		}
	}
	row, err := s.db.Collection("inbox").FindOne(t.Context(), bson.D{}).Raw()
	if err != nil {
		t.Fatal(err)
	}
	want := `{"consumer": "orders","message": "message-0"}`
	if id := row.Lookup("_id").Document().String(); id != want || row.Lookup("at").Type != bson.TypeDateTime {
		t.Errorf("row = %v, want the id %s and a date", row, want)
	}
}

func failures(t *testing.T, db *mongo.Database, id string) int {
	t.Helper()
	var counted struct{ Attempts int }
	failed := bson.D{{Key: "_id.message", Value: id}}
	err := db.Collection("inbox_failures").FindOne(t.Context(), failed).Decode(&counted)
	if err != nil && !errors.Is(err, mongo.ErrNoDocuments) {
		t.Fatal(err)
	}
	return counted.Attempts
}
