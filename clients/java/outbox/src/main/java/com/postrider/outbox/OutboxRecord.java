package com.postrider.outbox;

import java.time.Instant;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.UUID;
import org.bson.BsonValue;
import org.bson.types.ObjectId;

/**
 * A message to send, as it is enqueued.
 *
 * <p>{@link Builder#build} sets its id. Build the record outside of a transaction that the driver may repeat, so that
 * each repetition writes the same id:
 *
 * <pre>{@code
 * OutboxRecord record = OutboxRecord.builder("OrderCreated")
 *         .key("order-7")
 *         .payload(new Document("order", "order-7").append("total", 120))
 *         .build();
 * session.withTransaction(() -> {
 *     orders.insertOne(session, order);
 *     return outbox.enqueue(session, record);
 * });
 * }</pre>
 */
public final class OutboxRecord {
    final BsonValue storedId;
    final Object payload;
    final String contentType;
    final Map<String, Object> headers;
    final String destination;
    final String tenantId;
    final Instant createdAt;
    final Instant visibleAt;
    final String dedupKey;

    private final Object id;
    private final String key;
    private final String type;

    private OutboxRecord(Builder builder) {
        if (!builder.payloadGiven) {
            throw new InvalidRecordException("payload", "is absent; set one, which may be null");
        }
        type = Checks.type(builder.type);
        id = builder.id == null ? UUID.randomUUID() : builder.id;
        storedId = Checks.id(id);
        key = Checks.optionalText("key", builder.key);
        payload = builder.payload;
        contentType = Checks.optionalText("contentType", builder.contentType);
        headers = Collections.unmodifiableMap(new LinkedHashMap<>(builder.headers));
        destination = Checks.optionalText("destination", builder.destination);
        tenantId = Checks.optionalText("tenantId", builder.tenantId);
        createdAt = builder.createdAt == null ? Instant.now() : Checks.date("createdAt", builder.createdAt);
        visibleAt = builder.visibleAt == null ? null : Checks.date("visibleAt", builder.visibleAt);
        dedupKey = Checks.optionalText("dedupKey", builder.dedupKey);
    }

    /**
     * Begins a record.
     *
     * @param type the message type, such as {@code OrderCreated}; routes match on it; not empty
     * @return a builder, which still needs a payload
     */
    public static Builder builder(String type) {
        return new Builder().type(type);
    }

    /**
     * Creates a record from fields by name, and checks their types.
     *
     * @param fields {@code id}, {@code key}, {@code type}, {@code payload}, {@code contentType}, {@code headers}, {@code
     *     destination}, {@code tenantId}, {@code createdAt}, {@code visibleAt}, {@code dedupKey}; Java or BSON values
     * @return the record
     * @throws InvalidRecordException if a field is unknown, absent though required, or has a wrong type
     */
    public static OutboxRecord fromMap(Map<String, ?> fields) {
        return FieldReader.read(fields).build();
    }

    /**
     * Returns the id of the record, whose text ({@code toString}) is the message id that consumers receive.
     *
     * @return a UUID, unless the builder was given another one
     */
    public Object id() {
        return id;
    }

    /**
     * Returns the key, by which the record is ordered.
     *
     * @return the key, or null
     */
    public String key() {
        return key;
    }

    /**
     * Returns the message type.
     *
     * @return the type, never empty
     */
    public String type() {
        return type;
    }

    /** Returns a text for logs, without payload and headers. */
    @Override
    public String toString() {
        return "OutboxRecord[id=" + id + ", type=" + type + ", key=" + key + "]";
    }

    /** Collects the fields of a record; all but the type and the payload have defaults. */
    public static final class Builder {
        private Object id;
        private String key;
        private String type;
        private Object payload;
        private boolean payloadGiven;
        private String contentType;
        private Map<String, Object> headers = new LinkedHashMap<>();
        private String destination;
        private String tenantId;
        private Instant createdAt;
        private Instant visibleAt;
        private String dedupKey;

        Builder() {}

