package com.postrider.examples;

import com.mongodb.client.ClientSession;
import com.mongodb.client.MongoClient;
import com.mongodb.client.MongoClients;
import com.mongodb.client.MongoCollection;
import com.mongodb.client.MongoDatabase;
import com.mongodb.client.model.Aggregates;
import com.mongodb.client.model.Filters;
import com.mongodb.client.model.UpdateOptions;
import com.mongodb.client.model.Updates;
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

    /** Returns how many attempts of a message have been counted. */
    int attempts(String message) {
        Document counted = collection("inbox_failures")
                .find(new Document("_id.message", message))
                .first();
        return counted == null ? 0 : counted.getInteger("attempts");
    }

    /** What a test does. */
    @FunctionalInterface
    interface Step {
        void run() throws Exception;
    }

    /** Runs a step while an open transaction has changed the document of a key: each effect on it meets a conflict. */
    void whileLocked(String collection, String key, Step step) throws Exception {
        database.runCommand(new Document("profile", 2));
        // Outside of the transaction, which would otherwise lock the collection.
        if (!database.listCollectionNames().into(new ArrayList<>()).contains(collection)) {
            database.createCollection(collection);
        }
        try (ClientSession session = client.startSession()) {
            session.startTransaction();
            collection(collection)
                    .updateOne(
                            session,
                            Filters.eq("_id", key),
                            Updates.set("locked", true),
                            new UpdateOptions().upsert(true));
            step.run();
        }
    }

    /** Returns how many writes have met a conflict since the first lock. */
    long conflicts() {
        return collection("system.profile").countDocuments(Filters.eq("errCode", 112));
    }

    /** Returns whether a write of this collection is under way in MongoDB. */
    boolean isWriting(String collection) {
        return client.getDatabase("admin")
                        .aggregate(List.of(
                                new Document("$currentOp", new Document()),
                                Aggregates.match(Filters.and(
                                        Filters.eq("ns", name + "." + collection), Filters.eq("op", "update")))))
                        .first()
                != null;
    }

    /** Ends the open transactions of a process that was killed; MongoDB itself does that after a minute. */
    void endTransactions() {
        MongoDatabase admin = client.getDatabase("admin");
        List<Document> open = admin.aggregate(List.of(
                        new Document("$currentOp", new Document("idleSessions", true)),
                        Aggregates.match(Filters.and(Filters.eq("appName", name), Filters.exists("transaction")))))
                .map(operation -> operation.get("lsid", Document.class))
                .into(new ArrayList<>());
        if (!open.isEmpty()) {
            List<Document> patterns =
                    open.stream().map(lsid -> new Document("lsid", lsid)).toList();
            admin.runCommand(new Document("killAllSessionsByPattern", patterns));
        }
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
        endTransactions(); // The removal of the database waits for them.
        database.drop();
        client.close();
    }
}
