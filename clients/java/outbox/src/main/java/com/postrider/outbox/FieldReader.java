package com.postrider.outbox;

import java.time.Instant;
import java.util.Date;
import java.util.Map;
import org.bson.BsonDateTime;
import org.bson.BsonNull;

/** Reads the fields of a record by name, and refuses values of a wrong type. */
final class FieldReader {
    private FieldReader() {}

    static OutboxRecord.Builder read(Map<String, ?> fields) {
        OutboxRecord.Builder builder = new OutboxRecord.Builder();
        fields.forEach((name, given) -> {
            Object value = given instanceof BsonNull ? null : given;
            switch (String.valueOf(name)) {
                case "id" -> builder.anyId(value);
                case "key" -> builder.key(Checks.optionalText(name, value));
                case "type" -> builder.type(Checks.type(value));
                case "payload" -> builder.payload(value);
                case "contentType" -> builder.contentType(Checks.optionalText(name, value));
                case "headers" -> headers(builder, value);
                case "destination" -> builder.destination(Checks.optionalText(name, value));
                case "tenantId" -> builder.tenantId(Checks.optionalText(name, value));
                case "createdAt" -> builder.createdAt(date(name, value));
                case "visibleAt" -> builder.visibleAt(date(name, value));
                case "dedupKey" -> builder.dedupKey(Checks.optionalText(name, value));
                default ->
                    throw new InvalidRecordException(
                            name, "is not a field of a record; put it into payload or headers");
            }
        });
        return builder;
    }

    private static void headers(OutboxRecord.Builder builder, Object value) {
        if (value == null) {
            return;
        }
        if (!(value instanceof Map<?, ?> headers)) {
            throw Checks.wrongType("headers", value, "a map of scalars and binaries");
        }
        headers.forEach((name, header) -> {
            if (!(name instanceof String text)) {
                throw Checks.wrongType("headers." + name, name, "a string, as the names of all headers");
            }
            builder.header(text, header);
        });
    }

    private static Instant date(String field, Object value) {
        if (value == null) {
            return null;
        } else if (value instanceof Instant instant) {
            return instant;
        } else if (value instanceof Date date) {
            return Instant.ofEpochMilli(date.getTime());
        } else if (value instanceof BsonDateTime date) {
            return Instant.ofEpochMilli(date.getValue());
        }
        throw Checks.wrongType(field, value, "an Instant or a Date");
    }
}
