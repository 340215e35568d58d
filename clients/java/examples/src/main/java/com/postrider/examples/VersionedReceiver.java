package com.postrider.examples;

// docs:begin consumer-versions
import com.mongodb.ConnectionString;
import com.mongodb.ErrorCategory;
import com.mongodb.MongoException;
import com.mongodb.MongoSocketException;
import com.mongodb.MongoTimeoutException;
import com.mongodb.client.MongoClient;
import com.mongodb.client.MongoClients;
import com.mongodb.client.MongoCollection;
import com.mongodb.client.MongoDatabase;
import com.mongodb.client.model.Filters;
import com.mongodb.client.model.FindOneAndUpdateOptions;
import com.mongodb.client.model.ReturnDocument;
import com.mongodb.client.model.UpdateOptions;
import com.mongodb.client.model.Updates;
import com.rabbitmq.client.Channel;
import com.rabbitmq.client.Connection;
import com.rabbitmq.client.ConnectionFactory;
import com.rabbitmq.client.Delivery;
import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;
import org.bson.Document;

/** Takes the messages of appended events, each once, without an inbox: guarded by their version. */
public final class VersionedReceiver {
    private static final int MAX_ATTEMPTS = 5;
    private static final long RETRY_PAUSE_MILLIS = 500;

    private final MongoCollection<Document> states;
    private final MongoCollection<Document> failures;

    private VersionedReceiver(MongoDatabase database) {
        states = database.getCollection("states");
        failures = database.getCollection("inbox_failures");
    }

    /** The place of an event in its stream. */
    private record Place(long version, long index) implements Comparable<Place> {
        @Override
        public int compareTo(Place other) {
            int byVersion = Long.compare(version, other.version);
            return byVersion != 0 ? byVersion : Long.compare(index, other.index);
        }
    }

    /** Applies the event if it is the next one; does nothing if it was applied before. */
    private void applyNext(Delivery delivery) {
        Map<String, Object> headers = headersOf(delivery);
        // Messages of an earlier release of Postrider have no aggregate-id, but the same as their key.
        String aggregate =
                headers.getOrDefault("aggregate-id", headers.get("message-key")).toString();
        Place place = new Place(number(headers, "aggregate-version"), number(headers, "event-index"));
        Document state = states.find(Filters.eq("_id", aggregate)).first();
        if (state != null && place.compareTo(last(state)) <= 0) {
            return;
        }
        List<Place> next = next(state);
        if (!next.contains(place)) {
            throw new IllegalStateException(aggregate + ": " + place + " came, next is " + next);
        }
        Document payload = Document.parse(new String(delivery.getBody(), StandardCharsets.UTF_8));
        // The guard and the effect are one write: only the state that was read is changed.
        long changed = states.updateOne(
                        Filters.and(
                                Filters.eq("_id", aggregate),
                                Filters.eq("version", state == null ? null : state.get("version")),
                                Filters.eq("index", state == null ? null : state.get("index"))),
                        Updates.combine(
                                Updates.set("version", place.version()),
                                Updates.set("index", place.index()),
                                Updates.set("count", headers.get("event-count")),
                                Updates.push("n", payload.get("n"))),
                        new UpdateOptions().upsert(state == null))
                .getModifiedCount();
        if (changed == 0 && state != null) {
            throw new IllegalStateException(aggregate + ": another consumer has changed it; look again");
        }
    }

    private static Place last(Document state) {
        return new Place(state.getLong("version"), state.getLong("index"));
    }

    /** Returns the places of the events that may follow. */
    private static List<Place> next(Document state) {
        if (state == null) {
            return List.of(new Place(1, 0));
        }
        Place last = last(state);
        Place sameVersion = new Place(last.version(), last.index() + 1);
        Place nextVersion = new Place(last.version() + 1, 0);
        if (!(state.get("count") instanceof Number count)) { // An earlier release does not send event-count.
            return List.of(sameVersion, nextVersion);
        }
        return List.of(last.index() + 1 < count.longValue() ? sameVersion : nextVersion);
    }

    private static Map<String, Object> headersOf(Delivery delivery) {
        return Objects.requireNonNullElse(delivery.getProperties().getHeaders(), Map.of());
    }

    private static long number(Map<String, Object> headers, String name) {
        return ((Number) headers.get(name)).longValue();
    }

    private void handle(Channel channel, Delivery delivery) throws Exception {
        long tag = delivery.getEnvelope().getDeliveryTag();
        String id = delivery.getProperties().getMessageId();
        if (id == null || id.isEmpty()) { // Not a message of Postrider. Without requeue: to the dead-letter exchange.
            channel.basicReject(tag, false);
            return;
        }
        // Deliveries that ended without an answer: the message may end this process. A quorum queue counts them.
        Object count = headersOf(delivery).get("x-delivery-count");
        int crashes = count instanceof Number number ? number.intValue() : 0;
        int attempts = crashes;
        if (delivery.getEnvelope().isRedeliver() && count == null) {
            attempts = countFailure(id, "redelivered");
        }
        while (attempts < MAX_ATTEMPTS) {
            try {
                applyNext(delivery);
                channel.basicAck(tag, false);
                return;
            } catch (RuntimeException e) {
                System.out.println(id + " " + e);
                if (!isPassing(e)) {
                    attempts = crashes + countFailure(id, e.toString());
                }
            }
            Thread.sleep(RETRY_PAUSE_MILLIS);
        }
        failures.deleteOne(Filters.eq("_id", row(id))); // If it is published again, it has all its attempts again.
        channel.basicReject(tag, false);
    }

    /** Whether MongoDB is at fault, or another consumer has made the first state, and not the message. */
    private static boolean isPassing(RuntimeException error) {
        return error instanceof MongoSocketException
                || error instanceof MongoTimeoutException
                || error instanceof MongoException mongo
                        && ErrorCategory.fromErrorCode(mongo.getCode()) == ErrorCategory.DUPLICATE_KEY;
    }

    private static Document row(String message) {
        return new Document("consumer", "states").append("message", message);
    }

    private int countFailure(String message, String failure) {
        return failures.findOneAndUpdate(
                        Filters.eq("_id", row(message)),
                        Updates.combine(Updates.inc("attempts", 1), Updates.set("failure", failure)),
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
            VersionedReceiver consumer = new VersionedReceiver(client.getDatabase(uri.getDatabase()));
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
}
// docs:end consumer-versions
