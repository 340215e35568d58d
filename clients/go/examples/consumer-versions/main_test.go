package main

import (
	"fmt"
	"testing"

	"github.com/postrider/postrider/clients/go/examples/internal/testbroker"
	"github.com/postrider/postrider/clients/go/examples/internal/testprogram"
	"github.com/postrider/postrider/clients/go/internal/mongotest"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
)

func TestMain(m *testing.M) { testprogram.Main(m, main) }

// event returns the message of an event: its payload has 10 × version + index as n.
func event(aggregate string, version int64, index, count int32) testbroker.Message {
	n := 10*version + int64(index)
	return testbroker.Message{
		ID: fmt.Sprintf("%s-%d", aggregate, n), Key: aggregate, Body: fmt.Sprintf(`{"n":%d}`, n),
		Headers: map[string]any{
			"aggregate-id": aggregate, "aggregate-version": version, "event-index": index, "event-count": count,
		},
	}
}

// scene is a queue, a database and the program.
type scene struct {
	t      *testing.T
	queue  *testbroker.Queue
	states *mongo.Collection
}

func newScene(t *testing.T) *scene {
	t.Helper()
	db := mongotest.Database(t, mongotest.Client(t))
	return &scene{t, testbroker.NewQueue(t, "quorum"), db.Collection("states")}
}

func (s *scene) start(amqpURI string) *testprogram.Program {
	s.t.Helper()
	return testprogram.Start(s.t, nil, "MONGODB_URI="+mongotest.URI(s.t, s.states.Database()), "AMQP_URI="+amqpURI,
		"QUEUE="+s.queue.Name)
}

func (s *scene) uri() string { return mongotest.Env(s.t, "POSTRIDER_TEST_AMQP_URI") }

func (s *scene) checkState(want state, aggregate string) {
	s.t.Helper()
	var got state
	if err := s.states.FindOne(s.t.Context(), bson.M{"_id": aggregate}).Decode(&got); err != nil {
		s.t.Fatal(err)
	}
	if got.Version != want.Version || got.Index != want.Index || got.Count == nil || *got.Count != *want.Count {
		s.t.Errorf("state of %s = %+v, want %+v", aggregate, got, want)
	}
}

// checkFailures fails the test if failures are counted for a message.
func (s *scene) checkFailures() {
	s.t.Helper()
	n, err := s.states.Database().Collection("inbox_failures").CountDocuments(s.t.Context(), bson.D{})
	if n != 0 || err != nil {
		s.t.Errorf("the failures of %d messages are counted (%v), want 0", n, err)
	}
}

func TestConsumerAppliesEventsInTheOrderOfTheirVersions(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	events := []testbroker.Message{
		event("a", 1, 0, 2), event("b", 1, 0, 1), event("a", 1, 1, 2), event("a", 2, 0, 1), event("a", 3, 0, 3),
		event("b", 2, 0, 1), event("a", 3, 1, 3),
	}
	for i, message := range events {
		s.queue.Publish(message)
		s.queue.Publish(events[:i+1]...) // old ones come late, and the last one again
	}

	s.start(s.uri())

	testbroker.AwaitEffects(t, s.states, events)
	s.queue.Publish(event("c", 1, 0, 1)) // behind all repetitions
	testbroker.AwaitEffects(t, s.states, append(events, event("c", 1, 0, 1)))
	count := int64(3)
	s.checkState(state{Version: 3, Index: 1, Count: &count}, "a")
	s.checkFailures()
}

// earlierEvent returns the message of an event as an earlier release of Postrider sends it.
func earlierEvent(aggregate string, version int64, index int32) testbroker.Message {
	message := event(aggregate, version, index, 1)
	delete(message.Headers, "aggregate-id")
	delete(message.Headers, "event-count")
	return message
}

func TestConsumerAppliesEventsOfAnEarlierReleaseOnce(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	first, rest := earlierEvent("a", 1, 0), []testbroker.Message{
		earlierEvent("a", 1, 1), earlierEvent("a", 2, 0), earlierEvent("a", 3, 0), earlierEvent("a", 3, 1),
	}
	s.queue.Publish(first)
	s.queue.Publish(rest[:2]...)
	s.queue.Publish(rest...) // the first two again
	s.queue.Publish(first, event("a", 4, 0, 1))

	s.start(s.uri())

	testbroker.AwaitEffects(t, s.states, append(append([]testbroker.Message{first}, rest...), event("a", 4, 0, 1)))
	s.checkFailures()
}

