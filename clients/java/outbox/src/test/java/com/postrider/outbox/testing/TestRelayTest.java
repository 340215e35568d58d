package com.postrider.outbox.testing;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.postrider.outbox.Outbox;
import com.postrider.outbox.OutboxRecord;
import com.postrider.outbox.TestDatabase;
import java.nio.file.Path;
import java.time.Duration;
import java.time.Instant;
import java.util.List;
import org.bson.Document;
import org.junit.jupiter.api.Test;

class TestRelayTest {
    private static final Duration LIMIT = Duration.ofSeconds(30);

    @Test
    void messagesAreThoseOfTheRecords() {
        Instant createdAt = Instant.parse("2026-01-02T03:04:05.678Z");
        try (TestDatabase where = new TestDatabase();
                TestRelay relay =
                        TestRelay.builder(where.uri()).collectionPrefix("shop_").start()) {
            Outbox outbox =
                    Outbox.builder(where.database).collectionPrefix("shop_").build();
            where.enqueue(
                    outbox,
                    OutboxRecord.builder("A")
                            .id("a")
                            .key("k")
                            .payload(new Document("b", List.of(1, "ü")))
                            .header("h", 7)
                            .createdAt(createdAt)
                            .build());
            where.enqueue(
                    outbox,
                    OutboxRecord.builder("B")
                            .id("b")
                            .key("k")
                            .payload(new byte[] {1, 2})
                            .build());
            where.enqueue(
                    outbox, OutboxRecord.builder("C").id(7).payload("text").build());

            List<SentMessage> ofKey = relay.awaitMessages("k", 2, LIMIT);
            assertEquals(3, relay.awaitMessages(3, LIMIT).size());

            SentMessage first = ofKey.get(0);
            assertEquals("a", first.id());
            assertEquals("k", first.key());
            assertEquals("A", first.type());
            assertEquals(createdAt, first.timestamp());
            assertEquals(7, first.headers().get("h"));
            assertEquals(new Document("b", List.of(1, "ü")), first.document());
            assertArrayEquals(new byte[] {1, 2}, (byte[]) ofKey.get(1).payload());
            SentMessage last = relay.messages().stream()
                    .filter(message -> message.id().equals("7"))
                    .findFirst()
                    .orElseThrow();
            assertEquals("text", last.payload());
            assertNull(last.key());

            AssertionError error =
                    assertThrows(AssertionError.class, () -> relay.awaitMessages("k", 3, Duration.ofMillis(50)));
            assertTrue(error.getMessage().contains("sent 2 of 3 messages"), error.getMessage());
        }
    }

    @Test
    void relayThatCannotStartSaysWhy() {
        IllegalStateException error = assertThrows(IllegalStateException.class, () -> TestRelay.start("no URI"));

        assertTrue(error.getMessage().contains("mongo.uri"), error.getMessage());
    }

    @Test
    void programThatIsMissingIsNamed() {
        TestRelay.Builder builder = TestRelay.builder("mongodb://localhost/a").program(Path.of("/nowhere/postrider"));

        IllegalStateException error = assertThrows(IllegalStateException.class, builder::start);

        assertTrue(error.getMessage().contains("POSTRIDER_BIN"), error.getMessage());
    }
}
