package com.postrider.examples;

// docs:begin consumer-kafka
import com.mongodb.ConnectionString;
import com.mongodb.ErrorCategory;
import com.mongodb.MongoException;
import com.mongodb.MongoSocketException;
import com.mongodb.MongoTimeoutException;
import com.mongodb.MongoWriteException;
import com.mongodb.client.ClientSession;
import com.mongodb.client.MongoClient;
import com.mongodb.client.MongoClients;
import com.mongodb.client.MongoCollection;
import com.mongodb.client.MongoDatabase;
import com.mongodb.client.model.Filters;
import com.mongodb.client.model.FindOneAndUpdateOptions;
import com.mongodb.client.model.IndexOptions;
import com.mongodb.client.model.Indexes;
import com.mongodb.client.model.ReturnDocument;
import com.mongodb.client.model.UpdateOptions;
import com.mongodb.client.model.Updates;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Date;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerConfig;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.WakeupException;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;
import org.bson.Document;

/** Takes the messages of a topic, each once: its effect and a row of the inbox are one transaction. */
public final class KafkaReceiver {
    private static final String CONSUMER = "orders"; // Each consumer has rows of its own in the inbox.
    private static final int MAX_ATTEMPTS = 5;
    private static final long RETRY_PAUSE_MILLIS = 500;
    // Longer than any time after which a message can come again.
    private static final long INBOX_TTL_SECONDS =
            Long.parseLong(System.getenv().getOrDefault("INBOX_TTL_SECONDS", "2592000")); // 30 days

    private final MongoClient client;
    private final MongoCollection<Document> inbox;
    private final MongoCollection<Document> failures;
    private final MongoCollection<Document> received;
    private final KafkaProducer<String, byte[]> dead;
    private final Set<Integer> proven = new HashSet<>(); // Partitions in which this process has applied a message.

    private KafkaReceiver(MongoClient client, MongoDatabase database, KafkaProducer<String, byte[]> dead) {
        this.client = client;
        this.dead = dead;
        inbox = database.getCollection("inbox");
        failures = database.getCollection("inbox_failures");
        received = database.getCollection("received");
        IndexOptions expiry = new IndexOptions().expireAfter(INBOX_TTL_SECONDS, TimeUnit.SECONDS);
        inbox.createIndex(Indexes.ascending("at"), expiry);
        failures.createIndex(Indexes.ascending("at"), expiry);
    }

    private void effect(ClientSession session, String key, Document payload) {
        received.updateOne(
                session, Filters.eq("_id", key), Updates.push("n", payload.get("n")), new UpdateOptions().upsert(true));
    }

    /** Returns whether the effect was not there before. */
    private boolean applyOnce(Document row, ConsumerRecord<String, byte[]> message) {
        if (message.key() == null || message.value() == null) { // A tombstone has no value.
            throw new IllegalArgumentException("a message without a key or a value");
        }
        Document payload = Document.parse(new String(message.value(), StandardCharsets.UTF_8));
        try (ClientSession session = client.startSession()) {
            // Repeats the transaction after a conflict with another one (code 112).
            session.withTransaction(() -> {
                try {
                    inbox.insertOne(session, new Document("_id", row).append("at", new Date()));
                } catch (MongoWriteException e) {
                    // Code 11000. MongoDB has aborted the transaction, so leave it.
                    throw e.getError().getCategory() == ErrorCategory.DUPLICATE_KEY ? new DoneBefore() : e;
                }
                effect(session, message.key(), payload);
                return null;
            });
            return true;
        } catch (DoneBefore e) {
            System.out.println(row + " again");
            return false;
        }
    }

    private void handle(ConsumerRecord<String, byte[]> message) throws Exception {
        Header id = message.headers().lastHeader("message-id");
        if (id == null || id.value() == null || id.value().length == 0) {
            moveToDead(message, "not a message of Postrider: it has no message-id");
            return;
        }
        Document row =
                new Document("consumer", CONSUMER).append("message", new String(id.value(), StandardCharsets.UTF_8));
        // Kafka does not count deliveries. A message that ends the process is in the next process the first one of its
        // partition whose effect is not there yet. So only such a message is counted before its attempt.
        boolean isCounted = !proven.contains(message.partition());
        String failure = "it ended the process";
        int failed = isCounted ? countAttempt(row, failure) - 1 : 0;
        while (failed < MAX_ATTEMPTS) {
            try {
                if (applyOnce(row, message)) {
                    proven.add(message.partition());
                }
                if (isCounted || failed > 0) {
                    failures.deleteOne(Filters.eq("_id", row));
                }
                return;
            } catch (RuntimeException e) {
                System.out.println(row + " " + e);
                if (!isPassing(e)) {
                    failure = e.toString();
                    failed = isCounted ? failed + 1 : countAttempt(row, failure);
                    isCounted = false;
                }
            }
            // In place, so that the messages behind it wait. After max.poll.interval.ms (5 minutes) Kafka gives the
            // partition to another member, and the commit of the offset fails.
            Thread.sleep(RETRY_PAUSE_MILLIS);
        }
        moveToDead(message, failure);
        failures.deleteOne(Filters.eq("_id", row)); // If it is sent again, it has all its attempts again.
    }

