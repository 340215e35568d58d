// Command producer changes an order and reports it, in one transaction per line of standard input: `key n`. It prints
// the message id after each commit.
//
//	MONGODB_URI='mongodb://127.0.0.1:27017/shop?replicaSet=rs0' go run ./producer
package main

// docs:begin producer
import (
	"bufio"
	"context"
	"fmt"
	"log"
	"os"

	outbox "github.com/postrider/postrider/clients/go"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/x/mongo/driver/connstring"
)

type orderChanged struct {
	Order string `bson:"order"`
	N     int    `bson:"n"`
}

// changeOrder changes an order and enqueues the message about it. Both are committed, or neither is.
func changeOrder(ctx context.Context, db *mongo.Database, box *outbox.Outbox, key string, n int) (string, error) {
	// The record is made outside of the function that the driver may call again: one id.
	record, err := outbox.NewRecord("OrderChanged", orderChanged{Order: key, N: n}, outbox.WithKey(key))
	if err != nil {
		return "", err
	}
	session, err := db.Client().StartSession()
	if err != nil {
		return "", err
	}
	defer session.EndSession(ctx)
	// The inner ctx carries the session. A write with the outer one would be outside of the transaction.
	_, err = session.WithTransaction(ctx, func(ctx context.Context) (any, error) {
		change := bson.M{"$push": bson.M{"changes": n}}
		_, err := db.Collection("orders").UpdateByID(ctx, key, change, options.UpdateOne().SetUpsert(true))
		if err != nil {
			return nil, err
		}
		return box.Enqueue(ctx, record)
	})
	return record.MessageID(), err
}

// docs:end producer

func main() {
	if err := run(context.Background()); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context) error {
	uri, err := connstring.Parse(os.Getenv("MONGODB_URI"))
	if err != nil {
		return fmt.Errorf("MONGODB_URI: %w", err)
	}
	client, err := mongo.Connect(options.Client().ApplyURI(uri.Original))
	if err != nil {
		return err
	}
	defer func() { _ = client.Disconnect(ctx) }()
	db := client.Database(uri.Database)
	box := outbox.New(db)
	if err := box.Probe(ctx); err != nil {
		return err // here rather than at the first order
	}
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		var key string
		var n int
		if _, err := fmt.Sscan(lines.Text(), &key, &n); err != nil {
			return fmt.Errorf("line %q: must be a key and a number: %w", lines.Text(), err)
		}
		id, err := changeOrder(ctx, db, box, key, n)
		if err != nil {
			return err
		}
		fmt.Println(id)
	}
	return lines.Err()
}
