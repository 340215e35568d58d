package com.postrider.outbox;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.Date;
import java.util.EnumSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.UUID;
import org.bson.BsonArray;
import org.bson.BsonBinary;
import org.bson.BsonBoolean;
import org.bson.BsonDateTime;
import org.bson.BsonDocument;
import org.bson.BsonDocumentWriter;
import org.bson.BsonDouble;
import org.bson.BsonInt32;
import org.bson.BsonInt64;
import org.bson.BsonNull;
import org.bson.BsonObjectId;
import org.bson.BsonString;
import org.bson.BsonType;
import org.bson.BsonValue;
import org.bson.UuidRepresentation;
import org.bson.codecs.Codec;
import org.bson.codecs.EncoderContext;
import org.bson.codecs.configuration.CodecRegistries;
import org.bson.codecs.configuration.CodecRegistry;
import org.bson.types.Binary;
import org.bson.types.ObjectId;

/**
 * Converts payloads and headers to BSON, by the codecs of the application's database.
 *
 * <p>UUIDs become the binary subtype 4 at every depth, whatever UUID representation the client has. The values of the
 * caller are read and never changed.
 */
final class Encoder {
    /** MongoDB's own limit is lower; this one ends the conversion of a document that contains itself. */
    private static final int MAX_DEPTH = 200;

    private static final String CLASS_FIELD = "_class";

    private static final Set<BsonType> HEADER_TYPES = EnumSet.of(
            BsonType.STRING,
            BsonType.INT32,
            BsonType.INT64,
            BsonType.DOUBLE,
            BsonType.DECIMAL128,
            BsonType.BOOLEAN,
            BsonType.DATE_TIME,
            BsonType.OBJECT_ID,
            BsonType.BINARY,
            BsonType.NULL);

    private final CodecRegistry codecs;
    private final boolean permitsClassFields;

    Encoder(CodecRegistry codecs, boolean permitsClassFields) {
        this.codecs = CodecRegistries.withUuidRepresentation(codecs, UuidRepresentation.STANDARD);
        this.permitsClassFields = permitsClassFields;
    }

    BsonValue payload(Object payload) {
        return convert("payload", payload, 0);
    }

    BsonDocument headers(Map<?, ?> headers) {
        BsonDocument converted = new BsonDocument();
        headers.forEach((name, value) -> {
            String field = path("headers", name);
            BsonValue header = convert(field, value, 1);
            if (!HEADER_TYPES.contains(header.getBsonType())) {
                throw new InvalidRecordException(
                        field,
                        "is a BSON " + header.getBsonType() + "; a header must be a string, number, boolean, date, "
                                + "ObjectId, UUID, binary or null");
            }
            converted.append(nameOf("headers", name), header);
        });
        return converted;
    }

    private BsonValue convert(String path, Object value, int depth) {
        if (depth > MAX_DEPTH) {
            throw new InvalidRecordException(
                    "payload", "is nested more than " + MAX_DEPTH + " levels deep, or contains itself");
        }
        if (value == null) {
            return BsonNull.VALUE;
        } else if (value instanceof String string) {
            return new BsonString(Checks.text(path, string));
        } else if (value instanceof Integer number) {
            return new BsonInt32(number);
        } else if (value instanceof Long number) {
            return new BsonInt64(number);
        } else if (value instanceof Double number) {
            return new BsonDouble(number);
        } else if (value instanceof Boolean truth) {
            return BsonBoolean.valueOf(truth);
        } else if (value instanceof Date date) {
            return new BsonDateTime(date.getTime());
        } else if (value instanceof ObjectId id) {
            return new BsonObjectId(id);
        } else if (value instanceof UUID uuid) {
            return Checks.uuid(uuid);
        } else if (value instanceof Binary binary) {
            return Checks.binary(path, new BsonBinary(binary.getType(), binary.getData()));
        } else if (value instanceof BsonValue bson) {
            return checked(path, bson, depth);
        } else if (value instanceof Map<?, ?> map) {
            return document(path, map, depth);
        } else if (value instanceof Iterable<?> list) {
            return array(path, list, depth);
        } else if (value instanceof Object[] array) {
            return array(path, Arrays.asList(array), depth);
        }
        return checked(path, byCodec(path, value), depth);
    }

    /** Checks what is BSON already. */
    private BsonValue checked(String path, BsonValue value, int depth) {
        if (value instanceof BsonDocument document) {
            return document(path, document, depth);
        } else if (value instanceof BsonArray array) {
            return array(path, array, depth);
        } else if (value instanceof BsonString string) {
            Checks.text(path, string.getValue());
        } else if (value instanceof BsonBinary binary) {
            Checks.binary(path, binary);
        }
        return value;
    }

    private BsonDocument document(String path, Map<?, ?> fields, int depth) {
        BsonDocument document = new BsonDocument();
        fields.forEach(
                (name, value) -> document.append(nameOf(path, name), convert(path(path, name), value, depth + 1)));
        return document;
    }

    private BsonArray array(String path, Iterable<?> values, int depth) {
        List<BsonValue> converted = new ArrayList<>();
        for (Object value : values) {
            converted.add(convert(path(path, converted.size()), value, depth + 1));
        }
        return new BsonArray(converted);
    }

    private String nameOf(String parent, Object name) {
        String path = path(parent, name);
        if (!(name instanceof String text)) {
            throw Checks.wrongType(path, name, "a string, as the names of all fields");
        }
        if (text.equals(CLASS_FIELD) && !permitsClassFields) {
            throw new InvalidRecordException(
                    path,
                    "is the class name that Spring Data adds, and consumers would receive it; convert the object with a "
                            + "converter that has no type mapper (DefaultMongoTypeMapper(null)), or build the outbox "
                            + "with permitClassFields()");
        }
        return Checks.name(parent, text);
    }

    private BsonValue byCodec(String path, Object value) {
        BsonDocument holder = new BsonDocument();
        try (BsonDocumentWriter writer = new BsonDocumentWriter(holder)) {
            writer.writeStartDocument();
            writer.writeName("value");
            encode(writer, value);
            writer.writeEndDocument();
        } catch (RuntimeException e) {
            throw cannotEncode(path, value, e);
        }
        return holder.get("value");
    }

    private <T> void encode(BsonDocumentWriter writer, T value) {
        @SuppressWarnings("unchecked") // The class of a value is that of the value.
        Class<T> type = (Class<T>) value.getClass();
        Codec<T> codec = codecs.get(type);
        codec.encode(writer, value, EncoderContext.builder().build());
    }

    private static InvalidRecordException cannotEncode(String path, Object value, RuntimeException cause) {
        String name = value.getClass().getName();
        return new InvalidRecordException(
                path,
                "cannot be encoded as BSON: the codecs of the database do not encode this value of " + name
                        + "; register a codec for it, or convert it to a Document",
                cause);
    }

    private static String path(String parent, Object name) {
        return parent + "." + name;
    }
}
