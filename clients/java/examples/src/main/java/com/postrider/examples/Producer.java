package com.postrider.examples;

// docs:begin producer
import com.mongodb.ConnectionString;
import com.mongodb.client.ClientSession;
import com.mongodb.client.MongoClient;
import com.mongodb.client.MongoClients;
import com.mongodb.client.MongoCollection;
import com.mongodb.client.MongoDatabase;
import com.mongodb.client.model.Filters;
import com.mongodb.client.model.UpdateOptions;
import com.mongodb.client.model.Updates;
import com.postrider.outbox.Outbox;
import com.postrider.outbox.OutboxRecord;
import java.util.Scanner;
import org.bson.Document;

/** Changes an order for each line {@code key n} of its input, and prints the id of the message about it. */
public final class Producer {
    private final MongoClient client;
    private final MongoCollection<Document> orders;
    private final Outbox outbox;

    private Producer(MongoClient client, MongoDatabase database) {
        this.client = client;
        orders = database.getCollection("orders");
        outbox = Outbox.of(database);
        outbox.probe(client); // Fails at once where an outbox cannot work.
    }

    private Object changeOrder(String order, int n) {
        // Made outside of the transaction: a repetition by the driver writes the same id.
        OutboxRecord changed = OutboxRecord.builder("OrderChanged")
                .key(order)
                .payload(new Document("order", order).append("n", n))
                .build();
        try (ClientSession session = client.startSession()) {
            return session.withTransaction(() -> {
                orders.updateOne(
                        session, Filters.eq("_id", order), Updates.push("n", n), new UpdateOptions().upsert(true));
                return outbox.enqueue(session, changed);
            });
        }
    }

    public static void main(String[] arguments) {
        ConnectionString uri = new ConnectionString(System.getenv("MONGODB_URI"));
        try (MongoClient client = MongoClients.create(uri);
                Scanner input = new Scanner(System.in)) {
            Producer producer = new Producer(client, client.getDatabase(uri.getDatabase()));
            while (input.hasNext()) {
                System.out.println(producer.changeOrder(input.next(), input.nextInt()));
            }
        }
    }
}
// docs:end producer
