package postridertest_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	outbox "github.com/postrider/postrider/clients/go"
	"github.com/postrider/postrider/clients/go/internal/mongotest"
	"github.com/postrider/postrider/clients/go/postridertest"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
)

func TestRelayReturnsMessagesByKeyInTheirOrder(t *testing.T) {
	client := mongotest.Client(t)
	db := mongotest.Database(t, client)
	relay := postridertest.Start(t, mongotest.URI(t, db))
	for n := range 4 {
		key := fmt.Sprintf("order-%d", n%2)
		enqueue(t, db, bson.D{{Key: "n", Value: n}}, outbox.WithKey(key), outbox.WithHeader("source", "shop"))
	}
	enqueue(t, db, []byte{1, 2})

	if all := relay.Await(5); len(all) != 5 {
		t.Errorf("%d messages, want 5", len(all))
	}
	relay.Stop()

	for key, want := range map[string][]int{"order-0": {0, 2}, "order-1": {1, 3}, "order-2": nil} {
		var got []int
		for _, message := range relay.ByKey(key) {
			var payload struct{ N int }
			if err := message.Decode(&payload); err != nil {
				t.Fatal(err)
			}
			if message.Type != "OrderChanged" || message.Headers["source"] != "shop" {
				t.Errorf("message = %+v, want type and header of the record", message)
			}
			got = append(got, payload.N)
		}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("messages of %s = %v, want %v", key, got, want)
		}
	}
	for _, message := range relay.Messages() {
		if message.Key == nil && string(message.Bytes) != "\x01\x02" {
			t.Errorf("bytes = %v, want 1 and 2", message.Bytes)
		}
	}
}

func TestRelayUsesSettings(t *testing.T) {
	client := mongotest.Client(t)
	db := mongotest.Database(t, client)
	relay := postridertest.Start(t, mongotest.URI(t, db),
		postridertest.WithSetting("outbox.collection_prefix", "shop_"))

	enqueue(t, db, 1) // in the collection without prefix, which this relay does not read
	if _, err := db.Collection("shop_outbox_records").InsertOne(t.Context(), bson.D{
		{Key: "_id", Value: "seen"}, {Key: "type", Value: "T"}, {Key: "payload", Value: 1},
		{Key: "status", Value: "pending"}, {Key: "seq", Value: bson.Timestamp{}},
	}); err != nil {
		t.Fatal(err)
	}

	if all := relay.Await(1); len(all) != 1 || all[0].ID != "seen" {
		t.Errorf("messages = %v, want that of the collection with prefix", all)
	}
}

func TestRelayFailsTheTest(t *testing.T) {
	client := mongotest.Client(t)
	uri := mongotest.URI(t, mongotest.Database(t, client))
	script := func(t *testing.T, text string) postridertest.Option {
		path := filepath.Join(t.TempDir(), "postrider")
		if err := os.WriteFile(path, []byte("#!/bin/sh\n"+text), 0o700); err != nil {
			t.Fatal(err)
		}
		return postridertest.WithBinary(path)
	}
	short := postridertest.WithTimeout(200 * time.Millisecond)
	for name, test := range map[string]struct {
		run  func(testing.TB)
		want string
	}{
		"without binary": {func(tb testing.TB) {
			postridertest.Start(tb, uri, postridertest.WithBinary("/absent/postrider"))
		}, "set POSTRIDER_BIN"},
		"when the process ends": {func(tb testing.TB) {
			postridertest.Start(tb, uri, script(t, "echo no such key >&2; exit 2"))
		}, "no such key"},
		"when it is not ready in time": {func(tb testing.TB) {
			postridertest.Start(tb, uri, short, script(t, "exec sleep 60"))
		}, "no readiness within 200ms"},
		"when messages do not come": {func(tb testing.TB) {
			postridertest.Start(tb, uri, postridertest.WithTimeout(5*time.Second)).Await(1)
		}, "no 1 messages within"},
	} {
		t.Run(name, func(t *testing.T) {
			if failure := failureOf(t, test.run); !strings.Contains(failure, test.want) {
				t.Errorf("failure = %q, want %q in it", failure, test.want)
			}
		})
	}
}

// recorder is a test that notes why it failed.
type recorder struct {
	testing.TB
	failure string
}

func (r *recorder) Fatalf(format string, arguments ...any) {
	r.failure = fmt.Sprintf(format, arguments...)
	runtime.Goexit()
}

func failureOf(t *testing.T, run func(testing.TB)) string {
	r := &recorder{TB: t}
	done := make(chan struct{})
	go func() {
		defer close(done)
		run(r)
	}()
	<-done
	return r.failure
}

func enqueue(t *testing.T, db *mongo.Database, payload any, options ...outbox.Option) {
	t.Helper()
	record, err := outbox.NewRecord("OrderChanged", payload, options...)
	if err != nil {
		t.Fatal(err)
	}
	session, err := db.Client().StartSession()
	if err != nil {
		t.Fatal(err)
	}
	defer session.EndSession(t.Context())
	if _, err := session.WithTransaction(t.Context(), func(ctx context.Context) (any, error) {
		return outbox.New(db).Enqueue(ctx, record)
	}); err != nil {
		t.Fatal(err)
	}
}
