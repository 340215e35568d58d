package outbox

import (
	"errors"
	"fmt"
)

var (
	// ErrNoTransaction is in the error of Enqueue if the context has no session, or one without a running transaction.
	// Nothing was sent to MongoDB.
	ErrNoTransaction = errors.New("no running transaction")

	// ErrSeqNotFilled is the error of Probe if MongoDB has not filled in the field seq of an inserted record.
	ErrSeqNotFilled = errors.New("seq is not filled in")

	// ErrTransactionsUnsupported is the error of Probe if MongoDB has no transactions.
	ErrTransactionsUnsupported = errors.New("transactions are not supported")
)

// FieldError reports a field of a record with an invalid value, or the session of an Enqueue. Nothing was sent to
// MongoDB.
type FieldError struct {
	// Field is the field's name, such as "key" or "headers.source"; "id" is stored as _id. It is "session" where
	// there is no transaction, and "record" where NewRecord has not made it.
	Field string
	// Reason says what is wrong, and what is expected.
	Reason string
	// Err is [ErrNoTransaction], or the error of the BSON encoder, if that refused the value.
	Err error
}

func (e *FieldError) Error() string {
	if e.Err != nil {
		return fmt.Sprintf("outbox record: %s: %s: %v", e.Field, e.Reason, e.Err)
	}
	return fmt.Sprintf("outbox record: %s: %s", e.Field, e.Reason)
}

// Unwrap returns Err.
func (e *FieldError) Unwrap() error { return e.Err }
