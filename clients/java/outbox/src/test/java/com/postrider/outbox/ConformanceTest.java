package com.postrider.outbox;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertNotEquals;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static org.junit.jupiter.api.DynamicTest.dynamicTest;

import com.mongodb.MongoException;
import com.mongodb.client.ClientSession;
import com.mongodb.client.model.Aggregates;
import com.mongodb.client.model.Projections;
import com.postrider.outbox.Cases.Form;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.UUID;
import java.util.function.Consumer;
import java.util.stream.Stream;
import org.bson.BsonArray;
import org.bson.BsonDocument;
import org.bson.BsonNull;
import org.bson.BsonString;
import org.bson.BsonTimestamp;
import org.bson.BsonValue;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.DynamicTest;
import org.junit.jupiter.api.TestFactory;

/** Runs clients/conformance/cases.json; the Java types exclude none of the cases, since fromMap takes any type. */
class ConformanceTest {
    private static TestDatabase plain;
    private static TestDatabase validated;

    @BeforeAll
    static void createDatabases() throws Exception {
        plain = new TestDatabase();
        Cases.setup().forEach(command -> plain.database.runCommand(command.asDocument()));
        validated = new TestDatabase();
        validated.applySchema("");
        validated.applySchema("shop_");
    }

    @AfterAll
    static void dropDatabases() {
        plain.close();
        validated.close();
    }

    @TestFactory
    Stream<DynamicTest> partitions() {
        return Cases.section("partitions")
                .map(test -> dynamicTest(nameOf(test), () -> {
                    String key = test.containsKey("key")
                            ? test.getString("key").getValue()
                            : Cases.text(test.getArray("units"));

                    if (test.containsKey("refused")) {
                        OutboxRecord.Builder builder =
                                OutboxRecord.builder("T").payload(1).key(key);
                        InvalidRecordException error = assertThrows(InvalidRecordException.class, builder::build);
                        assertEquals(test.getString("refused").getValue(), error.field());
                    } else {
                        assertEquals(test.getNumber("partition").intValue(), Partition.of(key));
                    }
                }));
    }

    @TestFactory
    Stream<DynamicTest> enqueued() {
        return everywhere("enqueued", (test, form, where) -> {
            String prefix = prefixOf(test);
            Map<String, Object> hook = hookOf(test, form);
            Outbox outbox = Outbox.builder(where.database)
                    .collectionPrefix(prefix)
                    .headers(() -> hook)
                    .build();
            BsonDocument given = test.getDocument("record");
            Map<String, Object> fields = form.of(given);
            long begin = System.currentTimeMillis();
            OutboxRecord record = OutboxRecord.fromMap(fields);
            Object idBefore = record.id();

            Object id = where.enqueue(outbox, record);

            long end = System.currentTimeMillis();
            List<BsonDocument> stored = where.records(prefix).find().into(new ArrayList<>());
            assertEquals(1, stored.size());
            BsonDocument document = stored.get(0);
            assertEquals(texts(test.getArray("fields")), List.copyOf(document.keySet()));
            assertTypes(where, prefix, test.getDocument("types"));
            test.getDocument("stored").forEach((field, value) -> assertEquals(value, document.get(field), field));
            assertNotEquals(0, document.getTimestamp("seq").getValue());
            assertEquals(idBefore, id);
            if (given.get("id", BsonNull.VALUE).isNull()) {
                UUID uuid = assertInstanceOf(UUID.class, id);
                assertEquals(4, uuid.version());
                assertEquals(Checks.uuid(uuid), document.get("_id"));
            }
            if (given.get("createdAt", BsonNull.VALUE).isNull()) {
                long createdAt = document.getDateTime("createdAt").getValue();
                assertTrue(begin <= createdAt && createdAt <= end, createdAt + " is not in " + begin + ".." + end);
            }
            assertEquals(form.of(given), fields, "the record as it was given");
            assertEquals(hookOf(test, form), hook, "the headers of the hook");
        });
    }

