package com.postrider.examples;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNotNull;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.UUID;
import java.util.stream.IntStream;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;
import org.bson.Document;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;

class KafkaReceiverTest {
    private static final int KEYS = 4;
    private static final int MESSAGES = 160;
    private static final List<Integer> KILLS = List.of(20, 80);

    private final Map<String, Object> brokers =
            Map.of("bootstrap.servers", Example.environment("POSTRIDER_TEST_KAFKA_BROKERS"));
    private final String topic = "java-" + UUID.randomUUID();
    private final Admin admin = Admin.create(brokers);
    private final KafkaProducer<String, String> producer =
            new KafkaProducer<>(brokers, new StringSerializer(), new StringSerializer());
    private final OwnDatabase own = new OwnDatabase();

    @BeforeEach
    void createTopics() throws Exception {
        List<NewTopic> topics = List.of(new NewTopic(topic, 2, (short) 1), new NewTopic(topic + ".dead", 1, (short) 1));
        admin.createTopics(topics).all().get();
    }

    @AfterEach
    void deleteTopics() throws Exception {
        admin.deleteTopics(List.of(topic, topic + ".dead")).all().get();
        admin.close();
        producer.close();
        own.close();
    }

    @Test
    void eachMessageHasItsEffectOnceAlthoughTheConsumerIsKilled() throws Exception {
        for (int i = 0; i < MESSAGES; i++) {
            publish(i);
            if (i % 10 == 9) { // As after a crash of the relay.
                publish(i - 1);
                publish(i);
            }
        }
        for (int effects : KILLS) {
            try (Example consumer = new Example(KafkaReceiver.class, environment())) {
                consumer.await(effects + " effects", () -> own.effects("received") >= effects);
                consumer.kill();
            }
        }
        try (Example consumer = new Example(KafkaReceiver.class, environment())) {
            consumer.await("all effects", () -> own.effects("received") >= MESSAGES);
            assertEquals(143, consumer.stop(), "the exit code of a JVM that SIGTERM ends");
            assertEquals(
                    "stopped",
                    consumer.output().lines().reduce((first, last) -> last).orElse(""));
        }

        List<Integer> once = IntStream.range(0, MESSAGES / KEYS).boxed().toList();
        for (int key = 0; key < KEYS; key++) {
            assertEquals(once, own.effectsOn("received", "key-" + key));
        }
        assertEquals(MESSAGES, own.collection("inbox").countDocuments());
    }

    @Test
    void transactionThatTheDriverRepeatsHasItsEffectOnce() throws Exception {
        try (Example consumer = new Example(KafkaReceiver.class, environment())) {
            boolean failed = false;
            for (int i = 0; i < 5 * KEYS && !failed; i += KEYS) {
                int effects = i / KEYS + 1;
                int hits = own.failNextCommit();
                publish(i);
                consumer.await("the effect", () -> own.effects("received") == effects);
                failed = own.hasCommitFailedSince(hits);
                assertEquals(IntStream.range(0, effects).boxed().toList(), own.effectsOn("received", "key-0"));
            }
            assertTrue(failed, "no commit has failed");
        }
    }

    @Test
    void effectIsThereOnceWhenTheConsumerIsKilledWithinItsTransaction() throws Exception {
        send("held", "message", "{\"n\": 7}");
        killInEffect(0);
        own.endTransactions();
        try (Example consumer = new Example(KafkaReceiver.class, environment())) {
            consumer.await("the effect", () -> own.effects("received") == 1);
        }
        assertEquals(List.of(7), own.effectsOn("received", "held"));
    }

    /** The process ends while it applies the message: here it waits for a lock then, and is killed. */
    @Test
    void messageThatEndsTheProcessGoesToTheTopicOfDeadOnesAfterFiveAttempts() throws Exception {
        send(0, "a", "before", "{\"n\": 1}");
        send(0, "held", "poison", "{\"n\": 2}");
        send(0, "a", "behind", "{\"n\": 3}");
        // The first process applies the one before: those behind it are not counted in this process.
        for (int counted = 0; counted <= 5; counted++) {
            killInEffect(counted);
        }

        try (Example consumer = new Example(KafkaReceiver.class, environment())) {
            consumer.await("the message behind it", () -> own.effects("received") == 2);
            assertEquals("poison", header(readDead(1).get(0), "message-id"));
            consumer.await(
                    "the end of its count", () -> own.all("inbox_failures").isEmpty());
        }
        assertEquals(List.of(1, 3), own.effectsOn("received", "a"));
        assertEquals(List.of(), own.effectsOn("received", "held"));
    }

    /** Each offset is committed on its own: those before a kill do not come again, and a dead one is not dead twice. */
    @Test
    void messagesBeforeAKillAreNotRepeated() throws Exception {
        send(0, "a", "dead", "not JSON");
        for (int n = 0; n < 10; n++) {
            send(0, "a", "before-" + n, "{\"n\": " + n + "}");
        }
        send(0, "held", "last", "{\"n\": 10}");
        killInEffect(0);
        own.endTransactions();
        try (Example consumer = new Example(KafkaReceiver.class, environment())) {
            consumer.await("the last effect", () -> own.effects("received") == 11);
            assertEquals("", consumer.output());
        }
        assertEquals("dead", header(readDead(1).get(0), "message-id"));
    }

