package outbox_test

import (
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	outbox "github.com/postrider/postrider/clients/go"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// uuid is what github.com/google/uuid has.
type uuid [16]byte

var someUUID = uuid{0x12, 0x34, 0x56, 0x78, 0x9a, 0xbc, 0x4d, 0xef, 0x81, 2, 3, 4, 5, 6, 7, 8}

const someUUIDText = "12345678-9abc-4def-8102-030405060708"

func TestNewRecordMakesAUUIDOfVersion4(t *testing.T) {
	one, two := newRecord(t, 1), newRecord(t, 1)

	subtype, data, ok := one.ID().BinaryOK()
	if !ok || subtype != 4 || len(data) != 16 || data[6]>>4 != 4 || data[8]>>6 != 2 {
		t.Errorf("id = %v, want a UUID of version 4", one.ID())
	}
	if one.MessageID() == two.MessageID() {
		t.Errorf("two records have the id %s", one.MessageID())
	}
}

func TestWithIDTakesAllKindsOfIDs(t *testing.T) {
	oid := bson.NewObjectID()
	for _, id := range []struct {
		value any
		kind  bson.Type
		text  string
	}{
		{someUUID, bson.TypeBinary, someUUIDText},
		{bson.Binary{Subtype: 4, Data: someUUID[:]}, bson.TypeBinary, someUUIDText},
		{oid, bson.TypeObjectID, oid.Hex()},
		{"order-7", bson.TypeString, "order-7"},
		{int32(-7), bson.TypeInt32, "-7"},
		{int64(7), bson.TypeInt64, "7"},
		{7, bson.TypeInt32, "7"},
		{math.MaxInt64, bson.TypeInt64, "9223372036854775807"},
	} {
		record := newRecord(t, 1, outbox.WithID(id.value))

		if record.ID().Type != id.kind || record.MessageID() != id.text {
			t.Errorf("%T %v: id is %v with the text %s, want %v and %s",
				id.value, id.value, record.ID().Type, record.MessageID(), id.kind, id.text)
		}
	}
}

func TestNewRecordRefusesWrongFields(t *testing.T) {
	surrogate := "\xed\xa0\x80"
	for name, wrong := range map[string]struct {
		field   string
		payload any
		option  outbox.Option
	}{
		"generic binary id":      {"id", 1, outbox.WithID(bson.Binary{Data: someUUID[:]})},
		"bytes as id":            {"id", 1, outbox.WithID(someUUID[:])},
		"legacy UUID":            {"id", 1, outbox.WithID(bson.Binary{Subtype: 3, Data: someUUID[:]})},
		"short UUID":             {"id", 1, outbox.WithID(bson.Binary{Subtype: 4, Data: someUUID[:8]})},
		"nil id":                 {"id", 1, outbox.WithID(nil)},
		"float id":               {"id", 1, outbox.WithID(1.5)},
		"document id":            {"id", 1, outbox.WithID(bson.D{})},
		"surrogate in id":        {"id", 1, outbox.WithID(surrogate)},
		"surrogate in key":       {"key", 1, outbox.WithKey("a" + surrogate)},
		"content type":           {"contentType", 1, outbox.WithContentType("\xff")},
		"destination":            {"destination", 1, outbox.WithDestination("\xff")},
		"tenant":                 {"tenantId", 1, outbox.WithTenantID("\xff")},
		"dedup key":              {"dedupKey", 1, outbox.WithDedupKey("\xff")},
		"zero creation":          {"createdAt", 1, outbox.WithCreatedAt(time.Time{})},
		"zero due time":          {"visibleAt", 1, outbox.WithVisibleAt(time.Time{})},
		"document header":        {"headers.a", 1, outbox.WithHeader("a", bson.D{})},
		"array header":           {"headers.a", 1, outbox.WithHeader("a", []string{"b"})},
		"timestamp header":       {"headers.a", 1, outbox.WithHeader("a", bson.Timestamp{T: 1})},
		"channel header":         {"headers.a", 1, outbox.WithHeader("a", make(chan int))},
		"surrogate in header":    {"headers.a", 1, outbox.WithHeader("a", surrogate)},
		"NUL in a header's name": {"headers", 1, outbox.WithHeader("a\x00b", 1)},
		"NUL in a payload":       {"payload", bson.D{{Key: "a\x00b", Value: 1}}, nil},
		"empty id":               {"id", 1, outbox.WithID("")},
		"function payload":       {"payload", func() {}, nil},
		"surrogate in payload":   {"payload.a.0", bson.D{{Key: "a", Value: bson.A{surrogate}}}, nil},
		"surrogate in a name":    {"payload", bson.D{{Key: surrogate, Value: 1}}, nil},
		"truncated BSON":         {"payload", bson.Raw{5, 0, 0, 0}, nil},
		"map with integer keys":  {"payload", map[int]string{1: "a"}, nil},
		"integer that overflows": {"payload", uint64(math.MaxUint64), nil},
	} {
		t.Run(name, func(t *testing.T) {
			options := []outbox.Option{wrong.option}
			if wrong.option == nil {
				options = nil
			}

			_, err := outbox.NewRecord("OrderCreated", wrong.payload, options...)

			var field *outbox.FieldError
			if !errors.As(err, &field) || field.Field != wrong.field {
				t.Fatalf("error = %v, want a FieldError of %s", err, wrong.field)
			}
			if !strings.HasPrefix(err.Error(), "outbox record: "+wrong.field+": ") {
				t.Errorf("error = %v does not begin with the field", err)
			}
		})
	}
	for _, kind := range []string{"", surrogate} {
		var field *outbox.FieldError
		if _, err := outbox.NewRecord(kind, 1); !errors.As(err, &field) || field.Field != "type" {
			t.Errorf("type %q: error = %v, want a FieldError of type", kind, err)
		}
	}
}

func TestNewRecordEncodesPayloadsByTheirTypes(t *testing.T) {
	type line struct {
		SKU    string `bson:"sku"`
		Count  int    `bson:"count,omitempty"`
		Weight float64
	}
	at := time.Date(2026, 1, 2, 3, 4, 5, 6e6, time.UTC)
	for name, payload := range map[string]struct {
		value any
		want  string
	}{
		"ordered":   {bson.D{{Key: "z", Value: 1}, {Key: "a", Value: 2}}, `{"z":1,"a":2}`},
		"map":       {bson.M{"z": bson.M{"c": 1, "b": 2}, "a": nil}, `{"a":null,"z":{"b":2,"c":1}}`},
		"nested":    {bson.D{{Key: "m", Value: map[string]any{"z": 1, "y": 2, "x": 3}}}, `{"m":{"x":3,"y":2,"z":1}}`},
		"struct":    {line{SKU: "s", Weight: 1}, `{"sku":"s","weight":1.0}`},
		"slice":     {[]line{{SKU: "s", Count: 2, Weight: 0.5}}, `[{"sku":"s","count":2,"weight":0.5}]`},
		"uuid":      {bson.A{someUUID}, `[{"$binary":{"base64":"EjRWeJq8Te+BAgMEBQYHCA==","subType":"04"}}]`},
		"bytes":     {[]byte{1, 2}, `{"$binary":{"base64":"AQI=","subType":"00"}}`},
		"array":     {[2]string{"a", "b"}, `["a","b"]`},
		"string":    {"größe-€ 😀", `"größe-€ 😀"`},
		"int32":     {int32(1), `1`},
		"int64":     {int64(math.MaxInt64), `9223372036854775807`},
		"double":    {2.0, `2.0`},
		"time":      {at, `{"$date":"2026-01-02T03:04:05.006Z"}`},
		"null":      {nil, `null`},
		"nil map":   {bson.M(nil), `null`},
		"raw":       {bson.Raw("\x0c\x00\x00\x00\x10a\x00\x07\x00\x00\x00\x00"), `{"a":7}`},
		"raw value": {bson.RawValue{Type: bson.TypeBoolean, Value: []byte{1}}, `true`},
	} {
		t.Run(name, func(t *testing.T) {
			document := enqueued(t, newRecord(t, payload.value))

			got, err := bson.MarshalExtJSON(bson.D{{Key: "p", Value: document.Lookup("payload")}}, false, false)
			if want := `{"p":` + payload.want + `}`; err != nil || string(got) != want {
				t.Errorf("payload = %s (%v), want %s", got, err, want)
			}
		})
	}
}

func TestNewRecordIsNotChangedByLaterChangesOfThePayload(t *testing.T) {
	payload := bson.D{{Key: "n", Value: 1}}
	record := newRecord(t, payload)

	payload[0].Value = 2

	if n := enqueued(t, record).Lookup("payload", "n").Int32(); n != 1 {
		t.Errorf("n = %d, want 1", n)
	}
}

func TestWithHeaderKeepsTypesAndTheLastOfAName(t *testing.T) {
	headers := enqueued(t, newRecord(t, 1,
		outbox.WithHeader("text", "old"),
		outbox.WithHeader("int", 1),
		outbox.WithHeader("long", int64(1)),
		outbox.WithHeader("double", 1.0),
		outbox.WithHeader("bool", true),
		outbox.WithHeader("date", time.UnixMilli(5)),
		outbox.WithHeader("uuid", someUUID),
		outbox.WithHeader("bytes", []byte{1}),
		outbox.WithHeader("null", nil),
		outbox.WithHeader("text", "new"),
	)).Lookup("headers").Document()

	want := `{"text": "new","int": {"$numberInt":"1"},"long": {"$numberLong":"1"},"double": {"$numberDouble":"1.0"},` +
		`"bool": true,"date": {"$date":{"$numberLong":"5"}},` +
		`"uuid": {"$binary":{"base64":"EjRWeJq8Te+BAgMEBQYHCA==","subType":"04"}},` +
		`"bytes": {"$binary":{"base64":"AQ==","subType":"00"}},"null": null}`
	if got := headers.String(); got != want {
		t.Errorf("headers = %s\nwant %s", got, want)
	}
}

func TestWithKeyHashesAsTheRelayDoes(t *testing.T) {
	for key, want := range map[string]int32{
		"": 0, "order-123": 189, "user-456": 22, "customer-123": 37, "größe-€": 3, "payment:1": 227,
	} {
		if got := enqueued(t, newRecord(t, 1, outbox.WithKey(key))).Lookup("partition").Int32(); got != want {
			t.Errorf("partition of %q = %d, want %d", key, got, want)
		}
	}
}
