package com.postrider.outbox;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.DynamicTest.dynamicTest;

import com.mongodb.MongoClientSettings;
import com.networknt.schema.InputFormat;
import com.networknt.schema.Schema;
import com.networknt.schema.SchemaRegistry;
import com.networknt.schema.SpecificationVersion;
import com.postrider.outbox.Cases.Form;
import java.nio.file.Files;
import java.util.stream.Stream;
import org.bson.BsonDocument;
import org.bson.json.JsonMode;
import org.bson.json.JsonWriterSettings;
import org.junit.jupiter.api.DynamicTest;
import org.junit.jupiter.api.TestFactory;

/** The library and the published JSON Schema accept and refuse the same records. */
class SchemaTest {
    @TestFactory
    Stream<DynamicTest> schemaAgreesWithTheLibrary() throws Exception {
        Schema schema = SchemaRegistry.withDefaultDialect(SpecificationVersion.DRAFT_2020_12)
                .getSchema(Files.readString(Cases.FOLDER.resolve("record.schema.json")), InputFormat.JSON);
        JsonWriterSettings canonical =
                JsonWriterSettings.builder().outputMode(JsonMode.EXTENDED).build();
        return Stream.of("enqueued", "refused")
                .flatMap(Cases::section)
                .filter(test -> !test.containsKey("hook"))
                .map(test -> dynamicTest(test.getString("name").getValue(), () -> {
                    BsonDocument record = test.getDocument("record");
                    boolean valid = schema.validate(record.toJson(canonical), InputFormat.JSON)
                            .isEmpty();
                    assertEquals(valid, isAccepted(record));
                }));
    }

    private static boolean isAccepted(BsonDocument record) {
        try {
            Encoder encoder = new Encoder(MongoClientSettings.getDefaultCodecRegistry(), false);
            OutboxRecord accepted = OutboxRecord.fromMap(Form.BSON.of(record));
            encoder.payload(accepted.payload);
            encoder.headers(accepted.headers);
            return true;
        } catch (InvalidRecordException e) {
            return false;
        }
    }
}
