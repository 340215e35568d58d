package com.postrider.spring;

import com.mongodb.client.ClientSession;
import org.springframework.data.mongodb.MongoDatabaseFactory;
import org.springframework.data.mongodb.MongoTransactionManager;
import org.springframework.transaction.TransactionDefinition;
import org.springframework.transaction.support.DefaultTransactionDefinition;
import org.springframework.transaction.support.DefaultTransactionStatus;

/** A MongoTransactionManager that gives access to the session which Spring holds for the calling thread. */
public class SessionTransactionManager extends MongoTransactionManager {
    private static final long serialVersionUID = 1L;
    private static final TransactionDefinition MANDATORY =
            new DefaultTransactionDefinition(TransactionDefinition.PROPAGATION_MANDATORY);

    public SessionTransactionManager(MongoDatabaseFactory databases) {
        super(databases);
    }

    /**
     * Returns the session of the transaction of the calling thread.
     *
     * @throws org.springframework.transaction.IllegalTransactionStateException if there is no transaction
     */
    public ClientSession currentSession() {
        // Joins the transaction: that begins nothing, and its end ends nothing.
        DefaultTransactionStatus joined = (DefaultTransactionStatus) getTransaction(MANDATORY);
        try {
            return ((MongoTransactionObject) joined.getTransaction()).getSession();
        } finally {
            commit(joined);
        }
    }
}