    /** Sends the message to the topic of dead ones, and waits for the confirm. */
    private void moveToDead(ConsumerRecord<String, byte[]> message, String failure) throws Exception {
        ProducerRecord<String, byte[]> copy = new ProducerRecord<>(
                message.topic() + ".dead", null, message.key(), message.value(), message.headers());
        copy.headers().add("failure", failure.getBytes(StandardCharsets.UTF_8));
        dead.send(copy).get();
    }

    /** Whether MongoDB is at fault, and not the message. */
    private static boolean isPassing(RuntimeException error) {
        return error instanceof MongoSocketException
                || error instanceof MongoTimeoutException
                || error instanceof MongoException mongo
                        && (mongo.hasErrorLabel(MongoException.TRANSIENT_TRANSACTION_ERROR_LABEL)
                                || mongo.hasErrorLabel(MongoException.UNKNOWN_TRANSACTION_COMMIT_RESULT_LABEL));
    }

    /** Counts outside of the transaction, so that the count stays; returns the number of attempts until now. */
    private int countAttempt(Document row, String failure) {
        return failures.findOneAndUpdate(
                        Filters.eq("_id", row),
                        Updates.combine(
                                Updates.inc("attempts", 1),
                                Updates.set("failure", failure),
                                Updates.set("at", new Date())),
                        new FindOneAndUpdateOptions().upsert(true).returnDocument(ReturnDocument.AFTER))
                .getInteger("attempts");
    }

    public static void main(String[] arguments) throws Exception {
        ConnectionString uri = new ConnectionString(System.getenv("MONGODB_URI"));
        String brokers = System.getenv("KAFKA_BROKERS");
        Map<String, Object> settings = new HashMap<>();
        settings.put(ConsumerConfig.BOOTSTRAP_SERVERS_CONFIG, brokers);
        settings.put(ConsumerConfig.GROUP_ID_CONFIG, System.getenv("GROUP"));
        settings.put(ConsumerConfig.AUTO_OFFSET_RESET_CONFIG, "earliest");
        settings.put(ConsumerConfig.ENABLE_AUTO_COMMIT_CONFIG, false);
        // A name of this process that stays: after a crash it has its partitions again at once. Without one they wait
        // for session.timeout.ms (45 s).
        settings.put(ConsumerConfig.GROUP_INSTANCE_ID_CONFIG, System.getenv("INSTANCE"));
        try (MongoClient client = MongoClients.create(uri);
                KafkaProducer<String, byte[]> dead = new KafkaProducer<>(
                        Map.of(ProducerConfig.BOOTSTRAP_SERVERS_CONFIG, brokers),
                        new StringSerializer(),
                        new ByteArraySerializer());
                KafkaConsumer<String, byte[]> consumer =
                        new KafkaConsumer<>(settings, new StringDeserializer(), new ByteArrayDeserializer())) {
            stopAtSigterm(consumer);
            KafkaReceiver handler = new KafkaReceiver(client, client.getDatabase(uri.getDatabase()), dead);
            consumer.subscribe(List.of(System.getenv("TOPIC")));
            while (true) {
                for (ConsumerRecord<String, byte[]> message : consumer.poll(Duration.ofSeconds(1))) {
                    handler.handle(message);
                    TopicPartition partition = new TopicPartition(message.topic(), message.partition());
                    OffsetAndMetadata next = new OffsetAndMetadata(message.offset() + 1);
                    consumer.commitSync(Map.of(partition, next)); // After the commit of MongoDB.
                }
            }
        } catch (WakeupException e) {
            System.out.println("stopped");
        }
    }

    /** Lets the consumer leave its group: otherwise its partitions wait for the end of its session. */
    private static void stopAtSigterm(KafkaConsumer<?, ?> consumer) {
        Thread main = Thread.currentThread();
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {
            consumer.wakeup();
            try {
                main.join();
            } catch (InterruptedException e) {
                main.interrupt();
            }
        }));
    }

    /** The effect of the message was committed at an earlier delivery. */
    private static final class DoneBefore extends RuntimeException {
        private static final long serialVersionUID = 1L;
    }
}
// docs:end consumer-kafka
