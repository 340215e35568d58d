// Package outbox writes records into Postrider's outbox in MongoDB.
//
// A record is a message to be sent. It is inserted in the transaction of your own change: both are committed, or
// neither is. Postrider delivers it after the commit: at least once, and in the order of its key.
//
//	box := outbox.New(client.Database("shop"))
//
//	created, err := outbox.NewRecord("OrderCreated", bson.D{{"order", id}, {"total", 120}}, outbox.WithKey(id))
//	if err != nil {
//		return err
//	}
//	_, err = session.WithTransaction(ctx, func(ctx context.Context) (any, error) {
//		if _, err := orders.InsertOne(ctx, order); err != nil {
//			return nil, err
//		}
//		return box.Enqueue(ctx, created)
//	})
//
// Create the record before the transaction: NewRecord sets its id. If the driver calls the function again, for example
// after a conflict with another transaction, the same record is written with the same id.
//
// Use the context that WithTransaction passes to the function, not the outer one: a write with the outer context is
// outside of the transaction, and the driver reports no error. [Outbox.Enqueue] refuses such a context with
// [ErrNoTransaction]; the driver's own methods do not.
//
// The import path ends in "go"; the name of the package is outbox:
//
//	import outbox "github.com/postrider/postrider/clients/go"
package outbox
