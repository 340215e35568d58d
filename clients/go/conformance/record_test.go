package conformance

import (
	"fmt"
	"reflect"

	outbox "github.com/postrider/postrider/clients/go"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// notCompiled is the error of a record that a Go program cannot express: the compiler refuses it.
type notCompiled struct{ field string }

func (e *notCompiled) Error() string { return fmt.Sprintf("%s: the compiler refuses it", e.field) }

// optionOf has the option of each optional field but headers.
var optionOf = map[string]any{
	"id":          outbox.WithID,
	"key":         outbox.WithKey,
	"contentType": outbox.WithContentType,
	"destination": outbox.WithDestination,
	"tenantId":    outbox.WithTenantID,
	"createdAt":   outbox.WithCreatedAt,
	"visibleAt":   outbox.WithVisibleAt,
	"dedupKey":    outbox.WithDedupKey,
}

// newRecord makes a record from the fields of a case. The error is a *notCompiled, or that of the library.
func newRecord(fields bson.D) (*outbox.Record, error) {
	var options []outbox.Option
	var kind *string
	var payload *any
	for _, field := range fields {
		switch field.Key {
		case "type":
			text, ok := field.Value.(string)
			if !ok {
				return nil, &notCompiled{field.Key}
			}
			kind = &text
		case "payload":
			payload = &field.Value
		case "headers":
			headers, ok := field.Value.(bson.D)
			if !ok && field.Value != nil {
				return nil, &notCompiled{field.Key}
			}
			for _, header := range headers {
				options = append(options, outbox.WithHeader(header.Key, header.Value))
			}
		default:
			option, err := optionFor(field)
			if err != nil {
				return nil, err
			}
			if option != nil {
				options = append(options, option)
			}
		}
	}
	if kind == nil {
		return nil, &notCompiled{"type"}
	}
	if payload == nil {
		return nil, &notCompiled{"payload"}
	}
	return outbox.NewRecord(*kind, *payload, options...)
}

// optionFor calls the option of a field, as far as the compiler permits this value.
func optionFor(field bson.E) (outbox.Option, error) {
	option, known := optionOf[field.Key]
	if !known {
		return nil, &notCompiled{field.Key}
	}
	if field.Value == nil {
		return nil, nil
	}
	value := reflect.ValueOf(field.Value)
	if at, ok := field.Value.(bson.DateTime); ok {
		value = reflect.ValueOf(at.Time()) // what a Go program has in the place of a BSON date
	}
	call := reflect.ValueOf(option)
	if !value.Type().AssignableTo(call.Type().In(0)) {
		return nil, &notCompiled{field.Key}
	}
	return call.Call([]reflect.Value{value})[0].Interface().(outbox.Option), nil
}