        /**
         * Sets the message id. By default it is a new UUID.
         *
         * @param id unique in the outbox; stored as binary subtype 4, whatever UUID representation the client has
         * @return this
         */
        public Builder id(UUID id) {
            return anyId(id);
        }

        /**
         * Sets the message id. By default it is a new UUID.
         *
         * @param id unique in the outbox
         * @return this
         */
        public Builder id(ObjectId id) {
            return anyId(id);
        }

        /**
         * Sets the message id. By default it is a new UUID.
         *
         * @param id unique in the outbox
         * @return this
         */
        public Builder id(String id) {
            return anyId(id);
        }

        /**
         * Sets the message id. By default it is a new UUID.
         *
         * @param id unique in the outbox
         * @return this
         */
        public Builder id(int id) {
            return anyId(id);
        }

        /**
         * Sets the message id. By default it is a new UUID.
         *
         * @param id unique in the outbox
         * @return this
         */
        public Builder id(long id) {
            return anyId(id);
        }

        Builder anyId(Object id) {
            this.id = id;
            return this;
        }

        /**
         * Sets the key. Records of one key are delivered in the order of their insertion.
         *
         * @param key the id of what the message is about; null for no order
         * @return this
         */
        public Builder key(String key) {
            this.key = key;
            return this;
        }

        Builder type(String type) {
            this.type = type;
            return this;
        }

        /**
         * Sets the payload.
         *
         * @param payload a document, map or list is sent as JSON, a string as UTF-8 text, bytes as they are, null as an
         *     empty body; anything that the codecs of the database encode. It is read by {@code enqueue}, and not changed
         * @return this
         */
        public Builder payload(Object payload) {
            this.payload = payload;
            payloadGiven = true;
            return this;
        }

        /**
         * Sets the content type. By default the relay derives it from the payload.
         *
         * @param contentType a media type
         * @return this
         */
        public Builder contentType(String contentType) {
            this.contentType = contentType;
            return this;
        }

        /**
         * Adds a header to the message.
         *
         * @param name the name
         * @param value a string, number, boolean, date, ObjectId, UUID, decimal, binary or null
         * @return this
         */
        public Builder header(String name, Object value) {
            headers.put(name, value);
            return this;
        }

        /**
         * Adds headers to the message.
         *
         * @param headers values by name, as in {@link #header}
         * @return this
         */
        public Builder headers(Map<String, ?> headers) {
            this.headers.putAll(headers);
            return this;
        }

        /**
         * Sets the exchange or topic, in place of that of the route.
         *
         * @param destination the name, which the configuration of the sink must permit
         * @return this
         */
        public Builder destination(String destination) {
            this.destination = destination;
            return this;
        }

        /**
         * Sets the tenant, which is sent as a header.
         *
         * @param tenantId the tenant
         * @return this
         */
        public Builder tenantId(String tenantId) {
            this.tenantId = tenantId;
            return this;
        }

        /**
         * Sets the timestamp of the message. By default it is the time at which the record is built.
         *
         * @param createdAt the time; MongoDB keeps its milliseconds
         * @return this
         */
        public Builder createdAt(Instant createdAt) {
            this.createdAt = createdAt;
            return this;
        }

        /**
         * Schedules the record: it is not delivered before this time, and takes its place in its key then.
         *
         * @param visibleAt the time, by the clock of MongoDB
         * @return this
         */
        public Builder visibleAt(Instant visibleAt) {
            this.visibleAt = visibleAt;
            return this;
        }

        /**
         * Sets a key that is unique while the record exists: a second record with it fails with error 11000.
         *
         * @param dedupKey the key
         * @return this
         */
        public Builder dedupKey(String dedupKey) {
            this.dedupKey = dedupKey;
            return this;
        }

        /**
         * Creates the record, with a new id unless one was set.
         *
         * @return the record
         * @throws InvalidRecordException if the type or the payload is absent, or a text is not valid Unicode. The values
         *     of payload and headers are checked by {@code enqueue}
         */
        public OutboxRecord build() {
            return new OutboxRecord(this);
        }
    }
}
