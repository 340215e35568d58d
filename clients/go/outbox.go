package outbox

import (
	"context"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
)

// Outbox inserts records into one database. Several goroutines may call its methods, each with its own transaction.
type Outbox struct {
	records *mongo.Collection
	hook    HeaderHook
}

// HeaderHook returns headers for each record, such as traceparent from the span in ctx. It runs in Enqueue. Headers of
// the record itself take precedence.
type HeaderHook func(ctx context.Context) bson.D

// Setting configures an Outbox.
type Setting func(*settings)

type settings struct {
	prefix string
	hook   HeaderHook
}

// WithCollectionPrefix sets the prefix of the collection's name: outbox.collection_prefix of the relay.
func WithCollectionPrefix(prefix string) Setting {
	return func(s *settings) { s.prefix = prefix }
}

// WithHeaderHook sets the function that adds headers to each record.
func WithHeaderHook(hook HeaderHook) Setting {
	return func(s *settings) { s.hook = hook }
}

// New returns the outbox in this database. It does not connect; [Outbox.Probe] does.
func New(db *mongo.Database, options ...Setting) *Outbox {
	var s settings
	for _, option := range options {
		option(&s)
	}
	return &Outbox{records: db.Collection(s.prefix + "outbox_records"), hook: s.hook}
}

// Enqueue inserts a record in the transaction of ctx, and returns the message id that consumers will see. The record
// is delivered once the transaction has committed, and never if it aborts.
//
// ctx must be the context that WithTransaction passes to its function, or one derived from it; with StartTransaction
// it is that of mongo.NewSessionContext. Otherwise the error is [ErrNoTransaction]. Errors of the driver are returned
// unchanged, so that it can repeat the transaction: return them from the function. A dedupKey or id that exists is
// error 11000. A record that the collection's validator refuses is error 121.
func (o *Outbox) Enqueue(ctx context.Context, record *Record) (messageID string, err error) {
	session := mongo.SessionFromContext(ctx)
	if session == nil {
		return "", &FieldError{Field: "session", Err: ErrNoTransaction, Reason: "ctx has none; " +
			"pass the context that WithTransaction gives to its function, not the outer one"}
	}
	if !session.TransactionRunning() {
		return "", &FieldError{Field: "session", Err: ErrNoTransaction, Reason: "that of ctx is not in a transaction; " +
			"start one, or use WithTransaction"}
	}
	if record == nil || record.id.IsZero() {
		return "", &FieldError{Field: "record", Reason: "is nil, or was not made by NewRecord"}
	}
	headers, err := o.hookHeaders(ctx)
	if err != nil {
		return "", err
	}
	document, err := record.document(headers)
	if err != nil {
		return "", err
	}
	if _, err := o.records.InsertOne(ctx, document); err != nil {
		return "", err
	}
	return record.messageID, nil
}

func (o *Outbox) hookHeaders(ctx context.Context) ([]header, error) {
	if o.hook == nil {
		return nil, nil
	}
	var headers []header
	for _, h := range o.hook(ctx) {
		value, err := encodeHeader(h.Key, h.Value)
		if err != nil {
			return nil, err
		}
		headers = append(headers, header{h.Key, value})
	}
	return headers, nil
}
