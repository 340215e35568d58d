package outbox_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"time"

	outbox "github.com/postrider/postrider/clients/go"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

// A change and its message, in one transaction.
func Example() {
	ctx := context.Background()
	client, err := mongo.Connect(options.Client().ApplyURI(os.Getenv("MONGODB_URI")))
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = client.Disconnect(ctx) }()
	shop := client.Database("shop")
	box := outbox.New(shop)

	type orderCreated struct {
		Order string `bson:"order"`
		Total int    `bson:"total"`
	}
	record, err := outbox.NewRecord("OrderCreated", orderCreated{"order-7", 120}, outbox.WithKey("order-7"))
	if err != nil {
		log.Fatal(err)
	}
	session, err := client.StartSession()
	if err != nil {
		log.Fatal(err)
	}
	defer session.EndSession(ctx)
	_, err = session.WithTransaction(ctx, func(ctx context.Context) (any, error) {
		order := bson.M{"_id": "order-7", "total": 120}
		if _, err := shop.Collection("orders").InsertOne(ctx, order); err != nil {
			return nil, err
		}
		return box.Enqueue(ctx, record)
	})
	if err != nil {
		log.Fatal(err)
	}
}

func ExampleNewRecord() {
	record, err := outbox.NewRecord("InvoiceDue", bson.M{"invoice": 7},
		outbox.WithID("invoice-7-due"),
		outbox.WithKey("invoice-7"),
		outbox.WithHeader("source", "billing"),
		outbox.WithVisibleAt(time.Now().AddDate(0, 0, 14)))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(record.MessageID())
	// Output: invoice-7-due
}

func ExampleFieldError() {
	_, err := outbox.NewRecord("OrderCreated", nil, outbox.WithHeader("lines", []string{"one", "two"}))

	var invalid *outbox.FieldError
	if errors.As(err, &invalid) {
		fmt.Println(invalid.Field)
	}
	fmt.Println(err)
	// Output:
	// headers.lines
	// outbox record: headers.lines: is of the type array; a header must be a scalar or a binary
}

// A program finds out at its start whether MongoDB can carry an outbox.
func ExampleOutbox_Probe() {
	client, err := mongo.Connect(options.Client().ApplyURI(os.Getenv("MONGODB_URI")))
	if err != nil {
		log.Fatal(err)
	}
	err = outbox.New(client.Database("shop")).Probe(context.Background())
	switch {
	case errors.Is(err, outbox.ErrTransactionsUnsupported):
		log.Fatal("a standalone MongoDB: ", err)
	case errors.Is(err, outbox.ErrSeqNotFilled):
		log.Fatal("records would have no order: ", err)
	case err != nil:
		log.Fatal(err)
	}
}
