package com.postrider.examples;

import com.mongodb.client.MongoClient;
import com.mongodb.client.MongoClients;
import com.mongodb.client.MongoCollection;
import com.mongodb.client.MongoDatabase;
import java.util.ArrayList;
import java.util.List;
import java.util.UUID;
import org.bson.Document;

/** A database of its own for a test; dropped when it is closed. */
final class OwnDatabase implements AutoCloseable {
    final String name = "java_" + UUID.randomUUID().toString().replace("-", "");
    /** Known to fail points by its appName: no other client has it. */
    final String uri = Example.environment("POSTRIDER_TEST_MONGODB_URI")
            .replaceFirst("/\\?", "/" + name + "?appName=" + name + "&");

    final MongoClient client = MongoClients.create(uri);
    final MongoDatabase database = client.getDatabase(name);

    MongoCollection<Document> collection(String collection) {
        return database.getCollection(collection);
    }

    /** Returns how many effects the messages had so far. */
    int effects(String collection) {
        int effects = 0;
        for (Document document : collection(collection).find()) {
            effects += document.getList("n", Integer.class).size();
        }
        return effects;
    }

    /** Returns the effects on a key, in their order. */
    List<Integer> effectsOn(String collection, String key) {
        Document found = collection(collection).find(new Document("_id", key)).first();
        return found == null ? List.of() : found.getList("n", Integer.class);
    }

    List<Document> all(String collection) {
        return collection(collection).find().into(new ArrayList<>());
    }

    /**
     * Lets the next commit of a client of this database fail, so that the driver repeats the transaction. Returns how
     * often the fail point of the server has been hit.
     */
    int failNextCommit() {
        return client.getDatabase("admin")
                .runCommand(Document.parse("{configureFailPoint: 'failCommand', mode: {times: 1}, data: {"
                        + "failCommands: ['commitTransaction'], errorCode: 251, "
                        + "errorLabels: ['TransientTransactionError'], appName: '" + name + "'}}"))
                .getInteger("count");
    }

    /** Turns the fail point off, and returns whether a commit has failed: another test may have replaced it. */
    boolean hasCommitFailedSince(int hits) {
        Document answer = client.getDatabase("admin")
                .runCommand(new Document("configureFailPoint", "failCommand").append("mode", "off"));
        return answer.getInteger("count") > hits;
    }

    @Override
    public void close() {
        database.drop();
        client.close();
    }
}