    /** Kills a consumer while it waits for the document of the key "held", at this counted attempt of "poison". */
    private void killInEffect(int attempt) throws Exception {
        own.whileLocked("received", "held", () -> {
            long conflicts = own.conflicts();
            try (Example consumer = new Example(KafkaReceiver.class, environment())) {
                consumer.await("a conflict", () -> own.conflicts() > conflicts);
                assertEquals(attempt, own.attempts("poison"));
                consumer.kill();
            }
        });
    }

    @Test
    void messageThatNeverWorksGoesToTheTopicOfDeadOnesAfterFiveAttempts() throws Exception {
        send("a", "poison", "not JSON");
        send("a", null, "{}");
        publish(0);
        try (Example consumer = new Example(KafkaReceiver.class, environment())) {
            consumer.await("the message behind them", () -> own.effects("received") == 1);

            List<ConsumerRecord<String, String>> dead = readDead(2);
            ConsumerRecord<String, String> poison = dead.stream()
                    .filter(letter -> letter.value().equals("not JSON"))
                    .findFirst()
                    .orElseThrow();
            assertEquals("a", poison.key());
            assertEquals("poison", header(poison, "message-id"));
            assertNotNull(header(poison, "failure"));
            assertEquals(
                    5,
                    consumer.output()
                            .lines()
                            .filter(line -> line.contains("message=poison"))
                            .count());
            consumer.await(
                    "the end of its count", () -> own.all("inbox_failures").isEmpty());
        }
    }

    @Test
    void incompleteMessagesGoToTheTopicOfDeadOnes() throws Exception {
        send(0, null, null, null); // A tombstone of another program.
        for (byte[] id : new byte[][] {null, {}}) {
            ProducerRecord<String, String> message = new ProducerRecord<>(topic, 0, "a", "{\"n\": 1}");
            message.headers().add("message-id", id);
            producer.send(message).get();
        }
        send(0, "a", "tombstone", null);
        send(0, null, "no-key", "{\"n\": 1}");
        send(0, "a", "behind", "{\"n\": 2}");
        try (Example consumer = new Example(KafkaReceiver.class, environment())) {
            consumer.await("the message behind them", () -> own.effects("received") == 1);
        }

        assertEquals(List.of(2), own.effectsOn("received", "a"));
        List<String> failures =
                readDead(5).stream().map(letter -> header(letter, "failure")).toList();
        String noId = "not a message of Postrider: it has no message-id";
        assertEquals(List.of(noId, noId, noId), failures.subList(0, 3));
        String incomplete = "java.lang.IllegalArgumentException: a message without a key or a value";
        assertEquals(List.of(incomplete, incomplete), failures.subList(3, 5));
    }

    private List<ConsumerRecord<String, String>> readDead(int count) {
        try (KafkaConsumer<String, String> consumer =
                new KafkaConsumer<>(new HashMap<>(brokers), new StringDeserializer(), new StringDeserializer())) {
            List<TopicPartition> partitions = List.of(new TopicPartition(topic + ".dead", 0));
            consumer.assign(partitions);
            consumer.seekToBeginning(partitions);
            List<ConsumerRecord<String, String>> dead = new ArrayList<>();
            long deadline = System.nanoTime() + Duration.ofSeconds(60).toNanos();
            while (dead.size() < count && System.nanoTime() < deadline) {
                consumer.poll(Duration.ofSeconds(1)).forEach(dead::add);
            }
            assertEquals(count, dead.size());
            return dead;
        }
    }

    private static String header(ConsumerRecord<String, String> message, String name) {
        return new String(message.headers().lastHeader(name).value(), StandardCharsets.UTF_8);
    }

    private void publish(int i) throws Exception {
        send("key-" + i % KEYS, "message-" + i, new Document("n", i / KEYS).toJson());
    }

    /** Publishes as the relay does. */
    private void send(String key, String id, String payload) throws Exception {
        send(null, key, id, payload);
    }

    private void send(Integer partition, String key, String id, String payload) throws Exception {
        ProducerRecord<String, String> message = new ProducerRecord<>(topic, partition, key, payload);
        if (id != null) {
            message.headers().add("message-id", id.getBytes(StandardCharsets.UTF_8));
        }
        producer.send(message).get();
    }

    private Map<String, String> environment() {
        return Map.of(
                "MONGODB_URI",
                own.uri,
                "KAFKA_BROKERS",
                Example.environment("POSTRIDER_TEST_KAFKA_BROKERS"),
                "TOPIC",
                topic,
                "GROUP",
                topic,
                "INSTANCE",
                "one");
    }
}
