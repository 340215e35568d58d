package outbox

import (
	"crypto/rand"
	"strings"
	"time"
	"unicode/utf8"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// Record is a message to be sent. [NewRecord] creates it with its id. It never changes, so it may be enqueued again
// when its transaction is repeated.
type Record struct {
	id        bson.RawValue
	messageID string
	kind      string
	payload   bson.RawValue
	headers   []header
	createdAt time.Time
	visibleAt time.Time // zero where the record is not scheduled

	// nil where absent
	key, contentType, destination, tenantID, dedupKey *string
}

type header struct {
	name  string
	value bson.RawValue
}

// Option sets an optional field of a record.
type Option func(*Record) error

// NewRecord creates a record with a new UUID as its id, of this message type (such as "OrderCreated") and payload.
// The error is a [*FieldError].
//
// A payload that is a document or an array is sent as JSON, with its fields in their order: a struct, a bson.D, a
// bson.Raw, a slice. A string is sent as text, a []byte as its bytes, and nil as an empty body (in Kafka a tombstone).
// For JSON that is already encoded, use a []byte with WithContentType("application/json"). The payload is encoded here, by
// the driver's default rules (the struct tag is bson, not json): later changes of it do not reach the record. A client
// with other rules can encode it first, and pass it as a bson.Raw.
//
// Go maps, and so bson.M, have no order: their fields are sorted by name at any depth, except those of a map with the
// struct tag inline, whose order is random. A [16]byte, and so uuid.UUID, becomes a UUID at any depth.
func NewRecord(messageType string, payload any, options ...Option) (*Record, error) {
	r := &Record{kind: messageType, createdAt: time.Now()}
	if messageType == "" {
		return nil, &FieldError{Field: "type", Reason: "is empty; it names the kind of message, such as OrderCreated"}
	}
	if err := setText("type", messageType, new(*string)); err != nil {
		return nil, err
	}
	var err error
	if r.payload, err = encode("payload", payload); err != nil {
		return nil, err
	}
	for _, option := range options {
		if err := option(r); err != nil {
			return nil, err
		}
	}
	if r.id.IsZero() {
		if err := WithID(newUUID())(r); err != nil {
			return nil, err
		}
	}
	return r, nil
}

// WithID sets another id than a new UUID: an ObjectID, a string, an integer, or a UUID as a [16]byte (such as
// uuid.UUID) or a bson.Binary of subtype 4. An id that exists makes the insertion fail with error 11000.
func WithID(id any) Option {
	return func(r *Record) error {
		value, err := encode("id", id)
		if err != nil {
			return err
		}
		text, err := messageID(value)
		if err != nil {
			return &FieldError{Field: "id", Reason: "is of the type " + typeName(value) +
				"; it must be a UUID (a [16]byte, or a bson.Binary of subtype 4), an ObjectID, a string or an integer"}
		}
		if text == "" {
			return &FieldError{Field: "id", Reason: "is empty; leave the option out for a new UUID"}
		}
		r.id, r.messageID = value, text
		return nil
	}
}

// WithKey sets the key: records of one key are delivered in their order. "" is a key like any other; without a key
// there is no order.
func WithKey(key string) Option {
	return func(r *Record) error { return setText("key", key, &r.key) }
}

// WithContentType sets the content type, in place of the one that follows from the payload.
func WithContentType(contentType string) Option {
	return func(r *Record) error { return setText("contentType", contentType, &r.contentType) }
}

// WithHeader sets a header of the message: a string, number, bool, time, ObjectID, Decimal128, []byte, UUID or nil.
// The last one of a name counts.
func WithHeader(name string, value any) Option {
	return func(r *Record) error {
		encoded, err := encodeHeader(name, value)
		if err != nil {
			return err
		}
		for i := range r.headers {
			if r.headers[i].name == name {
				r.headers[i].value = encoded
				return nil
			}
		}
		r.headers = append(r.headers, header{name, encoded})
		return nil
	}
}

// WithDestination sets the exchange or topic, in place of that of the route, if the relay's configuration permits it.
func WithDestination(destination string) Option {
	return func(r *Record) error { return setText("destination", destination, &r.destination) }
}

// WithTenantID sets the tenant, which consumers see as the header tenant-id.
func WithTenantID(tenant string) Option {
	return func(r *Record) error { return setText("tenantId", tenant, &r.tenantID) }
}

// WithDedupKey sets a key that is unique while the record exists: the insertion of a second record with it fails with
// error 11000 ([mongo.IsDuplicateKeyError]), and the transaction aborts.
//
// [mongo.IsDuplicateKeyError]: https://pkg.go.dev/go.mongodb.org/mongo-driver/v2/mongo#IsDuplicateKeyError
func WithDedupKey(key string) Option {
	return func(r *Record) error { return setText("dedupKey", key, &r.dedupKey) }
}

// WithCreatedAt sets the message's timestamp, which is otherwise the time of NewRecord. Order never depends on it.
func WithCreatedAt(at time.Time) Option {
	return func(r *Record) error { return setTime("createdAt", at, &r.createdAt) }
}

// WithVisibleAt schedules the record: it is not delivered before this time, by MongoDB's clock, and takes its place in
// the order of its key at this time.
func WithVisibleAt(at time.Time) Option {
	return func(r *Record) error { return setTime("visibleAt", at, &r.visibleAt) }
}

// ID returns the id as it is in MongoDB.
func (r *Record) ID() bson.RawValue { return r.id }

// MessageID returns the id as text, as consumers see it.
func (r *Record) MessageID() string { return r.messageID }

// document returns the document that is inserted. Headers of the hook yield to the record's own.
func (r *Record) document(hook []header) (bson.Raw, error) {
	document := make(bson.D, 0, 14)
	set := func(field string, value any) { document = append(document, bson.E{Key: field, Value: value}) }
	setOptional := func(field string, value *string) {
		if value != nil {
			set(field, *value)
		}
	}

	set("_id", r.id)
	setOptional("key", r.key)
	set("type", r.kind)
	set("payload", r.payload)
	setOptional("contentType", r.contentType)
	if headers := r.withHook(hook); len(headers) > 0 {
		set("headers", headers)
	}
	setOptional("destination", r.destination)
	setOptional("tenantId", r.tenantID)
	if r.visibleAt.IsZero() {
		set("status", "pending")
	} else {
		set("status", "scheduled")
	}
	// MongoDB replaces it by its cluster time.
	set("seq", bson.Timestamp{})
	set("createdAt", r.createdAt)
	if !r.visibleAt.IsZero() {
		set("visibleAt", r.visibleAt)
	}
	setOptional("dedupKey", r.dedupKey)
	if r.key != nil {
		set("partition", partitionOf(*r.key))
	}
	// Encoded here, so that no option of the client (omitempty for all fields, for example) can leave seq out.
	return bson.Marshal(document)
}

func (r *Record) withHook(hook []header) bson.D {
	headers := make(bson.D, 0, len(r.headers)+len(hook))
	own := make(map[string]bool, len(r.headers))
	for _, h := range r.headers {
		own[h.name] = true
		headers = append(headers, bson.E{Key: h.name, Value: h.value})
	}
	for _, h := range hook {
		if !own[h.name] {
			headers = append(headers, bson.E{Key: h.name, Value: h.value})
		}
	}
	return headers
}

func encodeHeader(name string, value any) (bson.RawValue, error) {
	field := "headers." + name
	if !utf8.ValidString(name) || strings.ContainsRune(name, 0) {
		return bson.RawValue{}, &FieldError{Field: "headers", Reason: "a name is not valid UTF-8, or contains U+0000"}
	}
	encoded, err := encode(field, value)
	if err != nil {
		return encoded, err
	}
	switch encoded.Type {
	case bson.TypeString, bson.TypeInt32, bson.TypeInt64, bson.TypeDouble, bson.TypeDecimal128, bson.TypeBoolean,
		bson.TypeDateTime, bson.TypeObjectID, bson.TypeBinary, bson.TypeNull:
		return encoded, nil
	}
	return encoded, &FieldError{Field: field, Reason: "is of the type " + typeName(encoded) +
		"; a header must be a scalar or a binary"}
}

func setText(field, text string, target **string) error {
	if !utf8.ValidString(text) {
		return &FieldError{Field: field, Reason: "is not valid UTF-8"}
	}
	*target = &text
	return nil
}

func setTime(field string, at time.Time, target *time.Time) error {
	if at.IsZero() {
		return &FieldError{Field: field, Reason: "is the zero time; leave the option out, or give a time"}
	}
	*target = at
	return nil
}

func typeName(value bson.RawValue) string {
	if subtype, _, ok := value.BinaryOK(); ok {
		return "binary, subtype " + string('0'+rune(subtype%10))
	}
	return value.Type.String()
}

// newUUID returns a UUID of version 4.
func newUUID() [16]byte {
	var id [16]byte
	rand.Read(id[:]) // it never returns an error
	id[6] = id[6]&0x0f | 0x40
	id[8] = id[8]&0x3f | 0x80
	return id
}
