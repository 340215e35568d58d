package com.postrider.examples;

import static org.junit.jupiter.api.Assertions.assertEquals;

import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.UUID;
import org.bson.Document;
import org.bson.types.Binary;
import org.junit.jupiter.api.Test;

class ProducerTest {
    @Test
    void producerWritesOrderAndRecordForEachLine() throws Exception {
        try (OwnDatabase own = new OwnDatabase();
                Example producer = new Example(Producer.class, Map.of("MONGODB_URI", own.uri))) {
            producer.input("a 1\nb 1\na 2\n");

            List<String> ids = producer.outputAtItsEnd();

            assertEquals(List.of(1, 2), own.effectsOn("orders", "a"));
            assertEquals(List.of(1), own.effectsOn("orders", "b"));
            List<Document> records = own.collection("outbox_records")
                    .find()
                    .sort(new Document("seq", 1))
                    .into(new ArrayList<>());
            assertEquals(
                    List.of("a", "b", "a"),
                    records.stream().map(record -> record.getString("key")).toList());
            assertEquals(
                    ids, records.stream().map(record -> text(record.get("_id"))).toList());
            assertEquals(
                    new Document("order", "a").append("n", 2), records.get(2).get("payload"));
        }
    }

    private static String text(Object id) {
        ByteBuffer bytes = ByteBuffer.wrap(((Binary) id).getData());
        return new UUID(bytes.getLong(), bytes.getLong()).toString();
    }
}
