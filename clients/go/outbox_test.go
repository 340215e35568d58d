package outbox_test

import (
	"context"
	"errors"
	"testing"
	"time"

	outbox "github.com/postrider/postrider/clients/go"
	"github.com/postrider/postrider/clients/go/internal/mongotest"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

// inTransaction runs f in a transaction, as applications do.
func inTransaction(t testing.TB, client *mongo.Client, f func(context.Context) error) error {
	t.Helper()
	session, err := client.StartSession()
	if err != nil {
		t.Fatal(err)
	}
	defer session.EndSession(t.Context())
	_, err = session.WithTransaction(t.Context(), func(ctx context.Context) (any, error) { return nil, f(ctx) })
	return err
}

func newRecord(t testing.TB, payload any, options ...outbox.Option) *outbox.Record {
	t.Helper()
	record, err := outbox.NewRecord("OrderCreated", payload, options...)
	if err != nil {
		t.Fatal(err)
	}
	return record
}

// stored returns all records.
func stored(t testing.TB, db *mongo.Database) []bson.Raw {
	t.Helper()
	cursor, err := db.Collection("outbox_records").Find(t.Context(), bson.D{})
	if err != nil {
		t.Fatal(err)
	}
	var records []bson.Raw
	if err := cursor.All(t.Context(), &records); err != nil {
		t.Fatal(err)
	}
	return records
}

// enqueued writes a record and reads it.
func enqueued(t testing.TB, record *outbox.Record) bson.Raw {
	t.Helper()
	client := mongotest.Client(t)
	db := mongotest.Database(t, client)
	box := outbox.New(db)
	if err := inTransaction(t, client, func(ctx context.Context) error {
		_, err := box.Enqueue(ctx, record)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	records := stored(t, db)
	if len(records) != 1 {
		t.Fatalf("%d records, want 1", len(records))
	}
	return records[0]
}

func TestEnqueueWritesAllFieldsInTheirOrder(t *testing.T) {
	visible := time.Date(2030, 1, 2, 3, 4, 5, 6e6, time.UTC)
	record := newRecord(t, bson.D{{Key: "z", Value: 1}, {Key: "a", Value: 2}},
		outbox.WithKey("order-123"), outbox.WithContentType("application/json"), outbox.WithHeader("source", "shop"),
		outbox.WithDestination("orders"), outbox.WithTenantID("t-1"), outbox.WithVisibleAt(visible),
		outbox.WithDedupKey("once"))

	document := enqueued(t, record)

	want := []struct {
		field string
		kind  bson.Type
	}{
		{"_id", bson.TypeBinary}, {"key", bson.TypeString}, {"type", bson.TypeString},
		{"payload", bson.TypeEmbeddedDocument}, {"contentType", bson.TypeString},
		{"headers", bson.TypeEmbeddedDocument}, {"destination", bson.TypeString}, {"tenantId", bson.TypeString},
		{"status", bson.TypeString}, {"seq", bson.TypeTimestamp}, {"createdAt", bson.TypeDateTime},
		{"visibleAt", bson.TypeDateTime}, {"dedupKey", bson.TypeString}, {"partition", bson.TypeInt32},
	}
	elements, err := document.Elements()
	if err != nil || len(elements) != len(want) {
		t.Fatalf("fields of %v (%v), want %v", document, err, want)
	}
	for i, element := range elements {
		if element.Key() != want[i].field || element.Value().Type != want[i].kind {
			t.Errorf("field %d is %s (%v), want %s (%v)",
				i, element.Key(), element.Value().Type, want[i].field, want[i].kind)
		}
	}
	if status := document.Lookup("status").StringValue(); status != "scheduled" {
		t.Errorf("status = %s", status)
	}
	if at := document.Lookup("visibleAt").Time(); !at.Equal(visible) {
		t.Errorf("visibleAt = %v, want %v", at, visible)
	}
	if partition := document.Lookup("partition").Int32(); partition != 189 {
		t.Errorf("partition = %d, want 189", partition)
	}
}

func TestEnqueueLeavesAbsentFieldsOut(t *testing.T) {
	before := time.Now().Truncate(time.Millisecond)

	document := enqueued(t, newRecord(t, nil))

	elements, _ := document.Elements()
	want := []string{"_id", "type", "payload", "status", "seq", "createdAt"}
	if len(elements) != len(want) {
		t.Fatalf("fields of %v, want %v", document, want)
	}
	for i, element := range elements {
		if element.Key() != want[i] {
			t.Errorf("field %d is %s, want %s", i, element.Key(), want[i])
		}
	}
	if payload := document.Lookup("payload").Type; payload != bson.TypeNull {
		t.Errorf("payload is %v, want null", payload)
	}
	if at := document.Lookup("createdAt").Time(); at.Before(before) || at.After(time.Now()) {
		t.Errorf("createdAt = %v, want the time of NewRecord", at)
	}
}

func TestEnqueueKeepsSeqWhenClientOmitsEmptyFields(t *testing.T) {
	client := mongotest.Client(t, options.Client().SetBSONOptions(&options.BSONOptions{OmitEmpty: true}))
	db := mongotest.Database(t, client)
	record := newRecord(t, nil)

	err := inTransaction(t, client, func(ctx context.Context) error {
		_, err := outbox.New(db).Enqueue(ctx, record)
		return err
	})

	if err != nil {
		t.Fatal(err)
	}
	seconds, increment, ok := stored(t, db)[0].Lookup("seq").TimestampOK()
	if !ok || seconds == 0 || increment == 0 {
		t.Errorf("seq = %d, %d, %v; want MongoDB's cluster time", seconds, increment, ok)
	}
}

func TestEnqueueOrdersRecordsOfOneTransactionBySeq(t *testing.T) {
	client := mongotest.Client(t)
	db := mongotest.Database(t, client)
	box := outbox.New(db)
	records := []*outbox.Record{newRecord(t, 0), newRecord(t, 1), newRecord(t, 2)}

	err := inTransaction(t, client, func(ctx context.Context) error {
		for _, record := range records {
			if _, err := box.Enqueue(ctx, record); err != nil {
				return err
			}
		}
		return nil
	})

	if err != nil {
		t.Fatal(err)
	}
	cursor, err := db.Collection("outbox_records").Find(t.Context(), bson.D{},
		options.Find().SetSort(bson.D{{Key: "seq", Value: 1}}))
	if err != nil {
		t.Fatal(err)
	}
	var found []struct{ Payload int }
	if err := cursor.All(t.Context(), &found); err != nil {
		t.Fatal(err)
	}
	for i, record := range found {
		if record.Payload != i {
			t.Errorf("place %d has payload %d", i, record.Payload)
		}
	}
}

func TestEnqueueUsesCollectionPrefix(t *testing.T) {
	client := mongotest.Client(t)
	db := mongotest.Database(t, client)
	box := outbox.New(db, outbox.WithCollectionPrefix("shop_"))

	err := inTransaction(t, client, func(ctx context.Context) error {
		_, err := box.Enqueue(ctx, newRecord(t, 1))
		return err
	})

	if err != nil {
		t.Fatal(err)
	}
	if n, err := db.Collection("shop_outbox_records").CountDocuments(t.Context(), bson.D{}); n != 1 {
		t.Errorf("%d records in shop_outbox_records (%v), want 1", n, err)
	}
}

func TestEnqueueRefusesContextWithoutRunningTransaction(t *testing.T) {
	client := mongotest.Client(t)
	db := mongotest.Database(t, client)
	box := outbox.New(db)
	record := newRecord(t, 1)
	refused := func(t *testing.T, ctx context.Context) {
		t.Helper()
		if _, err := box.Enqueue(ctx, record); !errors.Is(err, outbox.ErrNoTransaction) {
			t.Errorf("error = %v, want ErrNoTransaction", err)
		}
		if n := len(stored(t, db)); n != 0 {
			t.Errorf("%d records, want 0", n)
		}
	}

	t.Run("no session", func(t *testing.T) { refused(t, t.Context()) })
	t.Run("session without transaction", func(t *testing.T) {
		session, err := client.StartSession()
		if err != nil {
			t.Fatal(err)
		}
		defer session.EndSession(t.Context())
		refused(t, mongo.NewSessionContext(t.Context(), session))
	})
	t.Run("aborted transaction", func(t *testing.T) {
		session, err := client.StartSession()
		if err != nil {
			t.Fatal(err)
		}
		defer session.EndSession(t.Context())
		ctx := mongo.NewSessionContext(t.Context(), session)
		if err := session.StartTransaction(); err != nil {
			t.Fatal(err)
		}
		if _, err := box.Enqueue(ctx, record); err != nil {
			t.Fatal(err)
		}
		if err := session.AbortTransaction(ctx); err != nil {
			t.Fatal(err)
		}
		refused(t, ctx)
	})
	t.Run("outer context in a transaction", func(t *testing.T) {
		outer := t.Context()
		err := inTransaction(t, client, func(context.Context) error {
			_, err := box.Enqueue(outer, record)
			return err
		})
		if !errors.Is(err, outbox.ErrNoTransaction) {
			t.Errorf("error = %v, want ErrNoTransaction", err)
		}
		refused(t, outer)
	})
}

func TestEnqueueRefusesRecordsThatNewRecordHasNotMade(t *testing.T) {
	client := mongotest.Client(t)
	db := mongotest.Database(t, client)
	for name, record := range map[string]*outbox.Record{"nil": nil, "zero": {}} {
		err := inTransaction(t, client, func(ctx context.Context) error {
			_, err := outbox.New(db).Enqueue(ctx, record)
			return err
		})

		var refused *outbox.FieldError
		if !errors.As(err, &refused) || refused.Field != "record" {
			t.Errorf("%s: error %v, want a FieldError of record", name, err)
		}
	}
}

func TestEnqueueWritesNothingWhenTransactionAborts(t *testing.T) {
	client := mongotest.Client(t)
	db := mongotest.Database(t, client)
	orders := db.Collection("orders")
	broken := errors.New("no stock")

	err := inTransaction(t, client, func(ctx context.Context) error {
		if _, err := orders.InsertOne(ctx, bson.D{{Key: "_id", Value: 7}}); err != nil {
			return err
		}
		if _, err := outbox.New(db).Enqueue(ctx, newRecord(t, 1)); err != nil {
			return err
		}
		return broken
	})

	if !errors.Is(err, broken) {
		t.Fatalf("error = %v, want %v", err, broken)
	}
	if n := len(stored(t, db)); n != 0 {
		t.Errorf("%d records, want 0", n)
	}
	if n, _ := orders.CountDocuments(t.Context(), bson.D{}); n != 0 {
		t.Errorf("%d orders, want 0", n)
	}
}

func TestEnqueueWritesTheSameIDWhenTheDriverRepeatsTheTransaction(t *testing.T) {
	client := mongotest.Connect(t, mongotest.ReplicaSet(t))
	db := mongotest.Database(t, client)
	box := outbox.New(db)
	for name, fault := range map[string]bson.D{
		"commit": {{Key: "failCommands", Value: bson.A{"commitTransaction"}}, {Key: "errorCode", Value: 251},
			{Key: "errorLabels", Value: bson.A{"TransientTransactionError"}}},
		"insert": {{Key: "failCommands", Value: bson.A{"insert"}}, {Key: "errorCode", Value: 112},
			{Key: "errorLabels", Value: bson.A{"TransientTransactionError"}}},
		"connection": {{Key: "failCommands", Value: bson.A{"insert"}}, {Key: "closeConnection", Value: true}},
	} {
		t.Run(name, func(t *testing.T) {
			record := newRecord(t, name, outbox.WithKey(name))
			mongotest.FailCommands(t, client, bson.D{{Key: "times", Value: 1}}, fault)
			calls := 0
			var messageID string

			err := inTransaction(t, client, func(ctx context.Context) (err error) {
				calls++
				messageID, err = box.Enqueue(ctx, record)
				return err
			})

			if err != nil || calls != 2 {
				t.Fatalf("%d calls, error = %v; want 2 and none", calls, err)
			}
			if messageID != record.MessageID() {
				t.Errorf("message id = %s, want %s", messageID, record.MessageID())
			}
		})
	}
	if n := len(stored(t, db)); n != 3 {
		t.Errorf("%d records, want 3", n)
	}
}

func TestEnqueueReturnsDuplicateKeyErrorWhenIDExists(t *testing.T) {
	client := mongotest.Client(t)
	db := mongotest.Database(t, client)
	box := outbox.New(db)
	enqueue := func(record *outbox.Record) error {
		return inTransaction(t, client, func(ctx context.Context) error {
			_, err := box.Enqueue(ctx, record)
			return err
		})
	}
	if err := enqueue(newRecord(t, "first", outbox.WithID("order-7-created"))); err != nil {
		t.Fatal(err)
	}

	err := enqueue(newRecord(t, "second", outbox.WithID("order-7-created")))

	if !mongo.IsDuplicateKeyError(err) {
		t.Errorf("error = %v, want 11000", err)
	}
	if records := stored(t, db); len(records) != 1 || records[0].Lookup("payload").StringValue() != "first" {
		t.Errorf("records = %v, want the first one unchanged", records)
	}
}

func TestEnqueueAddsHeadersOfTheHook(t *testing.T) {
	client := mongotest.Client(t)
	db := mongotest.Database(t, client)
	type traceKey struct{}
	box := outbox.New(db, outbox.WithHeaderHook(func(ctx context.Context) bson.D {
		return bson.D{{Key: "traceparent", Value: ctx.Value(traceKey{})}, {Key: "source", Value: "hook"}}
	}))
	record := newRecord(t, 1, outbox.WithHeader("source", "record"))

	err := inTransaction(t, client, func(ctx context.Context) error {
		_, err := box.Enqueue(context.WithValue(ctx, traceKey{}, "00-1-2-01"), record)
		return err
	})

	if err != nil {
		t.Fatal(err)
	}
	want := `{"source": "record","traceparent": "00-1-2-01"}`
	if headers := stored(t, db)[0].Lookup("headers").Document().String(); headers != want {
		t.Errorf("headers = %s, want %s", headers, want)
	}
}

func TestEnqueueRefusesHeadersOfTheHookThatAreDocuments(t *testing.T) {
	client := mongotest.Client(t)
	db := mongotest.Database(t, client)
	box := outbox.New(db, outbox.WithHeaderHook(func(context.Context) bson.D {
		return bson.D{{Key: "trace", Value: bson.D{}}}
	}))

	err := inTransaction(t, client, func(ctx context.Context) error {
		_, err := box.Enqueue(ctx, newRecord(t, 1))
		return err
	})

	var field *outbox.FieldError
	if !errors.As(err, &field) || field.Field != "headers.trace" {
		t.Errorf("error = %v, want a FieldError of headers.trace", err)
	}
}
