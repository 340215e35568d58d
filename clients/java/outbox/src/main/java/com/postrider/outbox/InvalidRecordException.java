package com.postrider.outbox;

/** A record is null, or has a field with a value that the outbox cannot hold. Nothing was sent to MongoDB. */
public final class InvalidRecordException extends IllegalArgumentException {
    private static final long serialVersionUID = 1L;

    /** The path of the field. */
    private final String field;

    InvalidRecordException(String field, String problem) {
        this(field, problem, null);
    }

    InvalidRecordException(String field, String problem, Throwable cause) {
        super("outbox record: " + field + ": " + problem, cause);
        this.field = field;
    }

    /**
     * Returns the field, with its path where it is within the payload or the headers.
     *
     * @return for example {@code key} or {@code payload.lines.0.product}; {@code record} if the record is null
     */
    public String field() {
        return field;
    }
}