// The guard is part of the write: another consumer can be between the read and the write of this one.
func TestConsumerAppliesAnEventOnceThatAnotherAppliesMeanwhile(t *testing.T) {
	t.Parallel()
	events := []testbroker.Message{event("a", 1, 0, 1), event("a", 2, 0, 2), event("a", 2, 1, 2), event("a", 3, 0, 1)}
	for applied := range len(events) - 1 {
		t.Run(events[applied].ID, func(t *testing.T) {
			t.Parallel()
			s := newScene(t)
			s.queue.Publish(events[:applied]...)
			s.start(s.uri())
			testbroker.AwaitEffects(t, s.states, events[:applied])
			headers := events[applied].Headers
			commit := testbroker.Change(t, s.states, "a", bson.M{
				"$set": bson.M{
					"version": headers["aggregate-version"], "index": headers["event-index"], "count": headers["event-count"],
				},
				"$push": bson.M{"n": 10*headers["aggregate-version"].(int64) + int64(headers["event-index"].(int32))},
			})
			s.queue.Publish(events[applied])
			testbroker.AwaitWrite(t, s.states)
			commit()
			s.queue.Publish(events[applied+1])

			testbroker.AwaitEffects(t, s.states, events[:applied+2])
			s.checkFailures()
		})
	}
}

func TestConsumerAppliesEachEventOnceWhenKilled(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	var events []testbroker.Message
	for version := range int64(6) {
		events = append(events, event("a", version+1, 0, 2), event("a", version+1, 1, 2))
	}
	s.queue.Publish(events...)
	for range 3 { // fewer times than a message has attempts
		proxy := testbroker.NewProxy(t, 2)
		consumer := s.start(proxy.URI)
		<-proxy.Lost
		consumer.Kill()
	}

	s.start(s.uri())

	testbroker.AwaitEffects(t, s.states, events)
	s.checkFailures()
}

func TestConsumerRejectsEventsBehindAGapAfterFiveAttempts(t *testing.T) {
	t.Parallel()
	for name, missing := range map[string][]testbroker.Message{
		"no first version":    {event("a", 2, 0, 1)},
		"no first event":      {event("a", 1, 1, 2)},
		"a version is absent": {event("a", 1, 0, 1), event("a", 3, 0, 1)},
		"an event is absent":  {event("a", 1, 0, 3), event("a", 1, 2, 3)},
		"a version is open":   {event("a", 1, 0, 2), event("a", 2, 0, 1)},
		"its index follows":   {event("a", 1, 0, 3), event("a", 2, 1, 3)},
		"no header":           {{ID: "no header", Key: "a", Body: `{"n":1}`}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newScene(t)
			applied, last := missing[:len(missing)-1], missing[len(missing)-1]
			s.queue.Publish(append(missing, event("b", 1, 0, 1))...)

			s.start(s.uri())

			if id := s.queue.DeadLetter(); id != last.ID {
				t.Errorf("dead letter %s, want %s", id, last.ID)
			}
			testbroker.AwaitEffects(t, s.states, append(applied[:len(applied):len(applied)], event("b", 1, 0, 1)))
			s.checkFailures() // if it is published again, it has all its attempts again
		})
	}
}

func TestConsumerAppliesAnEventWhoseGapIsFilledByAnother(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	s.queue.Publish(event("a", 2, 0, 1))
	consumer := s.start(s.uri())
	mongotest.Eventually(t, "an attempt", func() bool { return consumer.Prints(errGap.Error()) })

	// What another consumer does with version 1.
	if _, err := s.states.InsertOne(t.Context(), bson.D{
		{Key: "_id", Value: "a"}, {Key: "version", Value: 1}, {Key: "index", Value: 0}, {Key: "count", Value: 1},
		{Key: "n", Value: bson.A{10}},
	}); err != nil {
		t.Fatal(err)
	}

	testbroker.AwaitEffects(t, s.states, []testbroker.Message{event("a", 1, 0, 1), event("a", 2, 0, 1)})
}
