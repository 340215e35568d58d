// Package mongotest gives each test of this repository a database of its own.
package mongotest

import (
	"context"
	"crypto/rand"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

// WaitLimit is how long tests wait for a condition. The machine may be busy.
const WaitLimit = 90 * time.Second

// Env returns a variable of the environment, and fails the test where it is absent.
func Env(t testing.TB, name string) string {
	t.Helper()
	value := os.Getenv(name)
	if value == "" {
		t.Fatalf(`%s is not set; eval "$(scripts/services.sh env)" sets it`, name)
	}
	return value
}

// Client returns a client of the replica set of the tests.
func Client(t testing.TB, settings ...*options.ClientOptions) *mongo.Client {
	t.Helper()
	return Connect(t, Env(t, "POSTRIDER_TEST_MONGODB_URI"), settings...)
}

// Connect returns a client, and disconnects it at the end of the test.
func Connect(t testing.TB, uri string, settings ...*options.ClientOptions) *mongo.Client {
	t.Helper()
	client, err := mongo.Connect(append([]*options.ClientOptions{options.Client().ApplyURI(uri)}, settings...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Disconnect(context.Background()) })
	return client
}

var notInNames = regexp.MustCompile(`[^A-Za-z0-9]+`)

// Database returns a new database of this client. It is dropped at the end of the test.
func Database(t testing.TB, client *mongo.Client) *mongo.Database {
	t.Helper()
	name := notInNames.ReplaceAllString(strings.TrimPrefix(t.Name(), "Test"), "_")
	db := client.Database("go_" + name[:min(len(name), 40)] + "_" + rand.Text()[:8])
	t.Cleanup(func() {
		EndTransactions(t, db)
		if err := db.Drop(context.Background()); err != nil {
			t.Errorf("failed to drop database %s: %v", db.Name(), err)
		}
	})
	return db
}

// EndTransactions ends the open transactions of programs that were killed, which were given the URI of the database.
// MongoDB itself does that after a minute, and all that they have written waits until then.
func EndTransactions(t testing.TB, db *mongo.Database) {
	t.Helper()
	ctx := context.Background() // it may be called at the end of the test
	admin := db.Client().Database("admin")
	cursor, err := admin.Aggregate(ctx, mongo.Pipeline{
		{{Key: "$currentOp", Value: bson.M{"idleSessions": true}}},
		{{Key: "$match", Value: bson.M{"appName": db.Name(), "transaction": bson.M{"$exists": true}}}},
		{{Key: "$project", Value: bson.M{"lsid": 1}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	var open []bson.M
	if err := cursor.All(ctx, &open); err != nil {
		t.Fatal(err)
	}
	if len(open) == 0 {
		return
	}
	if err := admin.RunCommand(ctx, bson.D{{Key: "killAllSessionsByPattern", Value: open}}).Err(); err != nil {
		t.Fatal(err)
	}
}

// URI returns the URI of a database, for a program.
func URI(t testing.TB, db *mongo.Database) string {
	t.Helper()
	address, query, found := strings.Cut(Env(t, "POSTRIDER_TEST_MONGODB_URI"), "/?")
	if !found {
		t.Fatal("POSTRIDER_TEST_MONGODB_URI: must be mongodb://host:port/?replicaSet=name")
	}
	return fmt.Sprintf("%s/%s?appName=%s&%s", address, db.Name(), db.Name(), query)
}

// FailCommands makes MongoDB fail the commands that data names, as often as mode says.
func FailCommands(t testing.TB, client *mongo.Client, mode any, data bson.D) {
	t.Helper()
	admin := client.Database("admin")
	command := bson.D{{Key: "configureFailPoint", Value: "failCommand"}, {Key: "mode", Value: mode}}
	if err := admin.RunCommand(t.Context(), append(command, bson.E{Key: "data", Value: data})).Err(); err != nil {
		t.Fatal(err)
	}
}

// Eventually waits until a condition holds.
func Eventually(t testing.TB, what string, condition func() bool) {
	t.Helper()
	for deadline := time.Now().Add(WaitLimit); !condition(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("after %v still not: %s", WaitLimit, what)
		}
	}
}
