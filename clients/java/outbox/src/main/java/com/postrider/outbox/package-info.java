/**
 * Enqueues messages in the outbox of Postrider, within a MongoDB transaction of the application.
 *
 * <p>{@link com.postrider.outbox.OutboxRecord} is a message to send, {@link com.postrider.outbox.Outbox} inserts it. The
 * package {@link com.postrider.outbox.testing} starts a relay for tests, and {@link com.postrider.outbox.opentelemetry}
 * adds the trace context to the headers of messages.
 */
package com.postrider.outbox;
