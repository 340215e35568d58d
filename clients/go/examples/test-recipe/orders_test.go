// Package orders shows how an application tests what it sends.
package orders

import (
	"context"
	"testing"

	outbox "github.com/postrider/postrider/clients/go"
	"github.com/postrider/postrider/clients/go/internal/mongotest"
	"github.com/postrider/postrider/clients/go/postridertest"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
)

type orderPlaced struct {
	Order string `bson:"order"`
	Total int    `bson:"total"`
}

// placeOrder is the application.
func placeOrder(ctx context.Context, db *mongo.Database, order string, total int) error {
	record, err := outbox.NewRecord("OrderPlaced", orderPlaced{order, total}, outbox.WithKey(order))
	if err != nil {
		return err
	}
	session, err := db.Client().StartSession()
	if err != nil {
		return err
	}
	defer session.EndSession(ctx)
	_, err = session.WithTransaction(ctx, func(ctx context.Context) (any, error) {
		if _, err := db.Collection("orders").InsertOne(ctx, bson.M{"_id": order, "total": total}); err != nil {
			return nil, err
		}
		return outbox.New(db).Enqueue(ctx, record)
	})
	return err
}

// database returns a database of this test, and its URI.
func database(t *testing.T) (*mongo.Database, string) {
	db := mongotest.Database(t, mongotest.Client(t))
	return db, mongotest.URI(t, db)
}

// docs:begin test-recipe
func TestPlacedOrderIsSent(t *testing.T) {
	db, uri := database(t)               // a database of this test
	relay := postridertest.Start(t, uri) // Postrider, which writes messages to a file; it ends with the test

	if err := placeOrder(t.Context(), db, "order-7", 120); err != nil {
		t.Fatal(err)
	}

	relay.Await(1) // until one message was sent, or the test fails
	messages := relay.ByKey("order-7")
	var placed struct{ Total int }
	if err := messages[0].Decode(&placed); err != nil {
		t.Fatal(err)
	}
	if len(messages) != 1 || messages[0].Type != "OrderPlaced" || placed.Total != 120 {
		t.Errorf("messages = %+v, want one OrderPlaced with the total 120", messages)
	}
}

// docs:end test-recipe
