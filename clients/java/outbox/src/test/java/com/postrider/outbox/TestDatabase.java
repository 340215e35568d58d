package com.postrider.outbox;

import com.mongodb.ConnectionString;
import com.mongodb.MongoClientSettings;
import com.mongodb.client.ClientSession;
import com.mongodb.client.MongoClient;
import com.mongodb.client.MongoClients;
import com.mongodb.client.MongoCollection;
import com.mongodb.client.MongoDatabase;
import com.mongodb.event.CommandListener;
import com.mongodb.event.CommandStartedEvent;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.UUID;
import java.util.function.Consumer;
import org.bson.BsonDocument;

/** A database of its own for a test, on the replica set of the environment; dropped when it is closed. */
public final class TestDatabase implements AutoCloseable {
    public final String name = "java_" + UUID.randomUUID().toString().replace("-", "");
    /** Known to fail points: no other client has this name. */
    public final String appName = name;

    public final MongoClient client;
    public final MongoDatabase database;

    private final List<String> commands = Collections.synchronizedList(new ArrayList<>());

    public TestDatabase() {
        this(settings -> {});
    }

    public TestDatabase(Consumer<MongoClientSettings.Builder> changes) {
        MongoClientSettings.Builder settings = MongoClientSettings.builder()
                .applyConnectionString(new ConnectionString(environment("POSTRIDER_TEST_MONGODB_URI")))
                .applicationName(appName)
                .addCommandListener(new CommandListener() {
                    @Override
                    public void commandStarted(CommandStartedEvent event) {
                        commands.add(event.getCommandName());
                    }
                });
        changes.accept(settings);
        client = MongoClients.create(settings.build());
        database = client.getDatabase(name);
    }

    /** Returns a variable of the environment, without which the tests cannot run. */
    public static String environment(String variable) {
        String value = System.getenv(variable);
        if (value == null) {
            throw new IllegalStateException(variable
                    + " is not set; start the servers (scripts/services.sh start) and run " + "clients/java/test.sh");
        }
        return value;
    }

    /** Returns the URI of this database. */
    public String uri() {
        return environment("POSTRIDER_TEST_MONGODB_URI").replaceFirst("/\\?", "/" + name + "?");
    }

    public MongoCollection<BsonDocument> records() {
        return records("");
    }

    public MongoCollection<BsonDocument> records(String prefix) {
        return database.getCollection(prefix + "outbox_records", BsonDocument.class);
    }

    /** Enqueues in a transaction of its own, which commits. */
    public Object enqueue(Outbox outbox, OutboxRecord record) {
        try (ClientSession session = client.startSession()) {
            return session.withTransaction(() -> outbox.enqueue(session, record));
        }
    }

    /** Returns how often the client has sent a command. */
    public long sent(String command) {
        return List.copyOf(commands).stream().filter(command::equals).count();
    }

    /** Creates the collections as the relay does: with its validator and indexes. */
    public void applySchema(String prefix) throws IOException, InterruptedException {
        Process process = new ProcessBuilder(
                        environment("POSTRIDER_BIN"),
                        "schema",
                        "apply",
                        "--set",
                        "mongo.uri=" + uri(),
                        "--set",
                        "outbox.collection_prefix=" + prefix)
                .redirectErrorStream(true)
                .start();
        String output = new String(process.getInputStream().readAllBytes(), StandardCharsets.UTF_8);
        if (process.waitFor() != 0) {
            throw new IllegalStateException("postrider schema apply failed:\n" + output);
        }
    }

    @Override
    public void close() {
        database.drop();
        client.close();
    }
}