    @TestFactory
    Stream<DynamicTest> refused() {
        return everywhere("refused", (test, form, where) -> {
            Map<String, Object> hook = hookOf(test, form);
            Outbox outbox = Outbox.builder(where.database).headers(() -> hook).build();
            assertRefused(test, where, outbox, form.of(test.getDocument("record")));
        });
    }

    @TestFactory
    Stream<DynamicTest> loneSurrogates() {
        return everywhere("loneSurrogates", (test, form, where) -> {
            String field = test.getString("field").getValue();
            String text = Cases.text(test.getArray("units"));
            Map<String, Object> fields = form.of(test.getDocument("record"));
            if (field.startsWith("headers.")) {
                fields.put("headers", Map.of(field.substring("headers.".length()), text));
            } else {
                fields.put(field, text);
            }
            assertRefused(test, where, Outbox.of(where.database), fields);
        });
    }

    @TestFactory
    Stream<DynamicTest> transactions() {
        return everywhere("transactions", (test, form, where) -> {
            Outbox outbox = Outbox.of(where.database);
            switch (test.getString("does").getValue()) {
                case "commit" -> inTransaction(where, true, session -> outbox.enqueue(session, recordOf(test, form)));
                case "abort" -> inTransaction(where, false, session -> outbox.enqueue(session, recordOf(test, form)));
                case "repeat" -> repeat(test, form, where);
                case "refuse" -> refuse(test, form, where);
                case "twice" -> twice(test, form, where);
                case "order" -> order(test, form, where);
                default -> throw new IllegalArgumentException("unknown: " + test);
            }
            assertEquals(test.getNumber("records").longValue(), where.records().countDocuments());
        });
    }

    private static void repeat(BsonDocument test, Form form, TestDatabase where) {
        int expected = test.getNumber("calls").intValue();
        BsonDocument failPoint = test.getDocument("failPoint").clone();
        failPoint.getDocument("data").append("appName", new BsonString(where.appName));
        // The server has one fail point for all of its clients: another runner may have replaced it.
        for (int tries = 1; ; tries++) {
            where.records().deleteMany(new BsonDocument());
            OutboxRecord record = recordOf(test, form);
            int[] calls = {0};
            where.client.getDatabase("admin").runCommand(failPoint);
            try (ClientSession session = where.client.startSession()) {
                session.withTransaction(() -> {
                    calls[0]++;
                    return Outbox.of(where.database).enqueue(session, record);
                });
            } finally {
                where.client
                        .getDatabase("admin")
                        .runCommand(BsonDocument.parse("{configureFailPoint: 'failCommand', mode: 'off'}"));
            }
            assertEquals(record.storedId, where.records().find().first().get("_id"));
            if (calls[0] == expected || tries == 5) {
                assertEquals(expected, calls[0]);
                return;
            }
        }
    }

    private static void refuse(BsonDocument test, Form form, TestDatabase where) {
        long before = where.sent("insert");
        String state = test.getString("session").getValue();
        try (ClientSession session = where.client.startSession()) {
            if (!state.equals("none") && !state.equals("neverStarted")) {
                session.startTransaction();
                where.records().countDocuments(session);
                if (state.equals("committed")) {
                    session.commitTransaction();
                } else {
                    session.abortTransaction();
                }
            }
            ClientSession given = state.equals("none") ? null : session;
            Outbox outbox = Outbox.of(where.database);
            OutboxRecord record = recordOf(test, form);
            NoTransactionException error =
                    assertThrows(NoTransactionException.class, () -> outbox.enqueue(given, record));
            assertEquals(test.getString("field").getValue(), error.field());
            assertTrue(error.getMessage().contains(error.field()));
        }
        assertEquals(before, where.sent("insert"));
    }

    private static void twice(BsonDocument test, Form form, TestDatabase where) {
        Outbox outbox = Outbox.of(where.database);
        OutboxRecord first = OutboxRecord.fromMap(form.of(test.getDocument("first")));
        OutboxRecord second = OutboxRecord.fromMap(form.of(test.getDocument("second")));
        boolean together = test.getBoolean("oneTransaction").getValue();
        if (!together) {
            where.enqueue(outbox, first);
        }
        inTransaction(where, false, session -> {
            if (together) {
                outbox.enqueue(session, first);
            }
            MongoException error = assertThrows(MongoException.class, () -> outbox.enqueue(session, second));
            assertEquals(test.getNumber("code").intValue(), error.getCode());
        });
    }

