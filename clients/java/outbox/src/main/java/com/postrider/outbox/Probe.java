package com.postrider.outbox;

import com.mongodb.MongoException;
import com.mongodb.client.ClientSession;
import com.mongodb.client.MongoClient;
import com.mongodb.client.MongoCollection;
import com.mongodb.client.model.Filters;
import com.mongodb.client.model.Projections;
import java.time.Instant;
import java.time.temporal.ChronoUnit;
import java.util.UUID;
import org.bson.BsonDateTime;
import org.bson.BsonDocument;
import org.bson.BsonNull;
import org.bson.BsonString;
import org.bson.BsonTimestamp;
import org.bson.BsonValue;

/** Inserts a record in a transaction, looks at its sequence, and aborts. */
final class Probe {
    private static final int ILLEGAL_OPERATION = 20;
    private static final int UNAUTHORIZED = 13;
    private static final int OPERATION_NOT_SUPPORTED_IN_TRANSACTION = 263;
    private static final String DRIVER_HAS_NO_SESSIONS = "Sessions are not supported";

    private final MongoCollection<BsonDocument> records;

    Probe(MongoCollection<BsonDocument> records) {
        this.records = records;
    }

    void run(MongoClient client) {
        BsonDocument record = record();
        BsonDocument stored;
        try (ClientSession session = client.startSession()) {
            // The driver repeats it after a transient error, and commits nothing that has been aborted.
            stored = session.withTransaction(() -> {
                records.insertOne(session, record);
                BsonDocument found = find(session, record);
                session.abortTransaction();
                return found;
            });
        } catch (MongoException e) {
            throw explained(e);
        }
        if (stored == null) {
            throw new ProbeException("a record that a transaction inserted is not visible in the same transaction; "
                    + "connect to MongoDB itself, not through a proxy or service that ignores transactions");
        }
        BsonValue seq = stored.get("seq");
        boolean filled = seq instanceof BsonTimestamp timestamp && timestamp.getValue() != 0;
        if (!filled) {
            throw new ProbeException("seq = " + (seq == null ? "absent" : seq)
                    + " after the insertion: MongoDB did not replace the zero timestamp with its cluster time, on which the "
                    + "order of messages rests; find the driver, proxy or service in between that changes inserted "
                    + "documents, and connect to a MongoDB server without it");
        }
    }

    private BsonDocument find(ClientSession session, BsonDocument record) {
        try {
            return records.find(session, Filters.eq("_id", record.get("_id")))
                    .projection(Projections.include("seq"))
                    .first();
        } catch (MongoException e) {
            if (e.getCode() == UNAUTHORIZED) {
                throw new ProbeException(
                        "the user of the client may not read " + records.getNamespace()
                                + "; grant the action find on this collection, or do not call probe",
                        e);
            }
            throw e;
        }
    }

    /** A record as enqueue writes it, that no relay would deliver for a year if something kept it in spite of the abort. */
    private static BsonDocument record() {
        Instant now = Instant.now();
        return new BsonDocument("_id", Checks.uuid(UUID.randomUUID()))
                .append("type", new BsonString("postrider.probe"))
                .append("payload", BsonNull.VALUE)
                .append("status", new BsonString("scheduled"))
                .append("seq", new BsonTimestamp(0, 0))
                .append("createdAt", new BsonDateTime(now.toEpochMilli()))
                .append(
                        "visibleAt",
                        new BsonDateTime(now.plus(365, ChronoUnit.DAYS).toEpochMilli()));
    }

    private RuntimeException explained(MongoException error) {
        for (Throwable cause = error; cause != null; cause = cause.getCause()) {
            int code = cause instanceof MongoException mongo ? mongo.getCode() : 0;
            String message = String.valueOf(cause.getMessage());
            if (code == ILLEGAL_OPERATION || message.startsWith(DRIVER_HAS_NO_SESSIONS)) {
                return new ProbeException(
                        "the deployment has no transactions, which an outbox needs; connect to a replica set (one member "
                                + "is enough: start mongod with --replSet and call rs.initiate())",
                        error);
            }
            if (code == OPERATION_NOT_SUPPORTED_IN_TRANSACTION) {
                return new ProbeException(
                        "a transaction cannot write to " + records.getNamespace()
                                + "; create the collection (postrider schema apply)",
                        error);
            }
        }
        return error;
    }
}
