package main

import (
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/postrider/postrider/clients/go/examples/internal/testprogram"
	"github.com/postrider/postrider/clients/go/internal/mongotest"
	"github.com/postrider/postrider/clients/go/postridertest"
	"go.mongodb.org/mongo-driver/v2/bson"
)

func TestMain(m *testing.M) { testprogram.Main(m, main) }

func TestProducerCommitsChangeAndMessageOfEachLine(t *testing.T) {
	db := mongotest.Database(t, mongotest.Client(t))
	relay := postridertest.Start(t, mongotest.URI(t, db))
	stdin, lines := io.Pipe()
	producer := testprogram.Start(t, stdin, "MONGODB_URI="+mongotest.URI(t, db))

	for n := range 6 {
		if _, err := fmt.Fprintf(lines, "order-%d %d\n", n%2, n); err != nil {
			t.Fatal(err)
		}
		// The line is printed after the commit, so that another producer may take its turn.
		mongotest.Eventually(t, "a message id", func() bool { return strings.Count(producer.Output(), "\n") == n+1 })
		if count, err := db.Collection("outbox_records").CountDocuments(t.Context(), bson.D{}); count != int64(n+1) {
			t.Fatalf("%d records (%v) behind line %d", count, err, n)
		}
	}
	if err := lines.Close(); err != nil {
		t.Fatal(err)
	}
	producer.Wait()

	ids := strings.Fields(producer.Output())
	for n, message := range relay.Await(6) {
		var payload struct {
			Order string
			N     int
		}
		if err := message.Decode(&payload); err != nil {
			t.Fatal(err)
		}
		key := fmt.Sprintf("order-%d", payload.N%2)
		if message.ID != ids[payload.N] || message.Key == nil || *message.Key != key || payload.Order != key ||
			message.Type != "OrderChanged" {
			t.Errorf("message %d = %+v with the payload %s, want id %s and key %s",
				n, message, message.Payload, ids[payload.N], key)
		}
	}
	var order struct{ Changes []int }
	if err := db.Collection("orders").FindOne(t.Context(), bson.M{"_id": "order-1"}).Decode(&order); err != nil {
		t.Fatal(err)
	}
	if fmt.Sprint(order.Changes) != "[1 3 5]" {
		t.Errorf("changes of order-1 = %v, want 1, 3, 5", order.Changes)
	}
}
