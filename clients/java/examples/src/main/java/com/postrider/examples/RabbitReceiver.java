package com.postrider.examples;

// docs:begin consumer-rabbitmq
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
import com.rabbitmq.client.Channel;
import com.rabbitmq.client.Connection;
import com.rabbitmq.client.ConnectionFactory;
import com.rabbitmq.client.Delivery;
import java.nio.charset.StandardCharsets;
import java.util.Date;
import java.util.Map;
import java.util.Objects;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import org.bson.Document;

/** Takes the messages of a queue, each once: its effect and a row of the inbox are one transaction. */
public final class RabbitReceiver {
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

    private RabbitReceiver(MongoClient client, MongoDatabase database) {
        this.client = client;
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

    private void applyOnce(Document row, Delivery delivery) {
        Object key = headersOf(delivery).get("message-key");
        if (key == null) {
            throw new IllegalArgumentException("a message without a key");
        }
        Document payload = Document.parse(new String(delivery.getBody(), StandardCharsets.UTF_8));
        try (ClientSession session = client.startSession()) {
            // Repeats the transaction after a conflict with another one (code 112).
            session.withTransaction(() -> {
                try {
                    inbox.insertOne(session, new Document("_id", row).append("at", new Date()));
                } catch (MongoWriteException e) {
                    // Code 11000. MongoDB has aborted the transaction, so leave it.
                    throw e.getError().getCategory() == ErrorCategory.DUPLICATE_KEY ? new DoneBefore() : e;
                }
                effect(session, key.toString(), payload);
                return null;
            });
        } catch (DoneBefore e) {
            System.out.println(row + " again");
        }
    }

    private void handle(Channel channel, Delivery delivery) throws Exception {
        long tag = delivery.getEnvelope().getDeliveryTag();
        String id = delivery.getProperties().getMessageId();
        if (id == null || id.isEmpty()) { // Not a message of Postrider. Without requeue: to the dead-letter exchange.
            channel.basicReject(tag, false);
            return;
        }
        Document row = new Document("consumer", CONSUMER).append("message", id);
        // Deliveries that ended without an answer: the message may end this process. A quorum queue counts them.
        Object count = headersOf(delivery).get("x-delivery-count");
        int crashes = count instanceof Number number ? number.intValue() : 0;
        int attempts = crashes;
        if (delivery.getEnvelope().isRedeliver() && count == null) {
            attempts = countFailure(row, "redelivered");
        }
        while (attempts < MAX_ATTEMPTS) {
            try {
                applyOnce(row, delivery);
                channel.basicAck(tag, false); // After the commit.
                return;
            } catch (RuntimeException e) {
                System.out.println(row + " " + e);
                if (!isPassing(e)) {
                    attempts = crashes + countFailure(row, e.toString());
                }
            }
            Thread.sleep(RETRY_PAUSE_MILLIS); // In place, so that the messages behind it wait.
        }
        failures.deleteOne(Filters.eq("_id", row)); // If it is published again, it has all its attempts again.
        channel.basicReject(tag, false);
    }

    private static Map<String, Object> headersOf(Delivery delivery) {
        return Objects.requireNonNullElse(delivery.getProperties().getHeaders(), Map.of());
    }

    /** Whether MongoDB is at fault, and not the message. */
    private static boolean isPassing(RuntimeException error) {
        return error instanceof MongoSocketException
                || error instanceof MongoTimeoutException
                || error instanceof MongoException mongo
                        && (mongo.hasErrorLabel(MongoException.TRANSIENT_TRANSACTION_ERROR_LABEL)
                                || mongo.hasErrorLabel(MongoException.UNKNOWN_TRANSACTION_COMMIT_RESULT_LABEL));
    }

    /** Counts outside of the transaction, which was aborted; returns the number until now. */
    private int countFailure(Document row, String failure) {
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
        ConnectionFactory factory = new ConnectionFactory();
        factory.setUri(System.getenv("AMQP_URI"));
        try (MongoClient client = MongoClients.create(uri);
                Connection connection = factory.newConnection();
                Channel channel = connection.createChannel()) {
            RabbitReceiver consumer = new RabbitReceiver(client, client.getDatabase(uri.getDatabase()));
            BlockingQueue<Delivery> deliveries = new LinkedBlockingQueue<>();
            channel.basicQos(1);
            channel.basicConsume(
                    System.getenv("QUEUE"),
                    false,
                    (tag, delivery) -> deliveries.add(delivery),
                    tag -> System.exit(1)); // The queue was deleted.
            while (true) {
                consumer.handle(channel, deliveries.take());
            }
        }
    }

    /** The effect of the message was committed at an earlier delivery. */
    private static final class DoneBefore extends RuntimeException {
        private static final long serialVersionUID = 1L;
    }
}
// docs:end consumer-rabbitmq
