package com.postrider.outbox;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.mongodb.MongoClientSettings;
import com.mongodb.MongoException;
import com.mongodb.client.ClientSession;
import com.mongodb.client.MongoClient;
import com.mongodb.client.MongoClients;
import java.math.BigDecimal;
import java.time.Instant;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.UUID;
import org.bson.BsonBinary;
import org.bson.BsonDateTime;
import org.bson.BsonDocument;
import org.bson.BsonInt32;
import org.bson.BsonString;
import org.bson.BsonValue;
import org.bson.Document;
import org.bson.UuidRepresentation;
import org.bson.codecs.configuration.CodecRegistries;
import org.bson.codecs.pojo.PojoCodecProvider;
import org.bson.codecs.pojo.annotations.BsonProperty;
import org.bson.types.Binary;
import org.bson.types.ObjectId;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;

class OutboxTest {
    private static TestDatabase where;
    private static Outbox outbox;

    @BeforeAll
    static void createDatabase() {
        where = new TestDatabase();
        outbox = Outbox.of(where.database);
    }

    @AfterAll
    static void dropDatabase() {
        where.close();
    }

    @BeforeEach
    void empty() {
        where.records().deleteMany(new BsonDocument());
    }

    @ParameterizedTest
    @EnumSource(UuidRepresentation.class)
    void uuidsAreOfSubtype4WhateverRepresentationTheClientHas(UuidRepresentation representation) {
        UUID uuid = UUID.fromString("00112233-4455-4677-8899-aabbccddeeff");
        try (TestDatabase other = new TestDatabase(settings -> settings.uuidRepresentation(representation)
                .codecRegistry(CodecRegistries.fromRegistries(
                        MongoClientSettings.getDefaultCodecRegistry(),
                        CodecRegistries.fromProviders(PojoCodecProvider.builder()
                                .register(Order.class)
                                .build()))))) {
            Order order = new Order();
            order.id = uuid;
            OutboxRecord record = OutboxRecord.builder("T")
                    .id(uuid)
                    .header("uuid", uuid)
                    .payload(new Document("map", Map.of("a", List.of(uuid)))
                            .append("pojo", order)
                            .append("array", new UUID[] {uuid}))
                    .build();

            assertEquals(uuid, other.enqueue(Outbox.of(other.database), record));

            BsonBinary expected = new BsonBinary(uuid, UuidRepresentation.STANDARD);
            BsonDocument stored = other.records().find().first();
            assertEquals(expected, stored.get("_id"));
            assertEquals(expected, stored.getDocument("headers").get("uuid"));
            BsonDocument payload = stored.getDocument("payload");
            assertEquals(expected, payload.getDocument("map").getArray("a").get(0));
            assertEquals(expected, payload.getDocument("pojo").get("id"));
            assertEquals(expected, payload.getArray("array").get(0));
        }
    }

    @Test
    void legacyUuidIsRefusedWithItsPath() {
        Binary legacy = new Binary((byte) 3, new byte[16]);

        assertRefused("payload.orders.1.id", new Document("orders", List.of(1, new Document("id", legacy))));
        assertRefused("payload", legacy);
        assertRefused("payload.a", new BsonDocument("a", new BsonBinary((byte) 3, new byte[16])));
        OutboxRecord record =
                OutboxRecord.builder("T").payload(1).header("a", legacy).build();
        assertEquals("headers.a", refusalOf(record).field());
    }

    @Test
    void existingRecordIsNeverReplaced() {
        where.enqueue(outbox, OutboxRecord.builder("First").id("a").payload(1).build());
        OutboxRecord second = OutboxRecord.builder("Second").id("a").payload(2).build();

        MongoException error = assertThrows(MongoException.class, () -> where.enqueue(outbox, second));

        assertEquals(11000, error.getCode());
        assertEquals("First", where.records().find().first().getString("type").getValue());
    }

