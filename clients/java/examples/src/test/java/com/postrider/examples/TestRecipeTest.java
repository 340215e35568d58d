package com.postrider.examples;

// docs:begin test-recipe
import static org.junit.jupiter.api.Assertions.assertEquals;

import com.mongodb.client.ClientSession;
import com.postrider.outbox.Outbox;
import com.postrider.outbox.OutboxRecord;
import com.postrider.outbox.testing.SentMessage;
import com.postrider.outbox.testing.TestRelay;
import java.time.Duration;
import java.util.List;
import org.bson.Document;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;

class TestRecipeTest {
    private static final Duration LIMIT = Duration.ofSeconds(20);
    private static OwnDatabase own;
    private static TestRelay relay; // The program that POSTRIDER_BIN names, or postrider on the PATH.

    @BeforeAll
    static void startRelay() {
        own = new OwnDatabase(); // A database of the test, on a replica set.
        relay = TestRelay.start(own.uri);
    }

    @AfterAll
    static void stopRelay() {
        relay.close();
        own.close();
    }

    @Test
    void orderIsAnnounced() {
        Outbox outbox = Outbox.of(own.database);
        try (ClientSession session = own.client.startSession()) {
            session.withTransaction(
                    () -> { // What your application does.
                        outbox.enqueue(session, order("OrderCreated", 120));
                        return outbox.enqueue(session, order("OrderPaid", 120));
                    });
        }

        List<SentMessage> messages = relay.awaitMessages("order-7", 2, LIMIT);
        assertEquals(
                List.of("OrderCreated", "OrderPaid"),
                messages.stream().map(SentMessage::type).toList());
        assertEquals(120, messages.get(0).document().getInteger("total"));
    }

    private static OutboxRecord order(String type, int total) {
        return OutboxRecord.builder(type)
                .key("order-7")
                .payload(new Document("total", total))
                .build();
    }
}
// docs:end test-recipe
