// Command consumer-kafka takes the messages of a Kafka topic, each once: effect and inbox row are in one transaction.
//
//	MONGODB_URI='mongodb://127.0.0.1:27017/shop?replicaSet=rs0' KAFKA_BROKERS=127.0.0.1:9092 TOPIC=orders \
//		GROUP=orders-view go run ./consumer-kafka
package main

// docs:begin consumer-kafka
import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/x/mongo/driver/connstring"
)

const (
	consumer    = "orders" // each consumer has rows of its own in the inbox
	maxAttempts = 5
	retryPause  = 500 * time.Millisecond
	// Longer than any time after which a message can come again: above all the retention of the topic. The variable
	// INBOX_TTL_SECONDS sets another one.
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

// applyOnce commits the effect of a message together with its row in the inbox. It reports whether the effect was not
// there before.
func applyOnce(ctx context.Context, db *mongo.Database, id, key string, body []byte) (isNew bool, err error) {
	session, err := db.Client().StartSession()
	if err != nil {
		return false, err
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
		return false, nil
	}
	return err == nil, err
}

// isPassing reports whether MongoDB is at fault, and not the message.
func isPassing(err error) bool {
	var labeled mongo.LabeledError
	return mongo.IsNetworkError(err) || mongo.IsTimeout(err) || errors.As(err, &labeled) &&
		(labeled.HasErrorLabel("TransientTransactionError") || labeled.HasErrorLabel("UnknownTransactionCommitResult"))
}

// countAttempt counts outside of the transaction, so that the count stays. It returns the number until now.
func countAttempt(ctx context.Context, db *mongo.Database, id, failure string) (int, error) {
	count := bson.M{"$inc": bson.M{"attempts": 1}, "$set": bson.M{"failure": failure, "at": time.Now()}}
	var counted struct{ Attempts int }
	err := db.Collection("inbox_failures").FindOneAndUpdate(ctx, bson.M{"_id": row{consumer, id}}, count,
		options.FindOneAndUpdate().SetUpsert(true).SetReturnDocument(options.After)).Decode(&counted)
	return counted.Attempts, err
}

// forgetAttempts removes the count of a message.
func forgetAttempts(ctx context.Context, db *mongo.Database, id string) error {
	_, err := db.Collection("inbox_failures").DeleteOne(ctx, bson.M{"_id": row{consumer, id}})
	return err
}

// proven holds the partitions in which this process has applied a message.
type proven map[int32]bool

// handle applies a message. One that fails again and again goes to the topic of dead letters, which must exist.
func handle(ctx context.Context, db *mongo.Database, kafka *kgo.Client, proven proven, message *kgo.Record) error {
	id := header(message, "message-id")
	if id == "" { // it is not a message of Postrider
		return moveToDead(ctx, kafka, message, "no message-id")
	}
	// Kafka does not count deliveries. A message that ends the process is in the next process the first one of its
	// partition whose effect is not there yet. So only such a message is counted before its attempt.
	failed, failure := 0, "it ended the process"
	isCounted := !proven[message.Partition]
	if isCounted {
		attempts, err := countAttempt(ctx, db, id, failure)
		if err != nil {
			return err
		}
		failed = attempts - 1
	}
	for failed < maxAttempts {
		isNew, err := applyOnce(ctx, db, id, string(message.Key), message.Value)
		if err == nil {
			proven[message.Partition] = proven[message.Partition] || isNew
			if isCounted || failed > 0 {
				return forgetAttempts(ctx, db, id)
			}
			return nil
		}
		log.Println(id, err)
		if !isPassing(err) {
			failure = err.Error()
			if isCounted {
				failed, isCounted = failed+1, false
			} else if failed, err = countAttempt(ctx, db, id, failure); err != nil {
				return err
			}
		}
		time.Sleep(retryPause) // in place, so that the messages behind it wait
	}
	if err := moveToDead(ctx, kafka, message, failure); err != nil {
		return err
	}
	return forgetAttempts(ctx, db, id) // if it is sent again, it has all its attempts again
}

// moveToDead sends the message to the topic of dead letters, and waits for the confirm.
func moveToDead(ctx context.Context, kafka *kgo.Client, message *kgo.Record, failure string) error {
	return kafka.ProduceSync(ctx, &kgo.Record{
		Topic: message.Topic + ".dead", Key: message.Key, Value: message.Value,
		Headers: append(slices.Clip(message.Headers), kgo.RecordHeader{Key: "failure", Value: []byte(failure)}),
	}).FirstErr()
}

func header(message *kgo.Record, name string) string {
	for _, header := range message.Headers {
		if header.Key == name {
			return string(header.Value)
		}
	}
	return ""
}

// consume handles messages, those of a partition in their order, and commits the offset of each one after its effect.
func consume(ctx context.Context, db *mongo.Database, kafka *kgo.Client) error {
	proven := make(proven)
	for {
		fetches := kafka.PollRecords(ctx, 100)
		if err := fetches.Err(); err != nil {
			return err
		}
		for _, message := range fetches.Records() {
			if err := handle(ctx, db, kafka, proven, message); err != nil {
				return err // Kafka delivers the message again
			}
			if err := kafka.CommitRecords(ctx, message); err != nil {
				return err
			}
		}
		kafka.AllowRebalance() // not before: another member would begin with messages that are handled here
	}
}

// docs:end consumer-kafka

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

	settings := []kgo.Opt{
		kgo.SeedBrokers(strings.Split(os.Getenv("KAFKA_BROKERS"), ",")...),
		kgo.ConsumerGroup(os.Getenv("GROUP")),
		kgo.ConsumeTopics(os.Getenv("TOPIC")),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.DisableAutoCommit(),
		kgo.BlockRebalanceOnPoll(),
		kgo.SessionTimeout(10 * time.Second), // after a kill another member waits so long for the partitions
	}
	// A name of this process that stays: after a crash it has its partitions again at once.
	if name := os.Getenv("INSTANCE"); name != "" {
		settings = append(settings, kgo.InstanceID(name))
	}
	kafka, err := kgo.NewClient(settings...)
	if err != nil {
		return fmt.Errorf("KAFKA_BROKERS: %w", err)
	}
	// Leaves the group, so that another member takes over the partitions at once.
	defer kafka.CloseAllowingRebalance()
	return consume(ctx, db, kafka)
}
