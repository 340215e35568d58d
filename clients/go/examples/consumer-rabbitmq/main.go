// Command consumer-rabbitmq takes the messages of a RabbitMQ queue, each once: effect and inbox row are in one
// transaction.
//
//	MONGODB_URI='mongodb://127.0.0.1:27017/shop?replicaSet=rs0' AMQP_URI=amqp://guest:guest@127.0.0.1 QUEUE=orders \
//		go run ./consumer-rabbitmq
package main

// docs:begin consumer-rabbitmq
import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/x/mongo/driver/connstring"
)

const (
	consumer    = "orders" // each consumer has rows of its own in the inbox
	maxAttempts = 5
	retryPause  = 500 * time.Millisecond
	// Longer than any time after which a message can come again. The variable INBOX_TTL_SECONDS sets another one.
	inboxTTLSeconds = "2592000" // 30 days
)

// createIndexes makes MongoDB remove old rows.
func createIndexes(ctx context.Context, db *mongo.Database) error {
	ttl, err := strconv.ParseInt(cmp.Or(os.Getenv("INBOX_TTL_SECONDS"), inboxTTLSeconds), 10, 32)
	if err != nil {
		return fmt.Errorf("INBOX_TTL_SECONDS: %w", err)
	}
	byAge := mongo.IndexModel{Keys: bson.M{"at": 1}, Options: options.Index().SetExpireAfterSeconds(int32(ttl))}
	for _, name := range []string{"inbox", "inbox_failures"} {
		if _, err := db.Collection(name).Indexes().CreateOne(ctx, byAge); err != nil {
			return err
		}
	}
	return nil
}

// effect is what a message does.
func effect(ctx context.Context, db *mongo.Database, key string, body []byte) error {
	if key == "" {
		return errors.New("no key")
	}
	var payload struct{ N int }
	if err := json.Unmarshal(body, &payload); err != nil {
		return err
	}
	change := bson.M{"$push": bson.M{"n": payload.N}}
	_, err := db.Collection("received").UpdateByID(ctx, key, change, options.UpdateOne().SetUpsert(true))
	return err
}

// row is the _id of a message in inbox and inbox_failures.
type row struct {
	Consumer string `bson:"consumer"`
	Message  string `bson:"message"`
}

// errDoneBefore means that the effect was committed at an earlier delivery.
var errDoneBefore = errors.New("done before")

// applyOnce commits the effect of a message together with its row in the inbox.
func applyOnce(ctx context.Context, db *mongo.Database, id, key string, body []byte) error {
	session, err := db.Client().StartSession()
	if err != nil {
		return err
	}
	defer session.EndSession(ctx)
	// Repeats the function after a conflict with another transaction (code 112). Both writes need the inner ctx.
	_, err = session.WithTransaction(ctx, func(ctx context.Context) (any, error) {
		seen := bson.M{"_id": row{consumer, id}, "at": time.Now()}
		_, err := db.Collection("inbox").InsertOne(ctx, seen)
		if mongo.IsDuplicateKeyError(err) { // code 11000; MongoDB has aborted the transaction
			return nil, errDoneBefore
		}
		if err != nil {
			return nil, err
		}
		return nil, effect(ctx, db, key, body)
	})
	if errors.Is(err, errDoneBefore) {
		fmt.Println(id, "again")
		return nil
	}
	return err
}

// isPassing reports whether MongoDB is at fault, and not the message.
func isPassing(err error) bool {
	var labeled mongo.LabeledError
	return mongo.IsNetworkError(err) || mongo.IsTimeout(err) || errors.As(err, &labeled) &&
		(labeled.HasErrorLabel("TransientTransactionError") || labeled.HasErrorLabel("UnknownTransactionCommitResult"))
}

// countFailure counts outside of the transaction, which was aborted. It returns the number until now.
func countFailure(ctx context.Context, db *mongo.Database, id, failure string) (int, error) {
	count := bson.M{"$inc": bson.M{"attempts": 1}, "$set": bson.M{"failure": failure, "at": time.Now()}}
	var counted struct{ Attempts int }
	err := db.Collection("inbox_failures").FindOneAndUpdate(ctx, bson.M{"_id": row{consumer, id}}, count,
		options.FindOneAndUpdate().SetUpsert(true).SetReturnDocument(options.After)).Decode(&counted)
	return counted.Attempts, err
}

// forgetFailures removes the count of a message.
func forgetFailures(ctx context.Context, db *mongo.Database, id string) error {
	_, err := db.Collection("inbox_failures").DeleteOne(ctx, bson.M{"_id": row{consumer, id}})
	return err
}

// handle applies a message and acknowledges it. One that fails again and again leaves the queue.
func handle(ctx context.Context, db *mongo.Database, message amqp.Delivery) error {
	id := message.MessageId
	if id == "" { // it is not a message of Postrider
		return message.Reject(false)
	}
	key, _ := message.Headers["message-key"].(string)
	// Deliveries without an answer: the message may crash this program. Quorum queues count them.
	crashes, isCounted := number(message.Headers["x-delivery-count"])
	attempts := crashes
	if message.Redelivered && !isCounted {
		var err error
		if attempts, err = countFailure(ctx, db, id, "redelivered"); err != nil {
			return err
		}
	}
	for attempts < maxAttempts {
		err := applyOnce(ctx, db, id, key, message.Body)
		if err == nil {
			return message.Ack(false) // after the commit
		}
		log.Println(id, err)
		if !isPassing(err) {
			failures, err := countFailure(ctx, db, id, err.Error())
			if err != nil {
				return err
			}
			attempts = crashes + failures
		}
		time.Sleep(retryPause) // in place, so that the messages behind it wait
	}
	// If it is published again, it has all its attempts again.
	if err := forgetFailures(ctx, db, id); err != nil {
		return err
	}
	// To the dead-letter exchange of the queue. Without one RabbitMQ drops the message.
	return message.Reject(false)
}

func number(header any) (n int, ok bool) {
	switch value := header.(type) {
	case int64:
		return int(value), true
	case int32:
		return int(value), true
	}
	return 0, false
}

// consume handles the messages of a queue, one after the other and in its order.
func consume(ctx context.Context, db *mongo.Database, channel *amqp.Channel, queue string) error {
	if err := channel.Qos(1, 0, false); err != nil {
		return err
	}
	messages, err := channel.ConsumeWithContext(ctx, queue, "", false, false, false, false, nil)
	if err != nil {
		return err
	}
	for message := range messages {
		if err := handle(ctx, db, message); err != nil {
			return err // RabbitMQ delivers the message again
		}
	}
	return errors.New("RabbitMQ has closed the channel")
}

// docs:end consumer-rabbitmq

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	if err := run(ctx); err != nil && ctx.Err() == nil {
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
	defer func() { _ = client.Disconnect(context.WithoutCancel(ctx)) }()
	db := client.Database(uri.Database)
	if err := createIndexes(ctx, db); err != nil {
		return err
	}

	connection, err := amqp.Dial(os.Getenv("AMQP_URI"))
	if err != nil {
		return fmt.Errorf("AMQP_URI: %w", err)
	}
	defer func() { _ = connection.Close() }()
	channel, err := connection.Channel()
	if err != nil {
		return err
	}
	return consume(ctx, db, channel, os.Getenv("QUEUE"))
}
