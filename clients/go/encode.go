package outbox

import (
	"bytes"
	"encoding"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"unicode/utf8"

	"go.mongodb.org/mongo-driver/v2/bson"
)

const uuidSubtype = 4

// registry encodes as the driver does, with two exceptions: a [16]byte (such as uuid.UUID) becomes a UUID and not a
// generic binary, and the fields of a map are sorted, since a Go map has no order.
var registry = newRegistry()

func newRegistry() *bson.Registry {
	r := bson.NewRegistry()
	array, err := r.LookupEncoder(reflect.TypeFor[[1]string]())
	if err != nil {
		panic(err) // the driver has always had an encoder for arrays
	}
	r.RegisterKindEncoder(reflect.Map, bson.ValueEncoderFunc(encodeMap))
	r.RegisterKindEncoder(reflect.Array, bson.ValueEncoderFunc(
		func(ec bson.EncodeContext, vw bson.ValueWriter, val reflect.Value) error {
			if val.Len() != 16 || val.Type().Elem().Kind() != reflect.Uint8 {
				return array.EncodeValue(ec, vw, val)
			}
			id := make([]byte, 16)
			reflect.Copy(reflect.ValueOf(id), val)
			return vw.WriteBinaryWithSubtype(id, uuidSubtype)
		}))
	return r
}

func encodeMap(ec bson.EncodeContext, vw bson.ValueWriter, val reflect.Value) error {
	if err := checkMapKeys(val.Type()); err != nil {
		return err
	}
	if val.IsNil() {
		return vw.WriteNull()
	}
	fields := make(bson.D, 0, val.Len())
	for entry := val.MapRange(); entry.Next(); {
		fields = append(fields, bson.E{Key: entry.Key().String(), Value: entry.Value().Interface()})
	}
	slices.SortFunc(fields, func(a, b bson.E) int { return strings.Compare(a.Key, b.Key) })
	document, err := ec.LookupEncoder(reflect.TypeOf(fields))
	if err != nil {
		return err
	}
	return document.EncodeValue(ec, vw, reflect.ValueOf(fields))
}

func checkMapKeys(t reflect.Type) error {
	key := t.Key()
	marshals := key.Implements(reflect.TypeFor[encoding.TextMarshaler]()) ||
		key.Implements(reflect.TypeFor[bson.KeyMarshaler]())
	if key.Kind() != reflect.String || marshals {
		return fmt.Errorf("a map with keys of type %v has no defined order; use strings as keys, or a struct", key)
	}
	return nil
}

// encode encodes one value, and checks that all text in it is UTF-8: the relay can decode nothing else.
func encode(field string, value any) (bson.RawValue, error) {
	refuse := func(err error) (bson.RawValue, error) {
		return bson.RawValue{}, &FieldError{Field: field, Reason: "cannot be encoded as BSON", Err: err}
	}
	var buffer bytes.Buffer
	encoder := bson.NewEncoder(bson.NewDocumentWriter(&buffer))
	encoder.SetRegistry(registry)
	if err := encoder.Encode(bson.D{{Key: "", Value: value}}); err != nil {
		return refuse(err)
	}
	document := bson.Raw(buffer.Bytes())
	if err := document.Validate(); err != nil {
		return refuse(err)
	}
	encoded, err := document.IndexErr(0)
	if err != nil {
		return refuse(err)
	}
	return encoded.Value(), checkText(field, encoded.Value())
}

func checkText(field string, value bson.RawValue) error {
	switch value.Type {
	case bson.TypeString:
		if text, ok := value.StringValueOK(); !ok || !utf8.ValidString(text) {
			return &FieldError{Field: field, Reason: "is not valid UTF-8; send other bytes as []byte"}
		}
	case bson.TypeEmbeddedDocument, bson.TypeArray:
		// An array is encoded as a document is.
		elements, err := bson.Raw(value.Value).Elements()
		if err != nil {
			return &FieldError{Field: field, Reason: "is not valid BSON", Err: err}
		}
		for _, element := range elements {
			name := element.Key()
			if !utf8.ValidString(name) {
				return &FieldError{Field: field, Reason: "has a field whose name is not valid UTF-8"}
			}
			if err := checkText(field+"."+name, element.Value()); err != nil {
				return err
			}
		}
	}
	return nil
}

var errNotID = errors.New("not an id")

// messageID returns the text of an id, as consumers see it.
func messageID(id bson.RawValue) (string, error) {
	switch id.Type {
	case bson.TypeString:
		return id.StringValue(), nil
	case bson.TypeInt32:
		return fmt.Sprint(id.Int32()), nil
	case bson.TypeInt64:
		return fmt.Sprint(id.Int64()), nil
	case bson.TypeObjectID:
		return id.ObjectID().Hex(), nil
	case bson.TypeBinary:
		if subtype, data := id.Binary(); subtype == uuidSubtype && len(data) == 16 {
			return fmt.Sprintf("%x-%x-%x-%x-%x", data[:4], data[4:6], data[6:8], data[8:10], data[10:]), nil
		}
	}
	return "", errNotID
}
