package outbox_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"strings"
	"testing"

	outbox "github.com/postrider/postrider/clients/go"
	"github.com/postrider/postrider/clients/go/internal/mongotest"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

func TestProbeLeavesNothingBehind(t *testing.T) {
	db := mongotest.Database(t, mongotest.Client(t))

	if err := outbox.New(db).Probe(t.Context()); err != nil {
		t.Fatal(err)
	}

	names, err := db.ListCollectionNames(t.Context(), bson.D{})
	if err != nil || len(names) != 0 {
		t.Errorf("collections = %v (%v), want none", names, err)
	}
}

func TestProbeFailsWithoutReplicaSet(t *testing.T) {
	client := mongotest.Connect(t, mongotest.Standalone(t))

	err := outbox.New(client.Database("shop")).Probe(t.Context())

	if !errors.Is(err, outbox.ErrTransactionsUnsupported) || !strings.Contains(err.Error(), "must be a replica set") {
		t.Errorf("error = %v, want ErrTransactionsUnsupported with a remedy", err)
	}
}

func TestProbeFailsWhenSeqIsNotFilledIn(t *testing.T) {
	field := []byte("\x11seq\x00")
	for want, corrupt := range map[string]func([]byte){
		// What a service does that stores the zero as it is.
		"it is still zero": func(reply []byte) {
			if at := bytes.Index(reply, field); at >= 0 {
				clear(reply[at+len(field):][:8])
			}
		},
		"it is absent": func(reply []byte) {
			if at := bytes.Index(reply, field); at >= 0 {
				reply[at+3] = 'Q'
			}
		},
		"it is of the type 64-bit integer": func(reply []byte) {
			if at := bytes.Index(reply, field); at >= 0 {
				reply[at] = 0x12
			}
		},
	} {
		t.Run(want, func(t *testing.T) {
			client := mongotest.Client(t, options.Client().SetDirect(true).
				SetHosts([]string{proxy(t, mongotest.Env(t, "POSTRIDER_TEST_MONGODB_URI"), corrupt)}))

			err := outbox.New(mongotest.Database(t, client)).Probe(t.Context())

			if !errors.Is(err, outbox.ErrSeqNotFilled) || !strings.Contains(err.Error(), want) {
				t.Errorf("error = %v, want ErrSeqNotFilled and %q", err, want)
			}
		})
	}
}

func TestProbeReturnsErrorOfTheValidator(t *testing.T) {
	db := mongotest.Database(t, mongotest.Client(t))
	validator := bson.D{{Key: "region", Value: bson.D{{Key: "$exists", Value: true}}}}
	err := db.CreateCollection(t.Context(), "outbox_records", options.CreateCollection().SetValidator(validator))
	if err != nil {
		t.Fatal(err)
	}

	err = outbox.New(db).Probe(t.Context())

	if err == nil || !strings.Contains(err.Error(), "Document failed validation") {
		t.Errorf("error = %v, want that of the validator", err)
	}
}

// proxy stands in front of MongoDB and changes its replies.
func proxy(t *testing.T, uri string, change func([]byte)) (address string) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	server := options.Client().ApplyURI(uri).Hosts[0]
	go func() {
		for {
			near, err := listener.Accept()
			if err != nil {
				return
			}
			far, err := net.Dial("tcp", server)
			if err != nil {
				_ = near.Close()
				continue
			}
			go func() {
				_, _ = io.Copy(far, near)
				_ = far.Close()
			}()
			go func() {
				defer func() { _ = near.Close() }()
				for {
					message, err := readMessage(far)
					if err != nil {
						return
					}
					change(message)
					if _, err := near.Write(message); err != nil {
						return
					}
				}
			}()
		}
	}()
	return listener.Addr().String()
}

// readMessage reads one message of MongoDB's protocol, which begins with its length.
func readMessage(from io.Reader) ([]byte, error) {
	var length [4]byte
	if _, err := io.ReadFull(from, length[:]); err != nil {
		return nil, err
	}
	message := make([]byte, binary.LittleEndian.Uint32(length[:]))
	copy(message, length[:])
	_, err := io.ReadFull(from, message[4:])
	return message, err
}
