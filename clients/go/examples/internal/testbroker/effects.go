package testbroker

import (
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
	// Made outside of the transaction, which would lock the whole collection else.
	if err := collection.Database().CreateCollection(t.Context(), collection.Name()); err != nil {
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
	_, err = collection.UpdateByID(ctx, key, bson.M{"$set": bson.M{"locked": true}}, options.UpdateOne().SetUpsert(true))
	if err != nil {
		t.Fatal(err)
	}
	return func() {
		if err := session.AbortTransaction(ctx); err != nil {
			t.Fatal(err)
		}
		session.EndSession(ctx)
	}
}
