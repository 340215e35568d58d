package com.postrider.spring;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.mongodb.client.MongoClient;
import com.postrider.outbox.InvalidRecordException;
import com.postrider.outbox.OutboxRecord;
import java.util.List;
import java.util.Map;
import java.util.UUID;
import org.bson.Document;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.springframework.context.annotation.AnnotationConfigApplicationContext;
import org.springframework.core.env.MapPropertySource;
import org.springframework.dao.DuplicateKeyException;
import org.springframework.data.mongodb.core.MongoTemplate;
import org.springframework.transaction.IllegalTransactionStateException;
import org.springframework.transaction.PlatformTransactionManager;
import org.springframework.transaction.support.TransactionTemplate;

class OrderServiceTest {
    private static final Order ORDER = new Order(
            "order-7", UUID.fromString("00112233-4455-4677-8899-aabbccddeeff"), List.of(new Order.Line("book", 2)));

    private static AnnotationConfigApplicationContext context;
    private static MongoTemplate mongo;
    private static OrderService orders;
    private static SpringOutbox outbox;
    private static TransactionTemplate transaction;

    @BeforeAll
    static void start() {
        String uri = System.getenv("POSTRIDER_TEST_MONGODB_URI");
        if (uri == null) {
            throw new IllegalStateException("POSTRIDER_TEST_MONGODB_URI is not set; start the servers "
                    + "(scripts/services.sh start) and run clients/java/test.sh");
        }
        String name = "java_" + UUID.randomUUID().toString().replace("-", "");
        context = new AnnotationConfigApplicationContext();
        context.getEnvironment()
                .getPropertySources()
                .addFirst(new MapPropertySource(
                        "test", Map.of("mongodb.uri", uri.replaceFirst("/\\?", "/" + name + "?"))));
        context.register(ShopConfiguration.class);
        context.refresh();
        mongo = context.getBean(MongoTemplate.class);
        orders = context.getBean(OrderService.class);
        outbox = context.getBean(SpringOutbox.class);
        transaction = new TransactionTemplate(context.getBean(PlatformTransactionManager.class));
    }

    @AfterAll
    static void stop() {
        mongo.getDb().drop();
        context.close();
    }

    @BeforeEach
    void empty() {
        mongo.getCollection("orders").deleteMany(new Document());
        mongo.getCollection("outbox_records").deleteMany(new Document());
    }

    @Test
    void orderAndRecordAreOneTransaction() {
        Object id = orders.place(ORDER);

        assertEquals(1, count("orders"));
        Document record = record();
        assertEquals(id, record.get("_id"));
        assertEquals("order-7", record.get("key"));
        assertEquals(
                new Document("_id", "order-7")
                        .append("customer", ORDER.customer())
                        .append("lines", List.of(new Document("product", "book").append("quantity", 2))),
                record.get("payload"));
    }

    @Test
    void failureRollsBothBack() {
        assertThrows(
                UnsupportedOperationException.class,
                () -> transaction.executeWithoutResult(status -> {
                    orders.place(ORDER);
                    throw new UnsupportedOperationException();
                }));

        assertEquals(0, count("orders"));
        assertEquals(0, count("outbox_records"));
    }

    @Test
    void recordOutsideOfATransactionIsRefused() {
        assertThrows(IllegalTransactionStateException.class, () -> outbox.enqueue(recordOf(1)));

        assertEquals(0, count("outbox_records"));
    }

    @Test
    void severalRecordsOfOneTransactionJoinIt() {
        transaction.executeWithoutResult(status -> {
            outbox.enqueue(recordOf(1));
            outbox.enqueue(recordOf(2));
            assertEquals(0, count("outbox_records"), "records that other clients see");
        });

        assertEquals(2, count("outbox_records"));
    }

    @Test
    void classNameOfSpringDataIsRefusedInAPayload() {
        Document converted = new Document();
        mongo.getConverter().write(ORDER, converted);
        assertTrue(converted.containsKey("_class"));

        InvalidRecordException error = assertThrows(
                InvalidRecordException.class,
                () -> transaction.executeWithoutResult(status -> outbox.enqueue(recordOf(converted))));
        assertEquals("payload._class", error.field());
    }

    @Test
    void saveReplacesARecordWhereEnqueueRefuses() {
        OutboxRecord first = OutboxRecord.builder("First").id("a").payload(1).build();
        transaction.executeWithoutResult(status -> outbox.enqueue(first));

        OutboxRecord second = OutboxRecord.builder("Second").id("a").payload(2).build();
        RuntimeException error = assertThrows(
                RuntimeException.class, () -> transaction.executeWithoutResult(status -> outbox.enqueue(second)));
        assertTrue(error.getMessage().contains("E11000"), error.getMessage());
        assertEquals("First", record().get("type"));

        // What the documentation warns of, and what insert does.
        mongo.save(new Document("_id", "a").append("type", "Third"), "outbox_records");
        assertEquals("Third", record().get("type"));
        Document fourth = new Document("_id", "a");
        assertThrows(DuplicateKeyException.class, () -> mongo.insert(fourth, "outbox_records"));
    }

    private static Document record() {
        return mongo.getCollection("outbox_records").find().first();
    }

    private static long count(String collection) {
        // Not by the template: within a transaction that sees what the transaction has written.
        return context.getBean(MongoClient.class)
                .getDatabase(mongo.getDb().getName())
                .getCollection(collection)
                .countDocuments();
    }

    private static OutboxRecord recordOf(Object payload) {
        return OutboxRecord.builder("T").payload(payload).build();
    }
}
