package shop

import (
	"context"
	"fmt"

	outbox "github.com/postrider/postrider/clients/go"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
)

// docs:begin unit-of-work-mongodb

// Store is the application's MongoDB: its unit of work, its orders and its outbox. Postrider takes the place of the
// loop that reads the outbox and publishes.
type Store struct {
	db  *mongo.Database
	box *outbox.Outbox
}

// NewStore checks that MongoDB can carry an outbox.
func NewStore(ctx context.Context, db *mongo.Database) (*Store, error) {
	box := outbox.New(db)
	return &Store{db, box}, box.Probe(ctx)
}

// Run is a [UnitOfWork].
func (s *Store) Run(ctx context.Context, f func(ctx context.Context) error) error {
	session, err := s.db.Client().StartSession()
	if err != nil {
		return err
	}
	defer session.EndSession(ctx)
	_, err = session.WithTransaction(ctx, func(ctx context.Context) (any, error) { return nil, f(ctx) })
	return err
}

// Create inserts an order.
func (s *Store) Create(ctx context.Context, order *Order) error {
	_, err := s.db.Collection("orders").InsertOne(ctx, bson.M{"_id": order.ID, "total": order.Total})
	return err
}

// Dispatch enqueues events, with the aggregate as their key.
func (s *Store) Dispatch(ctx context.Context, aggregate string, events ...Event) error {
	for _, event := range events {
		record, err := outbox.NewRecord(event.Name, event.Body, outbox.WithID(event.ID), outbox.WithKey(aggregate))
		if err != nil {
			return fmt.Errorf("event %s: %w", event.ID, err)
		}
		if _, err := s.box.Enqueue(ctx, record); err != nil {
			return err // as it is: the driver decides by it whether to repeat the transaction
		}
	}
	return nil
}

// docs:end unit-of-work-mongodb
