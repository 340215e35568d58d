package outbox_test

import (
	"context"
	"crypto/rand"
	"slices"
	"testing"
	"time"

	outbox "github.com/postrider/postrider/clients/go"
	"github.com/postrider/postrider/clients/go/internal/mongotest"
	"go.mongodb.org/mongo-driver/v2/bson"
)

type benchPayload struct {
	Order string   `bson:"order"`
	Total int      `bson:"total"`
	Lines []string `bson:"lines"`
}

// BenchmarkEnqueue compares Enqueue with InsertOne of the same document in the same kind of transaction. Each iteration
// is a round of both, in turns; "ratio" is that of the medians.
//
//	go test -run '^$' -bench Enqueue -benchtime 9x .
func BenchmarkEnqueue(b *testing.B) {
	const transactions = 400
	client := mongotest.Client(b)
	db := mongotest.Database(b, client)
	records := db.Collection("outbox_records")
	box := outbox.New(db)
	payload := benchPayload{"order-123", 120, []string{"one", "two", "three"}}
	session, err := client.StartSession()
	if err != nil {
		b.Fatal(err)
	}
	defer session.EndSession(b.Context())

	enqueue := func(ctx context.Context) (any, error) {
		record, err := outbox.NewRecord("OrderCreated", payload, outbox.WithKey("order-123"),
			outbox.WithHeader("source", "shop"))
		if err != nil {
			return nil, err
		}
		return box.Enqueue(ctx, record)
	}
	insert := func(ctx context.Context) (any, error) {
		id := make([]byte, 16)
		if _, err := rand.Read(id); err != nil {
			return nil, err
		}
		return records.InsertOne(ctx, bson.D{
			{Key: "_id", Value: bson.Binary{Subtype: 4, Data: id}},
			{Key: "key", Value: "order-123"},
			{Key: "type", Value: "OrderCreated"},
			{Key: "payload", Value: payload},
			{Key: "headers", Value: bson.D{{Key: "source", Value: "shop"}}},
			{Key: "status", Value: "pending"},
			{Key: "seq", Value: bson.Timestamp{}},
			{Key: "createdAt", Value: time.Now()},
			{Key: "partition", Value: int32(189)},
		})
	}
	round := func(f func(context.Context) (any, error)) time.Duration {
		begin := time.Now()
		for range transactions {
			if _, err := session.WithTransaction(b.Context(), f); err != nil {
				b.Fatal(err)
			}
		}
		return time.Since(begin) / transactions
	}
	round(insert)
	round(enqueue) // both warm

	var enqueued, inserted []time.Duration
	for b.Loop() {
		if len(enqueued)%2 == 0 {
			enqueued, inserted = append(enqueued, round(enqueue)), append(inserted, round(insert))
		} else {
			inserted, enqueued = append(inserted, round(insert)), append(enqueued, round(enqueue))
		}
	}

	median := func(times []time.Duration) float64 {
		slices.Sort(times)
		return float64(times[len(times)/2].Microseconds())
	}
	b.ReportMetric(median(enqueued), "µs/enqueue")
	b.ReportMetric(median(inserted), "µs/insert")
	b.ReportMetric(median(enqueued)/median(inserted), "ratio")
}
