package shop_test

import (
	"context"
	"errors"
	"sync"
	"testing"

	outbox "github.com/postrider/postrider/clients/go"
	shop "github.com/postrider/postrider/clients/go/examples/unit-of-work"
	"github.com/postrider/postrider/clients/go/internal/mongotest"
	"github.com/postrider/postrider/clients/go/postridertest"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
)

func newShop(t *testing.T) (*shop.Store, shop.CreateOrderHandler, *mongo.Database) {
	t.Helper()
	db := mongotest.Database(t, mongotest.Client(t))
	store, err := shop.NewStore(t.Context(), db)
	if err != nil {
		t.Fatal(err)
	}
	return store, shop.CreateOrderHandler{Work: store, Orders: store, Events: store}, db
}

func TestHandlerCreatesOrderAndSendsItsEvent(t *testing.T) {
	_, handler, db := newShop(t)
	relay := postridertest.Start(t, mongotest.URI(t, db))

	order, err := handler.Handle(t.Context(), "order-7", 120)

	if err != nil {
		t.Fatal(err)
	}
	relay.Await(1)
	for _, message := range relay.ByKey("order-7") {
		if message.ID != order.Events[0].ID || message.Type != "OrderCreated" ||
			string(message.Payload) != `{"order":"order-7","total":120}` {
			t.Errorf("message = %+v with the payload %s", message, message.Payload)
		}
	}
}

func TestHandlerSendsNothingWhenTheOrderExists(t *testing.T) {
	_, handler, db := newShop(t)
	if _, err := handler.Handle(t.Context(), "order-7", 120); err != nil {
		t.Fatal(err)
	}

	_, err := handler.Handle(t.Context(), "order-7", 80)

	if !mongo.IsDuplicateKeyError(err) {
		t.Errorf("error = %v, want 11000", err)
	}
	checkCount(t, db, "orders", 1)
	checkCount(t, db, "outbox_records", 1)
}

func TestRunRollsBackWhenTheFunctionFails(t *testing.T) {
	store, _, db := newShop(t)
	broken := errors.New("no stock")

	err := store.Run(t.Context(), func(ctx context.Context) error {
		order := shop.NewOrder("order-7", 120)
		if err := store.Create(ctx, order); err != nil {
			return err
		}
		if err := store.Dispatch(ctx, order.ID, order.Events...); err != nil {
			return err
		}
		return broken
	})

	if !errors.Is(err, broken) {
		t.Errorf("error = %v, want %v", err, broken)
	}
	checkCount(t, db, "orders", 0)
	checkCount(t, db, "outbox_records", 0)
}

func TestDispatchRefusesTheOuterContext(t *testing.T) {
	store, _, db := newShop(t)
	outer := t.Context()

	err := store.Run(outer, func(context.Context) error {
		return store.Dispatch(outer, "order-7", shop.NewOrder("order-7", 120).Events...)
	})

	if !errors.Is(err, outbox.ErrNoTransaction) {
		t.Errorf("error = %v, want ErrNoTransaction", err)
	}
	checkCount(t, db, "outbox_records", 0)
}

func TestRunRepeatsWhatMetAnotherTransaction(t *testing.T) {
	store, _, db := newShop(t)
	counters := db.Collection("counters")
	if _, err := counters.InsertOne(t.Context(), bson.M{"n": 0}); err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			event := shop.NewOrder("order-7", 120).Events
			if err := store.Run(t.Context(), func(ctx context.Context) error {
				if err := counters.FindOneAndUpdate(ctx, bson.M{}, bson.M{"$inc": bson.M{"n": 1}}).Err(); err != nil {
					return err
				}
				return store.Dispatch(ctx, "order-7", event...)
			}); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()

	checkCount(t, db, "outbox_records", 8)
	if n, err := counters.CountDocuments(t.Context(), bson.M{"n": 8}); n != 1 || err != nil {
		t.Errorf("the counter is not 8 (%v)", err)
	}
}

func checkCount(t *testing.T, db *mongo.Database, collection string, want int64) {
	t.Helper()
	n, err := db.Collection(collection).CountDocuments(t.Context(), bson.D{})
	if err != nil || n != want {
		t.Errorf("%d documents in %s (%v), want %d", n, collection, err, want)
	}
}
