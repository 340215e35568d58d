package com.postrider.spring;

import com.postrider.outbox.OutboxRecord;
import org.springframework.data.mongodb.core.MongoTemplate;
import org.springframework.transaction.annotation.Transactional;

/** A service as applications have them: the order and the message about it are one transaction. */
public class OrderService {
    private final MongoTemplate mongo;
    private final SpringOutbox outbox;
    private final Payloads payloads;

    public OrderService(MongoTemplate mongo, SpringOutbox outbox, Payloads payloads) {
        this.mongo = mongo;
        this.outbox = outbox;
        this.payloads = payloads;
    }

    @Transactional
    public Object place(Order order) {
        // Not save: that replaces a document which has the same id.
        mongo.insert(order);
        return outbox.enqueue(OutboxRecord.builder("OrderPlaced")
                .key(order.number())
                .payload(payloads.of(order))
                .build());
    }
}
