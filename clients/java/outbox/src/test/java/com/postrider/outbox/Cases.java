package com.postrider.outbox;

import com.mongodb.MongoClientSettings;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.stream.Stream;
import org.bson.BsonArray;
import org.bson.BsonDocument;
import org.bson.BsonValue;
import org.bson.Document;
import org.bson.UuidRepresentation;
import org.bson.codecs.Codec;
import org.bson.codecs.DecoderContext;
import org.bson.codecs.configuration.CodecRegistries;

/** The conformance cases that the libraries of all languages pass (clients/conformance). */
final class Cases {
    static final Path FOLDER = Path.of("..", "..", "conformance");
    private static final BsonDocument FILE = read();
    private static final Codec<Document> JAVA_VALUES = CodecRegistries.withUuidRepresentation(
                    MongoClientSettings.getDefaultCodecRegistry(), UuidRepresentation.STANDARD)
            .get(Document.class);

    private Cases() {}

    private static BsonDocument read() {
        try {
            return BsonDocument.parse(Files.readString(FOLDER.resolve("cases.json")));
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
    }

    static BsonArray setup() {
        return FILE.getArray("setup");
    }

    static Stream<BsonDocument> section(String name) {
        return FILE.getArray(name).stream().map(BsonValue::asDocument);
    }

    /** How a case gives its values to the library. */
    enum Form {
        BSON {
            @Override
            Map<String, Object> of(BsonDocument document) {
                return new LinkedHashMap<>(document.clone());
            }
        },
        JAVA {
            @Override
            Map<String, Object> of(BsonDocument document) {
                Document values = JAVA_VALUES.decode(
                        document.asBsonReader(), DecoderContext.builder().build());
                return new LinkedHashMap<>(values);
            }
        };

        abstract Map<String, Object> of(BsonDocument document);
    }

    /** Returns a text of UTF-16 code units, which JSON cannot carry if a surrogate is alone. */
    static String text(BsonArray units) {
        StringBuilder text = new StringBuilder();
        units.forEach(unit -> text.append((char) unit.asInt32().getValue()));
        return text.toString();
    }
}
