package testbroker

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/postrider/postrider/clients/go/internal/mongotest"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

// AwaitEffects waits until a collection has the effect of each message, and fails the test unless each is there once
// and in the order of its key.
func AwaitEffects(t testing.TB, collection *mongo.Collection, messages []Message) {
	t.Helper()
	want := make(map[string][]int)
	for _, message := range messages {
		var payload struct{ N int }
		if err := bson.UnmarshalExtJSON([]byte(message.Body), false, &payload); err != nil {
			t.Fatal(err)
		}
		want[message.Key] = append(want[message.Key], payload.N)
	}
	mongotest.Eventually(t, fmt.Sprintf("%d effects", len(messages)), func() bool {
		return CountEffects(t, collection) >= len(messages)
	})
	if got := effects(t, collection); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("effects = %v\nexpected %v", got, want)
	}
}

// CountEffects returns the number of effects until now.
func CountEffects(t testing.TB, collection *mongo.Collection) int {
	t.Helper()
	n := 0
	for _, effects := range effects(t, collection) {
		n += len(effects)
	}
	return n
}

func effects(t testing.TB, collection *mongo.Collection) map[string][]int {
	t.Helper()
	cursor, err := collection.Find(t.Context(), bson.D{})
	if err != nil {
		t.Fatal(err)
	}
	var states []struct {
		ID string `bson:"_id"`
		N  []int
	}
	if err := cursor.All(t.Context(), &states); err != nil {
		t.Fatal(err)
	}
	found := make(map[string][]int)
	for _, state := range states {
		found[state.ID] = state.N
	}
	return found
}

// Lock holds the document of a key in an open transaction, so that a consumer's transaction waits. unlock lets it go.
func Lock(t testing.TB, collection *mongo.Collection, key string) (unlock func()) {
	t.Helper()
	session, ctx := change(t, collection, key, bson.M{"$set": bson.M{"locked": true}})
	return func() {
		if err := session.AbortTransaction(ctx); err != nil {
			t.Fatal(err)
		}
		session.EndSession(ctx)
	}
}

// Change makes a change of the document of a key in a transaction, which commit commits.
func Change(t testing.TB, collection *mongo.Collection, key string, update bson.M) (commit func()) {
	t.Helper()
	session, ctx := change(t, collection, key, update)
	return func() {
		if err := session.CommitTransaction(ctx); err != nil {
			t.Fatal(err)
		}
		session.EndSession(ctx)
	}
}

func change(t testing.TB, collection *mongo.Collection, key string, update bson.M) (*mongo.Session, context.Context) {
	t.Helper()
	// Made outside of the transaction, which would lock the whole collection else.
	err := collection.Database().CreateCollection(t.Context(), collection.Name())
	var exists mongo.CommandError
	if err != nil && (!errors.As(err, &exists) || exists.Name != "NamespaceExists") {
		t.Fatal(err)
	}
	session, err := collection.Database().Client().StartSession()
	if err != nil {
		t.Fatal(err)
	}
	if err := session.StartTransaction(); err != nil {
		t.Fatal(err)
	}
	ctx := mongo.NewSessionContext(t.Context(), session)
	if _, err := collection.UpdateByID(ctx, key, update, options.UpdateOne().SetUpsert(true)); err != nil {
		t.Fatal(err)
	}
	return session, ctx
}

// AwaitWrite waits until a write of the collection waits for an open transaction.
func AwaitWrite(t testing.TB, collection *mongo.Collection) {
	t.Helper()
	admin := collection.Database().Client().Database("admin")
	namespace := collection.Database().Name() + "." + collection.Name()
	mongotest.Eventually(t, "a write that waits", func() bool {
		cursor, err := admin.Aggregate(t.Context(), mongo.Pipeline{
			{{Key: "$currentOp", Value: bson.M{}}}, {{Key: "$match", Value: bson.M{"ns": namespace, "op": "update"}}},
		})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = cursor.Close(t.Context()) }()
		return cursor.Next(t.Context())
	})
}

// Conflicts returns the number of writes that have met a conflict since its first call.
func Conflicts(t testing.TB, db *mongo.Database) int64 {
	t.Helper()
	if err := db.RunCommand(t.Context(), bson.D{{Key: "profile", Value: 2}}).Err(); err != nil {
		t.Fatal(err)
	}
	n, err := db.Collection("system.profile").CountDocuments(t.Context(), bson.M{"errCode": 112})
	if err != nil {
		t.Fatal(err)
	}
	return n
}
