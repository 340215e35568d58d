package com.postrider.outbox;

import java.nio.ByteBuffer;
import java.time.Instant;
import java.util.UUID;
import org.bson.BsonBinary;
import org.bson.BsonBinarySubType;
import org.bson.BsonInt32;
import org.bson.BsonInt64;
import org.bson.BsonObjectId;
import org.bson.BsonString;
import org.bson.BsonValue;
import org.bson.types.Binary;
import org.bson.types.ObjectId;

/** Checks of single values, each of which names the field in its error. */
final class Checks {
    private static final int UUID_BYTES = 16;
    private static final String LEGACY_UUID =
            "is a UUID of the legacy binary subtype 3, which the outbox does not hold; use java.util.UUID";

    private Checks() {}

    /** Refuses lone surrogates: they have no form in UTF-8, and each driver would write another one. */
    static String text(String field, String text) {
        for (int i = 0; i < text.length(); i++) {
            char c = text.charAt(i);
            if (Character.isHighSurrogate(c) && i + 1 < text.length() && Character.isLowSurrogate(text.charAt(i + 1))) {
                i++;
            } else if (Character.isSurrogate(c)) {
                throw new InvalidRecordException(
                        field,
                        "has a lone surrogate at index " + i + ", which UTF-8 cannot hold; use valid Unicode text");
            }
        }
        return text;
    }

    /** Refuses what the name of a BSON field cannot hold. The error is that of the document around it. */
    static String name(String parent, String name) {
        if (name.indexOf('\0') >= 0) {
            throw new InvalidRecordException(
                    parent,
                    "has a field with the character U+0000 in its name, which BSON cannot hold; use another name");
        }
        return text(parent, name);
    }

    static String optionalText(String field, Object value) {
        if (value == null) {
            return null;
        }
        if (value instanceof BsonString string) {
            return text(field, string.getValue());
        }
        if (value instanceof String string) {
            return text(field, string);
        }
        throw wrongType(field, value, "a string");
    }

    static String type(Object value) {
        String type = optionalText("type", value);
        if (type == null || type.isEmpty()) {
            throw new InvalidRecordException(
                    "type", "is " + (type == null ? "absent" : "empty") + "; give each record a type");
        }
        return type;
    }

    /** Refuses times whose milliseconds exceed 64 bits. */
    static Instant date(String field, Instant date) {
        try {
            return Instant.ofEpochMilli(date.toEpochMilli());
        } catch (ArithmeticException e) {
            throw new InvalidRecordException(field, "is beyond the dates that BSON can hold", e);
        }
    }

    /** Converts an id to the form in which it is stored: a UUID is always of the binary subtype 4. */
    static BsonValue id(Object id) {
        if (id instanceof UUID uuid) {
            return uuid(uuid);
        } else if (id instanceof ObjectId objectId) {
            return new BsonObjectId(objectId);
        } else if (id instanceof String string) {
            return idText(string);
        } else if (id instanceof Integer number) {
            return new BsonInt32(number);
        } else if (id instanceof Long number) {
            return new BsonInt64(number);
        } else if (id instanceof Binary binary) {
            return uuidOf(new BsonBinary(binary.getType(), binary.getData()));
        } else if (id instanceof BsonBinary binary) {
            return uuidOf(binary);
        } else if (id instanceof BsonString string) {
            return idText(string.getValue());
        } else if (id instanceof BsonObjectId || id instanceof BsonInt32 || id instanceof BsonInt64) {
            return (BsonValue) id;
        }
        throw wrongType("id", id, "a UUID, an ObjectId, a string, an int or a long");
    }

    private static BsonString idText(String id) {
        if (id.isEmpty()) {
            throw new InvalidRecordException(
                    "id", "is empty; use a text that no other record has, or leave the id out");
        }
        return new BsonString(text("id", id));
    }

    static BsonBinary uuid(UUID uuid) {
        byte[] bytes = ByteBuffer.allocate(UUID_BYTES)
                .putLong(uuid.getMostSignificantBits())
                .putLong(uuid.getLeastSignificantBits())
                .array();
        return new BsonBinary(BsonBinarySubType.UUID_STANDARD, bytes);
    }

    private static BsonBinary uuidOf(BsonBinary binary) {
        binary("id", binary);
        if (binary.getType() != BsonBinarySubType.UUID_STANDARD.getValue()) {
            throw new InvalidRecordException(
                    "id", "is a binary of subtype " + binary.getType() + "; a binary id must be a UUID, of subtype 4");
        }
        return binary;
    }

    /** Refuses UUIDs of the legacy subtype, whose byte order no consumer can know, and those of a wrong length. */
    static BsonBinary binary(String field, BsonBinary binary) {
        if (binary.getType() == BsonBinarySubType.UUID_LEGACY.getValue()) {
            throw new InvalidRecordException(field, LEGACY_UUID);
        }
        boolean uuid = binary.getType() == BsonBinarySubType.UUID_STANDARD.getValue();
        if (uuid && binary.getData().length != UUID_BYTES) {
            throw new InvalidRecordException(
                    field, "is a UUID of " + binary.getData().length + " bytes; a UUID must have " + UUID_BYTES);
        }
        return binary;
    }

    static InvalidRecordException wrongType(String field, Object value, String expected) {
        String actual =
                value == null ? "null" : "of the type " + value.getClass().getName();
        return new InvalidRecordException(field, "is " + actual + "; must be " + expected);
    }
}
