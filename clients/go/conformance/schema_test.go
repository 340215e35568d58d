package conformance

import (
	"encoding/json"
	"math/rand/v2"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// ecmaEscape is how JSON Schema's regular expressions, but not Go's, write a code point.
var ecmaEscape = regexp.MustCompile(`\\u([0-9a-fA-F]{4})`)

func compileSchema(t *testing.T) *jsonschema.Schema {
	t.Helper()
	compiler := jsonschema.NewCompiler()
	compiler.UseRegexpEngine(func(pattern string) (jsonschema.Regexp, error) {
		return regexp.Compile(ecmaEscape.ReplaceAllString(pattern, `\x{$1}`))
	})
	schema, err := compiler.Compile(filepath.Join(folder, "record.schema.json"))
	if err != nil {
		t.Fatal(err)
	}
	return schema
}

// checkVerdicts compares the verdict of the library, or of the compiler, with that of the schema.
func checkVerdicts(t *testing.T, schema *jsonschema.Schema, fields bson.D) {
	t.Helper()
	text, err := bson.MarshalExtJSON(fields, true, false)
	if err != nil {
		t.Fatal(err)
	}
	var instance any
	if err := json.Unmarshal(text, &instance); err != nil {
		t.Fatal(err)
	}
	bySchema := schema.Validate(instance)
	_, byLibrary := newRecord(fields)
	if (bySchema == nil) != (byLibrary == nil) {
		t.Errorf("%s\nthe library says: %v\nthe schema says: %v", text, byLibrary, bySchema)
	}
}

func TestSchemaAgreesWithTheLibraryOnAllCases(t *testing.T) {
	schema, loaded := compileSchema(t), loadCases(t)
	for _, c := range loaded.Enqueued {
		t.Run(c.Name, func(t *testing.T) { checkVerdicts(t, schema, bson.D(c.Record)) })
	}
	for _, c := range loaded.Refused {
		if len(c.Hook) == 0 { // the record itself is right
			t.Run(c.Name, func(t *testing.T) { checkVerdicts(t, schema, bson.D(c.Record)) })
		}
	}
}

func TestSchemaAgreesWithTheLibraryOnRandomRecords(t *testing.T) {
	schema := compileSchema(t)
	seed := rand.Uint64()
	random := rand.New(rand.NewPCG(seed, 0))
	for range 5000 {
		checkVerdicts(t, schema, randomRecord(random))
	}
	if t.Failed() {
		t.Logf("seed %d", seed)
	}
}

// randomRecord has two fields of random types at most, so that many are valid.
func randomRecord(random *rand.Rand) bson.D {
	uuid := bson.Binary{Subtype: 4, Data: make([]byte, 16)}
	values := []any{
		nil, "", "text", "größe 😀", true, int32(7), int64(1) << 40, 1.5, bson.DateTime(1760000000123),
		bson.NewObjectID(),
		uuid, bson.Binary{Subtype: 3, Data: uuid.Data}, bson.Binary{Subtype: 4, Data: uuid.Data[:15]},
		bson.Binary{Data: []byte{1}}, bson.Timestamp{T: 1}, bson.D{}, bson.D{{Key: "a", Value: int32(1)}}, bson.A{"a"},
		bson.MinKey{}, bson.Regex{Pattern: "a"},
	}
	anyOf := func() any { return values[random.IntN(len(values))] }
	record := bson.D{{Key: "type", Value: "OrderCreated"}, {Key: "payload", Value: anyOf()}}
	fields := []string{"id", "key", "type", "contentType", "headers", "destination", "tenantId", "createdAt",
		"visibleAt", "dedupKey", "status", "x"}
	for range random.IntN(3) {
		field := fields[random.IntN(len(fields))]
		value := anyOf()
		if field == "headers" && random.IntN(4) > 0 {
			value = bson.D{{Key: "one", Value: anyOf()}, {Key: "two", Value: "text"}}
		}
		set(&record, field, value)
	}
	if random.IntN(20) == 0 {
		return record[1:]
	}
	return record
}

func set(record *bson.D, field string, value any) {
	for i := range *record {
		if (*record)[i].Key == field {
			(*record)[i].Value = value
			return
		}
	}
	*record = append(*record, bson.E{Key: field, Value: value})
}
