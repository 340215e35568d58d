package com.postrider.examples;

import static org.junit.jupiter.api.Assertions.assertEquals;

import java.util.List;
import java.util.Map;
import java.util.stream.IntStream;
import org.bson.Document;
import org.junit.jupiter.api.Test;

class VersionedReceiverTest {
    private static final int VERSIONS = 60;

    @Test
    void eachEventIsAppliedOnceAlthoughTheConsumerIsKilled() throws Exception {
        try (OwnDatabase own = new OwnDatabase();
                OwnQueue queue = new OwnQueue()) {
            // Two events in each even version, one in each odd one; some come twice.
            int events = 0;
            for (int version = 1; version <= VERSIONS; version++) {
                int count = version % 2 == 0 ? 2 : 1;
                for (int index = 0; index < count; index++) {
                    publish(queue, "order-7", version, index, count, events);
                    if (version % 5 == 0) {
                        publish(queue, "order-7", version, index, count, events);
                    }
                    events++;
                }
            }
            for (int effects : List.of(10, 40)) {
                try (Example consumer = new Example(VersionedReceiver.class, environment(own, queue))) {
                    consumer.await(effects + " effects", () -> own.effects("states") >= effects);
                    consumer.kill();
                }
            }
            int all = events;
            try (Example consumer = new Example(VersionedReceiver.class, environment(own, queue))) {
                publish(queue, "end", 1, 0, 1, 1);
                consumer.await("all effects", () -> own.effects("states") > all);
            }

            assertEquals(IntStream.range(0, all).boxed().toList(), own.effectsOn("states", "order-7"));
            assertEquals(0, queue.deadLetters());
        }
    }

    @Test
    void eventBehindAGapLeavesTheQueueAfterFiveAttempts() throws Exception {
        try (OwnDatabase own = new OwnDatabase();
                OwnQueue queue = new OwnQueue();
                Example consumer = new Example(VersionedReceiver.class, environment(own, queue))) {
            publish(queue, "a", 1, 0, 2, 1);
            publish(queue, "a", 2, 0, 1, 3); // The second event of version 1 is missing.
            publish(queue, "b", 2, 0, 1, 1); // So is version 1.
            publish(queue, "a", 1, 1, 2, 2);
            publish(queue, "a", 2, 0, 1, 3);

            consumer.await(
                    "the events behind", () -> own.effectsOn("states", "a").size() == 3);
            consumer.await("dead letters", () -> queue.deadLetters() == 2);

            assertEquals(List.of(1, 2, 3), own.effectsOn("states", "a"));
            assertEquals(0, own.effectsOn("states", "b").size());
            for (Document failure : own.all("inbox_failures")) {
                assertEquals(5, failure.getInteger("attempts"), failure.toJson());
            }
        }
    }

    private static void publish(OwnQueue queue, String aggregate, long version, int index, int count, int n)
            throws Exception {
        Map<String, Object> headers = Map.of(
                "message-key", aggregate,
                "aggregate-id", aggregate,
                "aggregate-version", version,
                "event-index", index,
                "event-count", count);
        queue.publish(aggregate + "-" + version + "-" + index, headers, new Document("n", n).toJson());
    }

    private static Map<String, String> environment(OwnDatabase own, OwnQueue queue) {
        return Map.of(
                "MONGODB_URI", own.uri,
                "AMQP_URI", Example.environment("POSTRIDER_TEST_AMQP_URI"),
                "QUEUE", queue.name);
    }
}
