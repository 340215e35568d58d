// Command consumer-versions takes the messages of appended events from RabbitMQ, each once and without an inbox:
// guarded by their version.
//
//	MONGODB_URI='mongodb://127.0.0.1:27017/shop?replicaSet=rs0' AMQP_URI=amqp://guest:guest@127.0.0.1 QUEUE=orders \
//		go run ./consumer-versions
package main

// docs:begin consumer-versions
import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"os"
	"os/signal"
	"syscall"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/x/mongo/driver/connstring"
)

const (
	consumer    = "states"
	maxAttempts = 5
	retryPause  = 500 * time.Millisecond
)

// state is how far an aggregate has been applied: up to the event with this index of this version, which has count
// events. An earlier release of Postrider does not send the count; it is nil then.
type state struct {
	Version int64  `bson:"version"`
	Index   int64  `bson:"index"`
	Count   *int64 `bson:"count"`
}

// isPast reports whether the event with this version and index has been applied.
func (s state) isPast(version, index int64) bool {
	return version < s.Version || version == s.Version && index <= s.Index
}

// isNext reports whether the event with this version and index is the next one.
func (s state) isNext(version, index int64) bool {
	sameVersion := version == s.Version && index == s.Index+1
	nextVersion := version == s.Version+1 && index == 0
	if s.Count == nil { // it does not show whether the version is complete
		return sameVersion || nextVersion
	}
	if s.Index+1 < *s.Count {
		return sameVersion
	}
	return nextVersion
}

var (
	errGap     = errors.New("a message before this one has not been applied")
	errChanged = errors.New("another consumer has changed the state")
)

// applyNext applies an event if it is the next one, and does nothing if it was applied before.
func applyNext(ctx context.Context, db *mongo.Database, headers amqp.Table, body []byte) error {
	var payload struct{ N int }
	if err := json.Unmarshal(body, &payload); err != nil {
		return err
	}
	aggregate, hasAggregate := headers["aggregate-id"].(string)
	if !hasAggregate { // a message of an earlier release of Postrider
		aggregate, hasAggregate = headers["message-key"].(string)
	}
	version, hasVersion := number(headers["aggregate-version"])
	index, hasIndex := number(headers["event-index"])
	if !hasAggregate || !hasVersion || !hasIndex {
		return errors.New("a header of appended events is absent")
	}
	var count *int64
	if n, isKnown := number(headers["event-count"]); isKnown {
		count = &n
	}

	states := db.Collection("states")
	var applied state
	err := states.FindOne(ctx, bson.M{"_id": aggregate}).Decode(&applied)
	isFirst := errors.Is(err, mongo.ErrNoDocuments)
	if err != nil && !isFirst {
		return err
	}
	if isFirst {
		applied.Count = new(int64) // version 0 is complete, and version 1 the next one
	} else if applied.isPast(version, index) {
		return nil // done before
	}
	if !applied.isNext(version, index) {
		return fmt.Errorf("%w: %s: %d.%d came after %d.%d", errGap, aggregate, version, index, applied.Version, applied.Index)
	}

	// The guard and the effect are one write, which changes only the state that was read.
	read := bson.M{"_id": aggregate, "version": applied.Version, "index": applied.Index}
	if isFirst {
		read = bson.M{"_id": aggregate, "version": nil}
	}
	change := bson.M{"$set": state{version, index, count}, "$push": bson.M{"n": payload.N}}
	result, err := states.UpdateOne(ctx, read, change, options.UpdateOne().SetUpsert(isFirst))
	if mongo.IsDuplicateKeyError(err) || err == nil && result.MatchedCount+result.UpsertedCount == 0 {
		return errChanged
	}
	return err
}

// isPassing reports whether the same may succeed later, and the message is not at fault.
func isPassing(err error) bool {
	return errors.Is(err, errChanged) || mongo.IsNetworkError(err) || mongo.IsTimeout(err)
}

// countFailure returns the number of failures of a message until now. Gaps count too.
func countFailure(ctx context.Context, db *mongo.Database, id, failure string) (int64, error) {
	row := bson.D{{Key: "consumer", Value: consumer}, {Key: "message", Value: id}}
	count := bson.M{"$inc": bson.M{"attempts": 1}, "$set": bson.M{"failure": failure, "at": time.Now()}}
	var counted struct{ Attempts int64 }
	err := db.Collection("inbox_failures").FindOneAndUpdate(ctx, bson.M{"_id": row}, count,
		options.FindOneAndUpdate().SetUpsert(true).SetReturnDocument(options.After)).Decode(&counted)
	return counted.Attempts, err
}

// forgetFailures removes the count of a message.
func forgetFailures(ctx context.Context, db *mongo.Database, id string) error {
	row := bson.D{{Key: "consumer", Value: consumer}, {Key: "message", Value: id}}
	_, err := db.Collection("inbox_failures").DeleteOne(ctx, bson.M{"_id": row})
	return err
}

// handle applies a message and acknowledges it. One that fails again and again leaves the queue.
func handle(ctx context.Context, db *mongo.Database, message amqp.Delivery) error {
	id := message.MessageId
	if id == "" { // it is not a message of Postrider
		return message.Reject(false)
	}
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
		err := applyNext(ctx, db, message.Headers, message.Body)
		if err == nil {
			return message.Ack(false)
		}
		log.Println(id, err)
		if !isPassing(err) {
			failures, err := countFailure(ctx, db, id, err.Error())
			if err != nil {
				return err
			}
			attempts = crashes + failures
		}
		time.Sleep(retryPause)
	}
	// If it is published again, it has all its attempts again.
	if err := forgetFailures(ctx, db, id); err != nil {
		return err
	}
	// To the dead-letter exchange of the queue. Without one RabbitMQ drops the message.
	return message.Reject(false)
}

func number(header any) (n int64, ok bool) {
	switch value := header.(type) {
	case int64:
		return value, true
	case int32:
		return int64(value), true
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

// docs:end consumer-versions

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
