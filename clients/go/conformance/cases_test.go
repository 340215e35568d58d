// Package conformance runs the cases that all client libraries pass (clients/conformance).
package conformance

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"github.com/postrider/postrider/clients/go/internal/mongotest"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/event"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

// folder has the cases and the JSON Schema.
const folder = "../../conformance"

// document is canonical extended JSON, with the order of its fields.
type document bson.D

func (d *document) UnmarshalJSON(text []byte) error {
	var fields bson.D
	if err := bson.UnmarshalExtJSON(text, true, &fields); err != nil {
		return err
	}
	*d = document(fields)
	return nil
}

type cases struct {
	Format     int
	Collection string
	Setup      []document
	Partitions []struct {
		Name, Refused string
		Key           string
		Units         []uint16
		Partition     int32
	}
	Enqueued       []enqueuedCase
	Refused        []refusedCase
	LoneSurrogates []struct {
		Name, Field string
		Record      document
		Units       []uint16
	}
	Transactions []transactionCase
}

type enqueuedCase struct {
	Name             string
	Record, Hook     document
	CollectionPrefix string
	Fields           []string
	Types            map[string]string
	Stored           document
}

type refusedCase struct {
	Name, Field  string
	Record, Hook document
}

type transactionCase struct {
	Name, Does, Session, Field string
	Record, First, Second      document
	FailPoint                  document
	Entries                    []document
	OneTransaction             bool
	Calls, Records, Code       int
}

func loadCases(t testing.TB) cases {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(folder, "cases.json"))
	if err != nil {
		t.Fatal(err)
	}
	var loaded cases
	if err := json.Unmarshal(text, &loaded); err != nil {
		t.Fatal(err)
	}
	if loaded.Format != 1 {
		t.Fatalf("format = %d: this runner knows format 1", loaded.Format)
	}
	if len(loaded.Partitions) == 0 || len(loaded.Enqueued) == 0 || len(loaded.Refused) == 0 ||
		len(loaded.LoneSurrogates) == 0 || len(loaded.Transactions) == 0 {
		t.Fatal("a section without cases")
	}
	return loaded
}

// server is a MongoDB with a database for the cases of one test, one after the other.
type server struct {
	client  *mongo.Client
	db      *mongo.Database
	cases   cases
	inserts *counter
}

// counter counts insert commands.
type counter struct{ n int }

func (c *counter) monitor() *event.CommandMonitor {
	return &event.CommandMonitor{Started: func(_ context.Context, e *event.CommandStartedEvent) {
		if e.CommandName == "insert" {
			c.n++
		}
	}}
}

func newServer(t *testing.T, uri string) *server {
	t.Helper()
	inserts := &counter{}
	client := mongotest.Connect(t, uri, options.Client().SetMonitor(inserts.monitor()).SetAppName(t.Name()))
	return &server{client, mongotest.Database(t, client), loadCases(t), inserts}
}

// clear brings the collection into the state that each case begins with.
func (s *server) clear(t *testing.T, prefix string) *mongo.Collection {
	t.Helper()
	records := s.db.Collection(prefix + s.cases.Collection)
	if _, err := records.DeleteMany(t.Context(), bson.D{}); err != nil {
		t.Fatal(err)
	}
	for _, setup := range s.cases.Setup {
		command := slices.Clone(bson.D(setup))
		command[0].Value = fmt.Sprint(prefix, command[0].Value)
		if err := s.db.RunCommand(t.Context(), command).Err(); err != nil {
			t.Fatal(err)
		}
	}
	s.inserts.n = 0
	return records
}

// applySchema makes the collections as the relay does, with validator and indexes.
func (s *server) applySchema(t *testing.T, prefixes ...string) {
	t.Helper()
	for _, prefix := range prefixes {
		command := exec.Command(mongotest.Env(t, "POSTRIDER_BIN"), "schema", "apply",
			"--set", "mongo.uri="+mongotest.URI(t, s.db), "--set", "outbox.collection_prefix="+prefix)
		if output, err := command.CombinedOutput(); err != nil {
			t.Fatalf("schema apply: %v\n%s", err, output)
		}
	}
}

// inTransaction runs f by the driver's helper, which repeats it.
func (s *server) inTransaction(t testing.TB, f func(context.Context) error) error {
	t.Helper()
	session, err := s.client.StartSession()
	if err != nil {
		t.Fatal(err)
	}
	defer session.EndSession(t.Context())
	_, err = session.WithTransaction(t.Context(), func(ctx context.Context) (any, error) { return nil, f(ctx) })
	return err
}

func find(t *testing.T, records *mongo.Collection) []bson.Raw {
	t.Helper()
	cursor, err := records.Find(t.Context(), bson.D{}, options.Find().SetSort(bson.D{{Key: "seq", Value: 1}}))
	if err != nil {
		t.Fatal(err)
	}
	var found []bson.Raw
	if err := cursor.All(t.Context(), &found); err != nil {
		t.Fatal(err)
	}
	return found
}

// text encodes UTF-16 code units as UTF-8, and a lone surrogate in three bytes.
func text(units []uint16) string {
	var encoded []byte
	for i := 0; i < len(units); i++ {
		unit := rune(units[i])
		if unit>>10 == 0xd800>>10 && i+1 < len(units) && units[i+1]>>10 == 0xdc00>>10 {
			i++
			unit = 0x10000 + (unit-0xd800)<<10 + rune(units[i]) - 0xdc00
		}
		if unit>>11 == 0xd800>>11 {
			encoded = append(encoded, 0xe0|byte(unit>>12), 0x80|byte(unit>>6&0x3f), 0x80|byte(unit&0x3f))
			continue
		}
		encoded = append(encoded, string(unit)...)
	}
	return string(encoded)
}
