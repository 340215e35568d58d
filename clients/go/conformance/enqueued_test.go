package conformance

import (
	"bytes"
	"context"
	"slices"
	"testing"
	"time"

	outbox "github.com/postrider/postrider/clients/go"
	"github.com/postrider/postrider/clients/go/internal/mongotest"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
)

func TestPartitions(t *testing.T) {
	s := newServer(t, mongotest.Env(t, "POSTRIDER_TEST_MONGODB_URI"))
	for _, c := range s.cases.Partitions {
		t.Run(c.Name, func(t *testing.T) {
			records := s.clear(t, "")
			key := c.Key
			if c.Units != nil {
				key = text(c.Units)
			}

			record, err := outbox.NewRecord("T", nil, outbox.WithKey(key))

			if c.Refused != "" {
				checkField(t, err, c.Refused)
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if err := s.inTransaction(t, func(ctx context.Context) error {
				_, err := outbox.New(s.db).Enqueue(ctx, record)
				return err
			}); err != nil {
				t.Fatal(err)
			}
			if got, ok := find(t, records)[0].Lookup("partition").Int32OK(); !ok || got != c.Partition {
				t.Errorf("partition = %d, want %d", got, c.Partition)
			}
		})
	}
}

func TestEnqueued(t *testing.T) {
	t.Run("plain collection", func(t *testing.T) {
		runEnqueued(t, newServer(t, mongotest.Env(t, "POSTRIDER_TEST_MONGODB_URI")))
	})
	t.Run("with validator", func(t *testing.T) {
		s := newServer(t, mongotest.Env(t, "POSTRIDER_TEST_MONGODB_URI"))
		s.applySchema(t, "", "shop_")
		runEnqueued(t, s)
	})
}

func runEnqueued(t *testing.T, s *server) {
	for _, c := range s.cases.Enqueued {
		t.Run(c.Name, func(t *testing.T) {
			records := s.clear(t, c.CollectionPrefix)
			begin := time.Now().Truncate(time.Millisecond)
			before := marshal(t, bson.D(c.Record))
			record, err := newRecord(bson.D(c.Record))
			if err != nil {
				t.Fatal(err)
			}
			id, headers := record.ID(), bson.D(c.Hook)
			box := outbox.New(s.db, outbox.WithCollectionPrefix(c.CollectionPrefix),
				outbox.WithHeaderHook(func(context.Context) bson.D { return headers }))

			var messageID string
			err = s.inTransaction(t, func(ctx context.Context) (err error) {
				messageID, err = box.Enqueue(ctx, record)
				return err
			})

			if err != nil {
				t.Fatal(err)
			}
			if messageID != record.MessageID() || !record.ID().Equal(id) {
				t.Errorf("message id = %s, id = %v: want %s and %v", messageID, record.ID(), record.MessageID(), id)
			}
			if !bytes.Equal(marshal(t, bson.D(c.Record)), before) || !slices.Equal(headers, bson.D(c.Hook)) {
				t.Errorf("the record %v or the headers %v were changed", c.Record, headers)
			}
			found := find(t, records)
			if len(found) != 1 {
				t.Fatalf("%d records, want 1", len(found))
			}
			checkStored(t, c, found[0], id, begin)
			checkTypes(t, records, c.Types)
		})
	}
}

func checkStored(t *testing.T, c enqueuedCase, stored bson.Raw, id bson.RawValue, begin time.Time) {
	t.Helper()
	elements, err := stored.Elements()
	if err != nil {
		t.Fatal(err)
	}
	var fields []string
	for _, element := range elements {
		fields = append(fields, element.Key())
	}
	if !slices.Equal(fields, c.Fields) {
		t.Errorf("fields = %v, want %v", fields, c.Fields)
	}
	want, err := marshal(t, bson.D(c.Stored)).Elements()
	if err != nil {
		t.Fatal(err)
	}
	for _, element := range want {
		if got := stored.Lookup(element.Key()); !got.Equal(element.Value()) {
			t.Errorf("%s = %v, want %v", element.Key(), got, element.Value())
		}
	}
	if seconds, increment, ok := stored.Lookup("seq").TimestampOK(); !ok || seconds == 0 || increment == 0 {
		t.Errorf("seq = %v, want MongoDB's cluster time", stored.Lookup("seq"))
	}
	if !stored.Lookup("_id").Equal(id) {
		t.Errorf("_id = %v, want %v", stored.Lookup("_id"), id)
	}
	given := func(field string) bool {
		return slices.ContainsFunc(c.Record, func(e bson.E) bool { return e.Key == field && e.Value != nil })
	}
	if !given("id") {
		if subtype, data, ok := id.BinaryOK(); !ok || subtype != 4 || len(data) != 16 || data[6]>>4 != 4 {
			t.Errorf("_id = %v, want a UUID of version 4", id)
		}
	}
	if at := stored.Lookup("createdAt").Time(); !given("createdAt") && (at.Before(begin) || at.After(time.Now())) {
		t.Errorf("createdAt = %v, want the time of this case", at)
	}
}

// checkTypes asks MongoDB for the type of each path.
func checkTypes(t *testing.T, records *mongo.Collection, types map[string]string) {
	t.Helper()
	for path, want := range types {
		project := bson.D{{Key: "type", Value: bson.D{{Key: "$type", Value: "$" + path}}}}
		cursor, err := records.Aggregate(t.Context(), mongo.Pipeline{{{Key: "$project", Value: project}}})
		if err != nil {
			t.Fatal(err)
		}
		var found []struct{ Type string }
		if err := cursor.All(t.Context(), &found); err != nil {
			t.Fatal(err)
		}
		if found[0].Type != want {
			t.Errorf("type of %s = %s, want %s", path, found[0].Type, want)
		}
	}
}

func marshal(t *testing.T, fields bson.D) bson.Raw {
	t.Helper()
	if fields == nil {
		fields = bson.D{}
	}
	raw, err := bson.Marshal(fields)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}