    private static void order(BsonDocument test, Form form, TestDatabase where) {
        Outbox outbox = Outbox.of(where.database);
        List<OutboxRecord> records = test.getArray("entries").stream()
                .map(entry -> OutboxRecord.fromMap(form.of(entry.asDocument())))
                .toList();
        if (test.getBoolean("oneTransaction").getValue()) {
            inTransaction(where, true, session -> records.forEach(record -> outbox.enqueue(session, record)));
        } else {
            records.forEach(record -> where.enqueue(outbox, record));
        }
        BsonTimestamp last = new BsonTimestamp(0, 0);
        for (OutboxRecord record : records) {
            BsonDocument stored = where.records()
                    .find(new BsonDocument("_id", record.storedId))
                    .first();
            assertTrue(stored.getTimestamp("seq").compareTo(last) > 0, stored + " after " + last);
            last = stored.getTimestamp("seq");
        }
    }

    private static void assertRefused(
            BsonDocument test, TestDatabase where, Outbox outbox, Map<String, Object> fields) {
        long before = where.sent("insert");
        inTransaction(where, false, session -> {
            InvalidRecordException error = assertThrows(
                    InvalidRecordException.class, () -> outbox.enqueue(session, OutboxRecord.fromMap(fields)));
            assertEquals(test.getString("field").getValue(), error.field());
            assertTrue(error.getMessage().contains(error.field()), error.getMessage());
        });
        assertEquals(before, where.sent("insert"));
        assertNull(where.records().find().first());
    }

    private static void assertTypes(TestDatabase where, String prefix, BsonDocument types) {
        types.forEach((path, type) -> {
            BsonDocument found = where.records(prefix)
                    .aggregate(List.of(Aggregates.project(
                            Projections.computed("t", new BsonDocument("$type", new BsonString("$" + path))))))
                    .first();
            assertEquals(type, found.get("t"), path);
        });
    }

    /** Runs each case of a section with values of BSON and of Java, these also with the validator of the relay. */
    private static Stream<DynamicTest> everywhere(String section, Body body) {
        return Stream.of(
                        run(section, Form.BSON, plain, "BSON", body),
                        run(section, Form.JAVA, plain, "Java", body),
                        run(section, Form.JAVA, validated, "Java, validated", body))
                .flatMap(tests -> tests);
    }

    private static Stream<DynamicTest> run(String section, Form form, TestDatabase where, String how, Body body) {
        return Cases.section(section)
                .map(test -> dynamicTest(nameOf(test) + " [" + how + "]", () -> {
                    where.records(prefixOf(test)).deleteMany(new BsonDocument());
                    body.run(test, form, where);
                }));
    }

    private static String prefixOf(BsonDocument test) {
        return test.getString("collectionPrefix", new BsonString("")).getValue();
    }

    private static void inTransaction(TestDatabase where, boolean commits, Consumer<ClientSession> body) {
        try (ClientSession session = where.client.startSession()) {
            session.startTransaction();
            body.accept(session);
            if (commits) {
                session.commitTransaction();
            } else {
                session.abortTransaction();
            }
        }
    }

    private static OutboxRecord recordOf(BsonDocument test, Form form) {
        return OutboxRecord.fromMap(form.of(test.getDocument("record")));
    }

    private static Map<String, Object> hookOf(BsonDocument test, Form form) {
        return form.of(test.getDocument("hook", new BsonDocument()));
    }

    private static String nameOf(BsonDocument test) {
        return test.getString("name").getValue();
    }

    private static List<String> texts(BsonArray array) {
        return array.stream().map(BsonValue::asString).map(BsonString::getValue).toList();
    }

    private interface Body {
        void run(BsonDocument test, Form form, TestDatabase where);
    }
}
