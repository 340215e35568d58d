package com.postrider.outbox;

import com.mongodb.client.ClientSession;
import com.mongodb.client.MongoClient;
import com.mongodb.client.MongoCollection;
import com.mongodb.client.MongoDatabase;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.function.Supplier;
import java.util.regex.Pattern;
import org.bson.BsonDateTime;
import org.bson.BsonDocument;
import org.bson.BsonInt32;
import org.bson.BsonString;
import org.bson.BsonTimestamp;
import org.bson.codecs.BsonValueCodecProvider;
import org.bson.codecs.configuration.CodecRegistries;

/**
 * The producer's side of an outbox: inserts records in the caller's transactions.
 *
 * <p>It is immutable and safe for use by several threads. Create one per database.
 */
public final class Outbox {
    private static final String RECORDS = "outbox_records";
    private static final Pattern PREFIX = Pattern.compile("[A-Za-z0-9_.-]*");

    private final MongoCollection<BsonDocument> records;
    private final Encoder encoder;
    private final Supplier<? extends Map<String, ?>> commonHeaders;

    private Outbox(Builder builder) {
        // Of its own codecs: a database whose registry lacks those of BSON values works too.
        records = builder.database
                .getCollection(builder.prefix + RECORDS, BsonDocument.class)
                .withCodecRegistry(CodecRegistries.fromProviders(new BsonValueCodecProvider()));
        encoder = new Encoder(builder.database.getCodecRegistry(), builder.permitsClassFields);
        commonHeaders = builder.headers;
    }

    /**
     * Returns the outbox of a database.
     *
     * @param database the database of the relay ({@code mongo.database}), from the client that starts the sessions
     * @return the outbox, without a prefix for its collections
     */
    public static Outbox of(MongoDatabase database) {
        return builder(database).build();
    }

    /**
     * Begins an outbox with settings.
     *
     * @param database the database of the relay ({@code mongo.database}), from the client that starts the sessions
     * @return a builder
     */
    public static Builder builder(MongoDatabase database) {
        return new Builder(database);
    }

    /**
     * Inserts a record in the session's transaction. It is delivered once the transaction has committed, and never if the
     * transaction aborts.
     *
     * <p>Exceptions of the driver are thrown unchanged, so that {@link ClientSession#withTransaction} can repeat the
     * transaction. An id or {@code dedupKey} that exists is error 11000.
     *
     * @param session a session with a running transaction
     * @param record the record
     * @return the id of the record, whose text is the message id that consumers receive
     * @throws NoTransactionException if the session has no running transaction; nothing was sent
     * @throws InvalidRecordException if the record is null, or a value cannot be stored; nothing was sent
     */
    public Object enqueue(ClientSession session, OutboxRecord record) {
        if (session == null || !session.hasActiveTransaction()) {
            throw new NoTransactionException();
        }
        if (record == null) {
            throw new InvalidRecordException("record", "is null; build one with OutboxRecord.builder");
        }
        records.insertOne(session, toDocument(record));
        return record.id();
    }

    /**
     * Checks, at the start of an application, that the deployment can hold an outbox: inserts a record in a transaction,
     * reads back the sequence that MongoDB must have filled in, and aborts. It leaves nothing behind.
     *
     * @param client the client of the database
     * @throws ProbeException if transactions are not supported, or a driver, proxy or service does not fill in the sequence
     */
    public void probe(MongoClient client) {
        new Probe(records).run(client);
    }

    BsonDocument toDocument(OutboxRecord record) {
        BsonDocument document = new BsonDocument("_id", record.storedId);
        append(document, "key", record.key());
        append(document, "type", record.type());
        document.append("payload", encoder.payload(record.payload));
        append(document, "contentType", record.contentType);
        BsonDocument headers = encoder.headers(headersOf(record));
        if (!headers.isEmpty()) {
            document.append("headers", headers);
        }
        append(document, "destination", record.destination);
        append(document, "tenantId", record.tenantId);
        append(document, "status", record.visibleAt == null ? "pending" : "scheduled");
        // MongoDB replaces it with its cluster time.
        document.append("seq", new BsonTimestamp(0, 0));
        document.append("createdAt", new BsonDateTime(record.createdAt.toEpochMilli()));
        if (record.visibleAt != null) {
            document.append("visibleAt", new BsonDateTime(record.visibleAt.toEpochMilli()));
        }
        append(document, "dedupKey", record.dedupKey);
        if (record.key() != null) {
            document.append("partition", new BsonInt32(Partition.of(record.key())));
        }
        return document;
    }

    /** Returns the record's headers, and those of the hook that the record does not have itself. */
    private Map<String, Object> headersOf(OutboxRecord record) {
        Map<String, ?> common = commonHeaders.get();
        if (common == null || common.isEmpty()) {
            return record.headers;
        }
        Map<String, Object> headers = new LinkedHashMap<>(record.headers);
        common.forEach(headers::putIfAbsent);
        return headers;
    }

    private static void append(BsonDocument document, String field, String text) {
        if (text != null) {
            document.append(field, new BsonString(text));
        }
    }

    /** Settings of an {@link Outbox}. */
    public static final class Builder {
        private final MongoDatabase database;
        private String prefix = "";
        private Supplier<? extends Map<String, ?>> headers = Map::of;
        private boolean permitsClassFields;

        private Builder(MongoDatabase database) {
            this.database = database;
        }

        /**
         * Sets the prefix of the names of the outbox's collections.
         *
         * @param prefix the {@code outbox.collection_prefix} of the relay; empty by default
         * @return this
         */
        public Builder collectionPrefix(String prefix) {
            if (!PREFIX.matcher(prefix).matches()) {
                throw new IllegalArgumentException("outbox: collectionPrefix = \"" + prefix
                        + "\": has other characters than letters, digits, \"_\", \".\" and \"-\"; "
                        + "use the outbox.collection_prefix of the relay");
            }
            this.prefix = prefix;
            return this;
        }

        /**
         * Sets a hook that each {@code enqueue} calls for more headers, such as {@code traceparent}. Headers of the
         * record take precedence.
         *
         * @param headers returns values by name; may return null for none
         * @return this
         */
        public Builder headers(Supplier<? extends Map<String, ?>> headers) {
            this.headers = headers;
            return this;
        }

        /**
         * Permits fields with the name {@code _class} in payloads. They are refused by default: Spring Data adds them, and
         * consumers would receive names of Java classes.
         *
         * @return this
         */
        public Builder permitClassFields() {
            permitsClassFields = true;
            return this;
        }

        /**
         * Creates the outbox.
         *
         * @return the outbox
         */
        public Outbox build() {
            return new Outbox(this);
        }
    }
}
