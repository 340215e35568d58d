package conformance

import (
	"context"
	"errors"
	"strings"
	"testing"

	outbox "github.com/postrider/postrider/clients/go"
	"github.com/postrider/postrider/clients/go/internal/mongotest"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// Why the compiler refuses a case.
const (
	required  = "NewRecord has it as a parameter"
	text1     = "the option takes a string"
	time1     = "the option takes a time.Time"
	eachOne   = "WithHeader takes the headers one by one"
	noOption  = "there is no option for it"
	ownString = "the parameter of NewRecord is a string"
)

// excluded names the cases that the compiler excludes. Each is checked: see newRecord.
var excluded = map[string]string{
	"no type": required, "no payload": required,
	"type is null": ownString, "type is a number": ownString,
	"key is a number": text1, "key is a boolean": text1, "key is an ObjectId": text1, "key is a document": text1,
	"key is bytes": text1, "contentType is a number": text1, "contentType is an array": text1,
	"destination is a number": text1, "destination is an array": text1,
	"tenantId is a number": text1, "tenantId is an array": text1,
	"dedupKey is a number": text1, "dedupKey is an array": text1,
	"headers is a string": eachOne, "headers is an array": eachOne, "headers is a number": eachOne,
	"createdAt is a string": time1, "createdAt is a number": time1, "createdAt is a timestamp": time1,
	"visibleAt is a string": time1, "visibleAt is a number": time1, "visibleAt is a timestamp": time1,
	"status is not a field of a client's record": noOption, "seq is not a field of a client's record": noOption,
	"partition is not a field of a client's record": noOption, "_id is not a field of a client's record": noOption,
	"attempt is not a field of a client's record": noOption, "content_type is not a field of a client's record": noOption,
}

func TestRefused(t *testing.T) {
	s := newServer(t, mongotest.Env(t, "POSTRIDER_TEST_MONGODB_URI"))
	unknown := make(map[string]bool)
	for name := range excluded {
		unknown[name] = true
	}
	for _, c := range s.cases.Refused {
		delete(unknown, c.Name)
		t.Run(c.Name, func(t *testing.T) {
			err := s.refused(t, bson.D(c.Record), bson.D(c.Hook))

			var compiler *notCompiled
			if errors.As(err, &compiler) {
				if excluded[c.Name] == "" || compiler.field != c.Field {
					t.Errorf("%v, which is not in the list of excluded cases with the field %s", err, c.Field)
				}
				return
			}
			if excluded[c.Name] != "" {
				t.Errorf("is in the list of excluded cases, and the compiler permits it")
			}
			checkField(t, err, c.Field)
		})
	}
	for name := range unknown {
		t.Errorf("the list of excluded cases names %q, which does not exist", name)
	}
}

func TestLoneSurrogates(t *testing.T) {
	s := newServer(t, mongotest.Env(t, "POSTRIDER_TEST_MONGODB_URI"))
	for _, c := range s.cases.LoneSurrogates {
		t.Run(c.Name, func(t *testing.T) {
			record := bson.D(c.Record)
			if name, isHeader := strings.CutPrefix(c.Field, "headers."); isHeader {
				record = append(record, bson.E{Key: "headers", Value: bson.D{{Key: name, Value: text(c.Units)}}})
			} else {
				record = append(record, bson.E{Key: c.Field, Value: text(c.Units)})
			}

			checkField(t, s.refused(t, record, nil), c.Field)
		})
	}
}

// refused enqueues a record in a running transaction. Whatever the error, nothing may be sent.
func (s *server) refused(t *testing.T, fields, hook bson.D) error {
	t.Helper()
	records := s.clear(t, "")
	box := outbox.New(s.db, outbox.WithHeaderHook(func(context.Context) bson.D { return hook }))

	refused := s.inTransaction(t, func(ctx context.Context) error {
		record, err := newRecord(fields)
		if err != nil {
			return err
		}
		_, err = box.Enqueue(ctx, record)
		return err
	})

	if s.inserts.n != 0 {
		t.Errorf("%d inserts were sent to MongoDB, want 0", s.inserts.n)
	}
	if n := len(find(t, records)); n != 0 {
		t.Errorf("%d records, want 0", n)
	}
	return refused
}

func checkField(t *testing.T, err error, want string) {
	t.Helper()
	var field *outbox.FieldError
	if !errors.As(err, &field) || field.Field != want || !strings.Contains(err.Error(), want) {
		t.Errorf("error = %v, want a FieldError of %s", err, want)
	}
}
