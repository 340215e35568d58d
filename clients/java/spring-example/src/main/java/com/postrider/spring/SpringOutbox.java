package com.postrider.spring;

import com.postrider.outbox.Outbox;
import com.postrider.outbox.OutboxRecord;

/** Enqueues records in the transaction that Spring has begun: by {@code @Transactional} or a TransactionTemplate. */
public class SpringOutbox {
    private final Outbox outbox;
    private final SessionTransactionManager transactions;

    public SpringOutbox(Outbox outbox, SessionTransactionManager transactions) {
        this.outbox = outbox;
        this.transactions = transactions;
    }

    /**
     * Inserts a record in the transaction of the calling method.
     *
     * @return the id of the record, whose text is the message id
     * @throws org.springframework.transaction.IllegalTransactionStateException if there is no transaction
     */
    public Object enqueue(OutboxRecord record) {
        return outbox.enqueue(transactions.currentSession(), record);
    }
}
