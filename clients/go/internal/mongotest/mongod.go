package mongotest

import (
	"fmt"
	"net"
	"os/exec"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

// ReplicaSet starts a replica set of one member, whose commands can be made to fail, and ends it with the test.
// failCommand is one fail point for a whole server, so tests that use it do not share one.
func ReplicaSet(t testing.TB) (uri string) {
	t.Helper()
	uri = startMongod(t, "--replSet", "rs0", "--setParameter", "enableTestCommands=1")
	admin := Connect(t, uri).Database("admin")
	config := bson.D{{Key: "_id", Value: "rs0"}, {Key: "members", Value: bson.A{
		bson.D{{Key: "_id", Value: 0}, {Key: "host", Value: hostOf(uri)}},
	}}}
	if err := admin.RunCommand(t.Context(), bson.D{{Key: "replSetInitiate", Value: config}}).Err(); err != nil {
		t.Fatal(err)
	}
	Eventually(t, "mongod is the primary", func() bool {
		var hello struct {
			IsWritablePrimary bool `bson:"isWritablePrimary"`
		}
		err := admin.RunCommand(t.Context(), bson.D{{Key: "hello", Value: 1}}).Decode(&hello)
		return err == nil && hello.IsWritablePrimary
	})
	return uri
}

// Standalone starts a MongoDB without a replica set, and ends it with the test.
func Standalone(t testing.TB) (uri string) {
	t.Helper()
	return startMongod(t)
}

// FreePort returns a port on which no process listens.
func FreePort(t testing.TB) int {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	return listener.Addr().(*net.TCPAddr).Port
}

func startMongod(t testing.TB, arguments ...string) (uri string) {
	t.Helper()
	host := fmt.Sprintf("127.0.0.1:%d", FreePort(t))
	uri = "mongodb://" + host + "/?directConnection=true"
	_, port, _ := net.SplitHostPort(host)
	mongod := exec.Command(Env(t, "POSTRIDER_TEST_MONGOD"), append([]string{
		"--bind_ip", "127.0.0.1", "--port", port, "--dbpath", t.TempDir(),
		"--wiredTigerCacheSizeGB", "0.25", "--nounixsocket",
	}, arguments...)...)
	if err := mongod.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = mongod.Process.Kill()
		_ = mongod.Wait()
	})
	client := Connect(t, uri)
	Eventually(t, "mongod answers", func() bool { return client.Ping(t.Context(), nil) == nil })
	return uri
}

func hostOf(uri string) string { return options.Client().ApplyURI(uri).Hosts[0] }
