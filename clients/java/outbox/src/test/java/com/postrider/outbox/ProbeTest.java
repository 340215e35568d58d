package com.postrider.outbox;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.mongodb.ConnectionString;
import com.mongodb.client.MongoClient;
import com.mongodb.client.MongoClients;
import com.mongodb.client.MongoDatabase;
import java.io.IOException;
import java.net.InetSocketAddress;
import java.net.ServerSocket;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import org.bson.Document;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

class ProbeTest {
    private static final byte[] ZERO_SEQ = "\u0011seq\0\0\0\0\0\0\0\0\0".getBytes(StandardCharsets.ISO_8859_1);

    @Test
    void probeLeavesNothingBehind() {
        try (TestDatabase where = new TestDatabase()) {
            Outbox outbox = Outbox.of(where.database);

            outbox.probe(where.client);

            assertEquals(
                    0,
                    where.database.listCollectionNames().into(new ArrayList<>()).size());
            where.enqueue(outbox, OutboxRecord.builder("T").payload(1).build());
            outbox.probe(where.client);
            assertEquals(1, where.records().countDocuments());
        }
    }

    @Test
    void probePassesTheValidatorOfTheRelay() throws Exception {
        try (TestDatabase where = new TestDatabase()) {
            where.applySchema("shop_");

            Outbox.builder(where.database).collectionPrefix("shop_").build().probe(where.client);

            assertEquals(0, where.records("shop_").countDocuments());
        }
    }

    @Test
    void probeFailsWhenTheSequenceIsChangedOnTheWay() throws IOException {
        byte[] number = ZERO_SEQ.clone();
        number[0] = 0x12; // A 64-bit integer, which MongoDB leaves as it is.

        ProbeException error = probeThrough(number);
        assertTrue(error.getMessage().contains("seq = BsonInt64{value=0}"), error.getMessage());
        assertTrue(error.getMessage().contains("proxy"), error.getMessage());
    }

    @Test
    void probeFailsWhenTheSequenceIsDroppedOnTheWay() throws IOException {
        byte[] renamed = ZERO_SEQ.clone();
        renamed[1] = 'x';

        ProbeException error = probeThrough(renamed);
        assertTrue(error.getMessage().contains("seq = absent"), error.getMessage());
    }

    private static ProbeException probeThrough(byte[] rewritten) throws IOException {
        String host = new ConnectionString(TestDatabase.environment("POSTRIDER_TEST_MONGODB_URI"))
                .getHosts()
                .get(0);
        InetSocketAddress server = new InetSocketAddress(host.split(":")[0], Integer.parseInt(host.split(":")[1]));
        try (TestDatabase where = new TestDatabase();
                RewritingProxy proxy = new RewritingProxy(server, ZERO_SEQ, rewritten);
                MongoClient client = MongoClients.create(proxy.uri())) {
            Outbox outbox = Outbox.of(client.getDatabase(where.name));
            ProbeException error = assertThrows(ProbeException.class, () -> outbox.probe(client));
            assertEquals(0, where.records().countDocuments());
            return error;
        }
    }

    @Test
    void probeFailsOnAStandaloneServer(@TempDir Path folder) throws Exception {
        int port;
        try (ServerSocket free = new ServerSocket(0)) {
            port = free.getLocalPort();
        }
        Path log = folder.resolve("log");
        Path data = Files.createDirectory(folder.resolve("data"));
        Process mongod = new ProcessBuilder(
                        TestDatabase.environment("POSTRIDER_TEST_MONGOD"),
                        "--port",
                        String.valueOf(port),
                        "--bind_ip",
                        "127.0.0.1",
                        "--dbpath",
                        data.toString())
                .redirectErrorStream(true)
                .redirectOutput(log.toFile())
                .start();
        try (MongoClient client = MongoClients.create("mongodb://127.0.0.1:" + port)) {
            Outbox outbox = Outbox.of(client.getDatabase("shop"));

            ProbeException error = assertThrows(ProbeException.class, () -> outbox.probe(client));

            assertTrue(error.getMessage().contains("connect to a replica set"), error.getMessage());
        } finally {
            mongod.destroyForcibly().waitFor();
        }
    }

    @Test
    void probeSaysSoWhenTheUserMayNotRead() {
        ConnectionString admin = new ConnectionString(TestDatabase.environment("POSTRIDER_TEST_MONGODB_AUTH_URI"));
        String name = "java_" + System.nanoTime();
        try (MongoClient root = MongoClients.create(admin)) {
            MongoDatabase database = root.getDatabase(name);
            database.runCommand(Document.parse("{createRole: 'writer', roles: [], privileges: [{resource: {db: '" + name
                    + "', collection: 'outbox_records'}, actions: ['insert', 'createCollection']}]}"));
            database.runCommand(Document.parse("{createUser: 'app', pwd: 'secret', roles: ['writer']}"));
            String uri = "mongodb://app:secret@" + String.join(",", admin.getHosts()) + "/?authSource=" + name
                    + "&replicaSet=" + admin.getRequiredReplicaSetName();
            try (MongoClient client = MongoClients.create(uri)) {
                Outbox outbox = Outbox.of(client.getDatabase(name));

                ProbeException error = assertThrows(ProbeException.class, () -> outbox.probe(client));

                assertTrue(error.getMessage().contains("grant the action find"), error.getMessage());
            } finally {
                database.runCommand(Document.parse("{dropUser: 'app'}"));
                database.runCommand(Document.parse("{dropRole: 'writer'}"));
                database.drop();
            }
        }
    }
}
