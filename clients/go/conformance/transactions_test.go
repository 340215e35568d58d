package conformance

import (
	"context"
	"errors"
	"slices"
	"testing"

	outbox "github.com/postrider/postrider/clients/go"
	"github.com/postrider/postrider/clients/go/internal/mongotest"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
)

var errAbort = errors.New("the case aborts")

func TestTransactions(t *testing.T) {
	// A server of its own: other tests on a shared one could replace the fail point.
	s := newServer(t, mongotest.ReplicaSet(t))
	for _, c := range s.cases.Transactions {
		t.Run(c.Name, func(t *testing.T) {
			records := s.clear(t, "")
			box := outbox.New(s.db)
			switch c.Does {
			case "commit", "abort":
				s.commitOrAbort(t, c, box)
			case "repeat":
				s.repeat(t, c, box, records)
			case "refuse":
				s.refuse(t, c, box)
			case "twice":
				s.twice(t, c, box)
			case "order":
				s.order(t, c, box, records)
			default:
				t.Fatalf("does = %s: unknown", c.Does)
			}
			if n := len(find(t, records)); n != c.Records {
				t.Errorf("%d records, want %d", n, c.Records)
			}
		})
	}
}

func (s *server) commitOrAbort(t *testing.T, c transactionCase, box *outbox.Outbox) {
	record := mustRecord(t, c.Record)
	var want error
	if c.Does == "abort" {
		want = errAbort
	}
	err := s.inTransaction(t, func(ctx context.Context) error {
		if _, err := box.Enqueue(ctx, record); err != nil {
			return err
		}
		return want
	})
	if !errors.Is(err, want) {
		t.Errorf("error = %v, want %v", err, want)
	}
}

func (s *server) repeat(t *testing.T, c transactionCase, box *outbox.Outbox, records *mongo.Collection) {
	record := mustRecord(t, c.Record)
	s.setFailPoint(t, bson.D(c.FailPoint))
	calls := 0
	err := s.inTransaction(t, func(ctx context.Context) error {
		calls++
		_, err := box.Enqueue(ctx, record)
		return err
	})
	s.setFailPoint(t, bson.D{{Key: "configureFailPoint", Value: "failCommand"}, {Key: "mode", Value: "off"}})
	if err != nil || calls != c.Calls {
		t.Fatalf("%d calls (%v), want %d", calls, err, c.Calls)
	}
	if id := find(t, records)[0].Lookup("_id"); !id.Equal(record.ID()) {
		t.Errorf("_id = %v, want %v", id, record.ID())
	}
}

func (s *server) setFailPoint(t *testing.T, command bson.D) {
	t.Helper()
	if err := s.client.Database("admin").RunCommand(t.Context(), command).Err(); err != nil {
		t.Fatal(err)
	}
}

func (s *server) refuse(t *testing.T, c transactionCase, box *outbox.Outbox) {
	session, err := s.client.StartSession()
	if err != nil {
		t.Fatal(err)
	}
	defer session.EndSession(t.Context())
	ctx := mongo.NewSessionContext(t.Context(), session)
	read := func() {
		t.Helper()
		err := session.StartTransaction()
		if err == nil {
			err = s.db.Collection(s.cases.Collection).FindOne(ctx, bson.D{}).Err()
		}
		if err != nil && !errors.Is(err, mongo.ErrNoDocuments) {
			t.Fatal(err)
		}
	}
	switch c.Session {
	case "none":
		ctx = t.Context()
	case "neverStarted":
	case "committed":
		read()
		if err := session.CommitTransaction(ctx); err != nil {
			t.Fatal(err)
		}
	case "aborted":
		read()
		if err := session.AbortTransaction(ctx); err != nil {
			t.Fatal(err)
		}
	default:
		t.Fatalf("session = %s: unknown", c.Session)
	}

	_, err = box.Enqueue(ctx, mustRecord(t, c.Record))

	checkField(t, err, c.Field)
	if !errors.Is(err, outbox.ErrNoTransaction) {
		t.Errorf("error = %v, want ErrNoTransaction", err)
	}
	if s.inserts.n != 0 {
		t.Errorf("%d inserts were sent to MongoDB, want 0", s.inserts.n)
	}
}

func (s *server) twice(t *testing.T, c transactionCase, box *outbox.Outbox) {
	first, second := mustRecord(t, c.First), mustRecord(t, c.Second)
	enqueue := func(records ...*outbox.Record) error {
		return s.inTransaction(t, func(ctx context.Context) error {
			for _, record := range records {
				if _, err := box.Enqueue(ctx, record); err != nil {
					return err
				}
			}
			return nil
		})
	}

	var err error
	if c.OneTransaction {
		err = enqueue(first, second)
	} else {
		if err := enqueue(first); err != nil {
			t.Fatal(err)
		}
		err = enqueue(second)
	}

	var server mongo.ServerError
	if !errors.As(err, &server) || !slices.Contains(server.ErrorCodes(), c.Code) {
		t.Errorf("error = %v, want code %d", err, c.Code)
	}
}

func (s *server) order(t *testing.T, c transactionCase, box *outbox.Outbox, records *mongo.Collection) {
	var entries []*outbox.Record
	for _, entry := range c.Entries {
		entries = append(entries, mustRecord(t, entry))
	}
	transactions := [][]*outbox.Record{entries}
	if !c.OneTransaction {
		transactions = slices.Collect(slices.Chunk(entries, 1))
	}
	for _, transaction := range transactions {
		if err := s.inTransaction(t, func(ctx context.Context) error {
			for _, entry := range transaction {
				if _, err := box.Enqueue(ctx, entry); err != nil {
					return err
				}
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	for i, stored := range find(t, records) { // in the order of seq
		if !stored.Lookup("_id").Equal(entries[i].ID()) {
			t.Errorf("place %d by seq has the id %v, want %v", i, stored.Lookup("_id"), entries[i].ID())
		}
	}
}

func mustRecord(t *testing.T, fields document) *outbox.Record {
	t.Helper()
	record, err := newRecord(bson.D(fields))
	if err != nil {
		t.Fatal(err)
	}
	return record
}
