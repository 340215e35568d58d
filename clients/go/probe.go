package outbox

import (
	"context"
	"errors"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
)

// Error codes of MongoDB.
const (
	illegalOperation = 20
	unauthorized     = 13
)

// maxProbes bounds the repetitions of a probe that meets other transactions, such as one that makes the collection.
const maxProbes = 10

// Probe checks that the deployment can carry an outbox: it inserts a record in a transaction, reads its seq, and
// aborts. It leaves nothing in the database. Call it once at the start of a program.
//
// The error is [ErrTransactionsUnsupported], [ErrSeqNotFilled], or one of the driver's (for example no connection, or
// error 121, where another validator refuses records). Reading needs the action find on the collection of records,
// in addition to the insert that producers need.
func (o *Outbox) Probe(ctx context.Context) error {
	session, err := o.records.Database().Client().StartSession()
	if err != nil {
		return fmt.Errorf("outbox: probe: failed to start a session: %w", err)
	}
	defer session.EndSession(ctx)

	// Not by WithTransaction, which would repeat it for two minutes where MongoDB is not reachable.
	for probes := 1; ; probes++ {
		err = o.probe(ctx, session)
		var server mongo.ServerError
		conflict := errors.As(err, &server) && !mongo.IsNetworkError(err) &&
			server.HasErrorLabel("TransientTransactionError")
		if !conflict || probes == maxProbes {
			return o.explain(err)
		}
	}
}

// explain adds the remedy to errors of MongoDB that have one.
func (o *Outbox) explain(err error) error {
	var server mongo.ServerError
	switch {
	case !errors.As(err, &server):
		return err
	case server.HasErrorCode(illegalOperation):
		return fmt.Errorf("outbox: probe: %w: MongoDB must be a replica set (one member is enough) "+
			"or a sharded cluster: %w", ErrTransactionsUnsupported, err)
	case server.HasErrorCode(unauthorized):
		return fmt.Errorf("outbox: probe: the user must have the actions insert and find on %s: %w",
			o.records.Name(), err)
	}
	return err
}

func (o *Outbox) probe(ctx context.Context, session *mongo.Session) error {
	if err := session.StartTransaction(); err != nil {
		return err
	}
	ctx = mongo.NewSessionContext(ctx, session)
	// A transaction that MongoDB has aborted already makes no difference.
	defer func() { _ = session.AbortTransaction(ctx) }()

	record, err := NewRecord("postrider.probe", nil)
	if err != nil {
		return err
	}
	if _, err := o.Enqueue(ctx, record); err != nil {
		return err
	}
	stored, err := o.records.FindOne(ctx, bson.D{{Key: "_id", Value: record.id}}).Raw()
	if err != nil {
		return err
	}
	seq := stored.Lookup("seq")
	if t, i, ok := seq.TimestampOK(); ok && (t != 0 || i != 0) {
		return nil
	}
	found := "is absent"
	switch seq.Type {
	case 0:
	case bson.TypeTimestamp:
		found = "is still zero"
	default:
		found = "is of the type " + seq.Type.String()
	}
	return fmt.Errorf("outbox: probe: %w: it %s in an inserted record, and MongoDB puts its cluster time there; "+
		"a proxy or a service compatible with MongoDB is between, and without seq records have no order: "+
		"connect to MongoDB itself", ErrSeqNotFilled, found)
}