    @Test
    void classFieldIsRefusedUnlessItIsPermitted() {
        Document payload = new Document("lines", List.of(new Document("_class", "com.shop.Line")));

        InvalidRecordException error = assertRefused("payload.lines.0._class", payload);
        assertTrue(error.getMessage().contains("permitClassFields"));

        Outbox permitting = Outbox.builder(where.database).permitClassFields().build();
        where.enqueue(permitting, OutboxRecord.builder("T").payload(payload).build());
        BsonDocument stored = where.records().find().first();
        assertEquals(
                new BsonString("com.shop.Line"),
                stored.getDocument("payload")
                        .getArray("lines")
                        .get(0)
                        .asDocument()
                        .get("_class"));
    }

    @Test
    void classFieldOfAnObjectThatACodecEncodesIsRefused() {
        Outbox ofPojos = Outbox.of(where.database.withCodecRegistry(CodecRegistries.fromRegistries(
                MongoClientSettings.getDefaultCodecRegistry(),
                CodecRegistries.fromProviders(
                        PojoCodecProvider.builder().register(Typed.class).build()))));

        InvalidRecordException error = refusalOf(ofPojos, recordOf(new Document("order", new Typed())));
        assertEquals("payload.order._class", error.field());
    }

    @Test
    void valueWithoutCodecIsRefusedWithItsPath() {
        InvalidRecordException error = assertRefused("payload.a.0", new Document("a", List.of(new Order())));

        assertTrue(error.getMessage().contains(Order.class.getName()), error.getMessage());
    }

    @Test
    void textThatIsNotUnicodeIsRefusedWithinThePayload() {
        assertRefused("payload", "a\ud800");
        assertRefused("payload.a.1", Map.of("a", List.of("b", "\udc00")));
        assertRefused("payload.a", new BsonDocument("a", new BsonString("\ud800b")));
        assertRefused("payload.a", Map.of("a", Map.of("b\ud800", 1)));
        assertRefused("payload.a", Map.of("a", Map.of("b\0", 1)));
        assertRefused("payload.7", Map.of(7, 1));
    }

    @Test
    void payloadThatContainsItselfIsRefused() {
        Document payload = new Document();
        payload.append("self", payload);

        assertRefused("payload", payload);
    }

    @Test
    void payloadsOfTheLibraryOfJavaKeepTheirTypes() {
        Instant at = Instant.ofEpochMilli(1760000000123L);
        Document payload = new Document("at", at)
                .append("short", (short) 7)
                .append("bytes", new byte[] {1, 2})
                .append("price", new BigDecimal("12.50"))
                .append("kind", Kind.LARGE)
                .append("set", List.of(1, 2L));

        where.enqueue(outbox, recordOf(payload));

        BsonDocument stored = where.records().find().first().getDocument("payload");
        BsonDocument expected = BsonDocument.parse("{at: {$date: {$numberLong: '1760000000123'}}, short: 7, "
                + "bytes: {$binary: {base64: 'AQI=', subType: '00'}}, price: {$numberDecimal: '12.50'}, kind: 'LARGE', "
                + "set: [1, {$numberLong: '2'}]}");
        assertEquals(expected, stored);
    }

    @Test
    void headersThatAreNoScalarsAreRefused() {
        for (Object value : List.of(Map.of("a", 1), List.of(1), new Object[] {1}, new Document())) {
            OutboxRecord record =
                    OutboxRecord.builder("T").payload(1).header("a", value).build();
            assertEquals("headers.a", refusalOf(record).field());
        }
    }

    @Test
    void recordDoesNotChangeWithTheMapOfItsHeaders() {
        Map<String, Object> headers = new HashMap<>(Map.of("a", 1));
        OutboxRecord record =
                OutboxRecord.builder("T").payload(1).headers(headers).build();
        headers.put("b", 2);

        where.enqueue(outbox, record);

        BsonValue stored = where.records().find().first().get("headers");
        assertEquals(new BsonDocument("a", new BsonInt32(1)), stored);
    }

    @Test
    void hookIsAskedAtEachEnqueueAndMayReturnNull() {
        List<Map<String, String>> answers = new ArrayList<>();
        answers.add(null);
        answers.add(Map.of("traceparent", "a"));
        Outbox traced =
                Outbox.builder(where.database).headers(() -> answers.remove(0)).build();

        where.enqueue(traced, OutboxRecord.builder("T").id(1).payload(1).build());
        where.enqueue(traced, OutboxRecord.builder("T").id(2).payload(1).build());

        assertFalse(record(1).containsKey("headers"));
        assertEquals(new BsonString("a"), record(2).getDocument("headers").get("traceparent"));
    }

