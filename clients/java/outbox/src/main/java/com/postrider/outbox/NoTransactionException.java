package com.postrider.outbox;

/** The session of an {@code enqueue} has no running transaction. Nothing was sent to MongoDB. */
public final class NoTransactionException extends IllegalStateException {
    private static final long serialVersionUID = 1L;

    NoTransactionException() {
        super("outbox: session: has no running transaction; "
                + "call enqueue between startTransaction and commitTransaction, or within withTransaction");
    }

    /**
     * Returns the argument that is wrong.
     *
     * @return {@code session}
     */
    public String field() {
        return "session";
    }
}
