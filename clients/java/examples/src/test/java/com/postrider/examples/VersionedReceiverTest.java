package com.postrider.examples;

import static org.junit.jupiter.api.Assertions.assertEquals;

import com.mongodb.client.ClientSession;
import com.mongodb.client.model.Filters;
import com.mongodb.client.model.UpdateOptions;
import com.mongodb.client.model.Updates;
import java.util.List;
import java.util.Map;
import java.util.stream.IntStream;
import java.util.stream.Stream;
import org.bson.Document;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

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

    /** Without the headers aggregate-id and event-count. */
    @Test
    void eventsOfAnEarlierReleaseAreAppliedOnce() throws Exception {
        try (OwnDatabase own = new OwnDatabase();
                OwnQueue queue = new OwnQueue();
                Example consumer = new Example(VersionedReceiver.class, environment(own, queue))) {
            int[][] places = {{1, 0}, {1, 1}, {2, 0}, {3, 0}, {3, 1}};
            for (int n : List.of(0, 1, 2, 1, 2, 3, 4, 0)) {
                publishEarlier(queue, places[n][0], places[n][1], n);
            }
            publish(queue, "a", 4, 0, 1, 5);

            consumer.await("the last one", () -> own.effectsOn("states", "a").contains(5));
            assertEquals(List.of(0, 1, 2, 3, 4, 5), own.effectsOn("states", "a"));
            assertEquals(List.of(), own.all("inbox_failures"));
        }
    }

    /** Each state is at (2, 1) of 3 when an event comes that is old, or behind a gap. */
    @Test
    void eventThatIsNotTheNextOneIsNotApplied() throws Exception {
        try (OwnDatabase own = new OwnDatabase();
                OwnQueue queue = new OwnQueue();
                Example consumer = new Example(VersionedReceiver.class, environment(own, queue))) {
            int[][] old = {{1, 0}, {1, 5}, {2, 0}, {2, 1}};
            int[][] early = {{2, 3}, {3, 0}, {3, 1}, {3, 2}, {4, 0}};
            List<int[]> places = Stream.of(old, early).flatMap(Stream::of).toList();
            for (int[] place : places) {
                String aggregate = place[0] + "." + place[1];
                publish(queue, aggregate, 1, 0, 1, 1);
                publish(queue, aggregate, 2, 0, 3, 2);
                publish(queue, aggregate, 2, 1, 3, 3);
                publish(queue, aggregate, place[0], place[1], 3, 99);
                publish(queue, aggregate, 2, 2, 3, 4);
            }

            for (int[] place : places) {
                String aggregate = place[0] + "." + place[1];
                consumer.await(
                        "the next one of " + aggregate,
                        () -> own.effectsOn("states", aggregate).contains(4));
                assertEquals(List.of(1, 2, 3, 4), own.effectsOn("states", aggregate), aggregate);
            }
            consumer.await("dead letters", () -> queue.deadLetters() == early.length);
            assertEquals(List.of(), own.all("inbox_failures"));
        }
    }

    /** The guard is part of the write: another consumer can be between the read and the write of this one. */
    @ParameterizedTest
    @ValueSource(ints = {0, 1, 2})
    void eventThatAnotherConsumerAppliesMeanwhileIsAppliedOnce(int applied) throws Exception {
        try (OwnDatabase own = new OwnDatabase();
                OwnQueue queue = new OwnQueue();
                Example consumer = new Example(VersionedReceiver.class, environment(own, queue));
                ClientSession other = own.client.startSession()) {
            own.database.createCollection("states");
            int[][] places = {{1, 0, 1}, {2, 0, 2}, {2, 1, 2}, {3, 0, 1}};
            for (int n = 0; n < applied; n++) {
                publish(queue, "a", places[n][0], places[n][1], places[n][2], n);
            }
            consumer.await(
                    "the earlier ones", () -> own.effectsOn("states", "a").size() == applied);
            other.startTransaction();
            own.collection("states")
                    .updateOne(
                            other,
                            Filters.eq("_id", "a"),
                            Updates.combine(
                                    Updates.set("version", (long) places[applied][0]),
                                    Updates.set("index", (long) places[applied][1]),
                                    Updates.set("count", places[applied][2]),
                                    Updates.push("n", applied)),
                            new UpdateOptions().upsert(true));
            publish(queue, "a", places[applied][0], places[applied][1], places[applied][2], applied);
            consumer.await("a write that waits", () -> own.isWriting("states"));
            other.commitTransaction();
            publish(queue, "a", places[applied + 1][0], places[applied + 1][1], places[applied + 1][2], applied + 1);

            consumer.await("the next one", () -> own.effectsOn("states", "a").contains(applied + 1));
            assertEquals(IntStream.range(0, applied + 2).boxed().toList(), own.effectsOn("states", "a"));
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
            assertEquals(
                    2 * 5,
                    consumer.output()
                            .lines()
                            .filter(line -> line.contains("IllegalStateException"))
                            .count());
            assertEquals(List.of(), own.all("inbox_failures"));
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

    private static void publishEarlier(OwnQueue queue, long version, int index, int n) throws Exception {
        Map<String, Object> headers = Map.of("message-key", "a", "aggregate-version", version, "event-index", index);
        queue.publish("a-" + version + "-" + index, headers, new Document("n", n).toJson());
    }

    private static Map<String, String> environment(OwnDatabase own, OwnQueue queue) {
        return Map.of(
                "MONGODB_URI", own.uri,
                "AMQP_URI", Example.environment("POSTRIDER_TEST_AMQP_URI"),
                "QUEUE", queue.name);
    }
}
