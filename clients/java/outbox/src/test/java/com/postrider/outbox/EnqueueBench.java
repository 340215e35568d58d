package com.postrider.outbox;

import com.mongodb.client.ClientSession;
import com.mongodb.client.MongoCollection;
import java.util.Arrays;
import java.util.Date;
import java.util.UUID;
import java.util.function.Consumer;
import org.bson.BsonTimestamp;
import org.bson.Document;
import org.bson.UuidRepresentation;

/**
 * Compares {@code enqueue} with a bare {@code insertOne} of the same document, in transactions that also change an order.
 * Run it by bench.sh; it is not a test.
 */
public final class EnqueueBench {
    private static final int ROUNDS = 9;
    private static final int TRANSACTIONS = 1000;
    private static final int WARM_UP = 3000;

    private EnqueueBench() {}

    public static void main(String[] arguments) {
        try (TestDatabase where =
                new TestDatabase(settings -> settings.uuidRepresentation(UuidRepresentation.STANDARD))) {
            Outbox outbox = Outbox.of(where.database);
            MongoCollection<Document> bare = where.database.getCollection("bare_records");
            Consumer<ClientSession> enqueue = session -> outbox.enqueue(
                    session,
                    OutboxRecord.builder("OrderChanged")
                            .key("order-123")
                            .payload(payload())
                            .build());
            Consumer<ClientSession> insert = session -> bare.insertOne(session, document());
            run(where, enqueue, insert, WARM_UP);
            double[] ratios = new double[ROUNDS];
            for (int round = 0; round < ROUNDS; round++) {
                long[] medians = run(where, enqueue, insert, TRANSACTIONS);
                ratios[round] = (double) medians[0] / medians[1];
                System.out.printf(
                        "round %d: enqueue %d us, insertOne %d us a transaction (median), ratio %.3f%n",
                        round + 1, medians[0] / 1000, medians[1] / 1000, ratios[round]);
            }
            Arrays.sort(ratios);
            System.out.printf("ratio: %.3f (median of %d rounds)%n", ratios[ROUNDS / 2], ROUNDS);
        }
    }

    /** Runs both in turns, and returns the median time of a transaction of each, in nanoseconds. */
    private static long[] run(
            TestDatabase where, Consumer<ClientSession> enqueue, Consumer<ClientSession> insert, int transactions) {
        long[][] times = new long[2][transactions];
        for (int i = 0; i < transactions; i++) {
            times[0][i] = time(where, enqueue);
            times[1][i] = time(where, insert);
        }
        Arrays.sort(times[0]);
        Arrays.sort(times[1]);
        return new long[] {times[0][transactions / 2], times[1][transactions / 2]};
    }

    private static long time(TestDatabase where, Consumer<ClientSession> body) {
        MongoCollection<Document> orders = where.database.getCollection("orders");
        long begin = System.nanoTime();
        try (ClientSession session = where.client.startSession()) {
            session.startTransaction();
            orders.insertOne(session, new Document("total", 120));
            body.accept(session);
            session.commitTransaction();
        }
        return System.nanoTime() - begin;
    }

    private static Document payload() {
        return new Document("order", "order-123")
                .append("customer", UUID.randomUUID())
                .append("total", 120.5)
                .append("lines", Arrays.asList(new Document("product", "book").append("quantity", 2)));
    }

    private static Document document() {
        return new Document("_id", UUID.randomUUID())
                .append("key", "order-123")
                .append("type", "OrderChanged")
                .append("payload", payload())
                .append("status", "pending")
                .append("seq", new BsonTimestamp(0, 0))
                .append("createdAt", new Date())
                .append("partition", 189);
    }
}