    @Test
    void idsOfAllKindsAreThoseOfTheRecord() {
        ObjectId objectId = new ObjectId();
        OutboxRecord.Builder builder = OutboxRecord.builder("T").payload(null);

        assertInstanceOf(UUID.class, builder.build().id());
        assertFalse(builder.build().id().equals(builder.build().id()));
        assertEquals(objectId, where.enqueue(outbox, builder.id(objectId).build()));
        assertEquals("a", where.enqueue(outbox, builder.id("a").build()));
        assertEquals(7, where.enqueue(outbox, builder.id(7).build()));
        assertEquals(
                7_000_000_000L, where.enqueue(outbox, builder.id(7_000_000_000L).build()));
    }

    @Test
    void timesAreThoseOfTheRecord() {
        Instant createdAt = Instant.parse("2026-01-02T03:04:05.678912Z");
        where.enqueue(
                outbox,
                OutboxRecord.builder("T")
                        .payload(1)
                        .createdAt(createdAt)
                        .visibleAt(createdAt.plusSeconds(1))
                        .build());

        BsonDocument stored = where.records().find().first();
        assertEquals(new BsonDateTime(createdAt.toEpochMilli()), stored.get("createdAt"));
        assertEquals(new BsonDateTime(createdAt.toEpochMilli() + 1000), stored.get("visibleAt"));
        OutboxRecord.Builder beyond = OutboxRecord.builder("T").payload(1).createdAt(Instant.MAX);
        assertEquals(
                "createdAt",
                assertThrows(InvalidRecordException.class, beyond::build).field());
    }

    @Test
    void sessionOfAnotherClientIsRefused() {
        try (MongoClient other = MongoClients.create(TestDatabase.environment("POSTRIDER_TEST_MONGODB_URI"));
                ClientSession session = other.startSession()) {
            session.startTransaction();

            assertThrows(RuntimeException.class, () -> outbox.enqueue(session, recordOf(1)));
        }
        assertEquals(0, where.records().countDocuments());
    }

    @Test
    void nullInPlaceOfARecordIsRefused() {
        try (ClientSession session = where.client.startSession()) {
            session.startTransaction();
            InvalidRecordException error =
                    assertThrows(InvalidRecordException.class, () -> outbox.enqueue(session, null));
            assertEquals("record", error.field());
            assertEquals("outbox record: record: is null; build one with OutboxRecord.builder", error.getMessage());
        }
    }

    @Test
    void prefixThatNoCollectionCanHaveIsRefused() {
        Outbox.Builder builder = Outbox.builder(where.database);

        assertThrows(IllegalArgumentException.class, () -> builder.collectionPrefix("a$"));
    }

    @Test
    void textOfARecordHasNoPayload() {
        OutboxRecord record =
                OutboxRecord.builder("T").id("a").key("k").payload("secret").build();

        assertEquals("OutboxRecord[id=a, type=T, key=k]", record.toString());
    }

    private static BsonDocument record(int id) {
        return where.records().find(new BsonDocument("_id", new BsonInt32(id))).first();
    }

    private static OutboxRecord recordOf(Object payload) {
        return OutboxRecord.builder("T").payload(payload).build();
    }

    private static InvalidRecordException assertRefused(String field, Object payload) {
        InvalidRecordException error = refusalOf(recordOf(payload));
        assertEquals(field, error.field());
        return error;
    }

    private static InvalidRecordException refusalOf(OutboxRecord record) {
        return refusalOf(outbox, record);
    }

    private static InvalidRecordException refusalOf(Outbox outbox, OutboxRecord record) {
        long before = where.sent("insert");
        InvalidRecordException error = assertThrows(InvalidRecordException.class, () -> where.enqueue(outbox, record));
        assertEquals(before, where.sent("insert"));
        return error;
    }

    private enum Kind {
        LARGE
    }

    /** A class that a driver encodes by a codec for beans. */
    public static final class Order {
        @BsonProperty("id")
        public UUID id;
    }

    /** As Spring Data would write it. */
    public static final class Typed {
        @BsonProperty("_class")
        public String type = "com.shop.Order";
    }
}
