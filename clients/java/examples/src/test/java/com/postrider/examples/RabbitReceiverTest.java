package com.postrider.examples;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.stream.IntStream;
import org.bson.Document;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

class RabbitReceiverTest {
    private static final int KEYS = 4;
    private static final int MESSAGES = 160;
    private static final List<Integer> KILLS = List.of(20, 100);

    @Test
    void eachMessageHasItsEffectOnceAlthoughTheConsumerIsKilled() throws Exception {
        try (OwnDatabase own = new OwnDatabase();
                OwnQueue queue = new OwnQueue()) {
            for (int i = 0; i < MESSAGES; i++) {
                publish(queue, i);
                if (i % 10 == 9) { // As after a crash of the relay.
                    publish(queue, i - 1);
                    publish(queue, i);
                }
            }
            Map<String, String> environment = environment(own, queue);
            for (int effects : KILLS) {
                try (Example consumer = new Example(RabbitReceiver.class, environment)) {
                    consumer.await(effects + " effects", () -> own.effects("received") >= effects);
                    consumer.kill();
                }
            }
            try (Example consumer = new Example(RabbitReceiver.class, environment)) {
                consumer.await("all effects", () -> own.effects("received") >= MESSAGES);
                queue.publish("end", Map.of("message-key", "end"), "{\"n\": 1}");
                consumer.await("the end of the queue", () -> own.effects("received") > MESSAGES);
            }

            List<Integer> once = IntStream.range(0, MESSAGES / KEYS).boxed().toList();
            for (int key = 0; key < KEYS; key++) {
                assertEquals(once, own.effectsOn("received", "key-" + key));
            }
            assertEquals(0, queue.deadLetters());
            assertEquals(MESSAGES + 1, own.collection("inbox").countDocuments());
        }
    }

    @Test
    void transactionThatTheDriverRepeatsHasItsEffectOnce() throws Exception {
        try (OwnDatabase own = new OwnDatabase();
                OwnQueue queue = new OwnQueue();
                Example consumer = new Example(RabbitReceiver.class, environment(own, queue))) {
            boolean failed = false;
            for (int i = 0; i < 5 * KEYS && !failed; i += KEYS) {
                int effects = i / KEYS + 1;
                int hits = own.failNextCommit();
                publish(queue, i);
                consumer.await("the effect", () -> own.effects("received") == effects);
                failed = own.hasCommitFailedSince(hits);
                assertEquals(IntStream.range(0, effects).boxed().toList(), own.effectsOn("received", "key-0"));
            }
            assertTrue(failed, "no commit has failed");
        }
    }

    @Test
    void effectIsThereOnceWhenTheConsumerIsKilledWithinItsTransaction() throws Exception {
        try (OwnDatabase own = new OwnDatabase();
                OwnQueue queue = new OwnQueue()) {
            queue.publish("message", Map.of("message-key", "held"), "{\"n\": 7}");
            killInEffect(own, queue);
            own.endTransactions();
            try (Example consumer = new Example(RabbitReceiver.class, environment(own, queue))) {
                consumer.await("the effect", () -> own.effects("received") == 1);
            }
            assertEquals(List.of(7), own.effectsOn("received", "held"));
        }
    }

    @ParameterizedTest
    @ValueSource(strings = {"quorum", "classic"})
    void messageThatEndsTheProcessLeavesTheQueueAfterFiveAttempts(String type) throws Exception {
        try (OwnDatabase own = new OwnDatabase();
                OwnQueue queue = new OwnQueue(type)) {
            queue.publish("poison", Map.of("message-key", "held"), "{\"n\": 1}");
            queue.publish("behind", Map.of("message-key", "a"), "{\"n\": 2}");
            for (int attempt = 1; attempt <= 5; attempt++) {
                killInEffect(own, queue);
            }

            try (Example consumer = new Example(RabbitReceiver.class, environment(own, queue))) {
                consumer.await("the message behind it", () -> own.effects("received") == 1);
                consumer.await("a dead letter", () -> queue.deadLetters() == 1);
            }
            assertEquals(List.of(2), own.effectsOn("received", "a"));
            assertEquals(List.of(), own.effectsOn("received", "held"));
        }
    }

    /** Kills a consumer while it waits for the document of the key "held". */
    private static void killInEffect(OwnDatabase own, OwnQueue queue) throws Exception {
        own.whileLocked("received", "held", () -> {
            long conflicts = own.conflicts();
            try (Example consumer = new Example(RabbitReceiver.class, environment(own, queue))) {
                consumer.await("a conflict", () -> own.conflicts() > conflicts);
                consumer.kill();
            }
        });
    }

    @Test
    void messageThatNeverWorksLeavesTheQueueAfterFiveAttempts() throws Exception {
        try (OwnDatabase own = new OwnDatabase();
                OwnQueue queue = new OwnQueue();
                Example consumer = new Example(RabbitReceiver.class, environment(own, queue))) {
            queue.publish("poison", Map.of("message-key", "a"), "not JSON");
            queue.publish(null, null, "{}");
            queue.publish("", Map.of("message-key", "a"), "{\"n\": 1}");
            queue.publish("no-key", new HashMap<>(), "{\"n\": 1}");
            publish(queue, 0);

            consumer.await("dead letters", () -> queue.deadLetters() == 4);
            consumer.await("the message behind them", () -> own.effects("received") == 1);

            assertEquals("not JSON", queue.takeDeadLetter());
            assertEquals(List.of(), own.all("inbox_failures"));
            assertEquals(1, own.collection("inbox").countDocuments());

            // An operator moves it back.
            queue.publish("poison", Map.of("message-key", "a"), "not JSON");
            consumer.await("the dead letter", () -> queue.deadLetters() == 4);
            for (var attempts : Map.of("poison", 2 * 5L, "no-key", 5L).entrySet()) {
                String line = "message=" + attempts.getKey() + "}";
                assertEquals(
                        attempts.getValue(),
                        consumer.output()
                                .lines()
                                .filter(each -> each.contains(line))
                                .count());
            }
        }
    }

    private static void publish(OwnQueue queue, int i) throws Exception {
        String payload = new Document("n", i / KEYS).toJson();
        queue.publish("message-" + i, Map.of("message-key", "key-" + i % KEYS), payload);
    }

    private static Map<String, String> environment(OwnDatabase own, OwnQueue queue) {
        return Map.of(
                "MONGODB_URI", own.uri,
                "AMQP_URI", Example.environment("POSTRIDER_TEST_AMQP_URI"),
                "QUEUE", queue.name);
    }
}
