package com.postrider.outbox.opentelemetry;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;

import com.postrider.outbox.Outbox;
import com.postrider.outbox.OutboxRecord;
import com.postrider.outbox.TestDatabase;
import io.opentelemetry.api.OpenTelemetry;
import io.opentelemetry.api.trace.Span;
import io.opentelemetry.api.trace.SpanContext;
import io.opentelemetry.api.trace.TraceFlags;
import io.opentelemetry.api.trace.TraceState;
import io.opentelemetry.api.trace.propagation.W3CTraceContextPropagator;
import io.opentelemetry.context.Context;
import io.opentelemetry.context.propagation.ContextPropagators;
import org.bson.BsonDocument;
import org.bson.BsonString;
import org.junit.jupiter.api.Test;

class TraceHeadersTest {
    private static final OpenTelemetry OPEN_TELEMETRY =
            OpenTelemetry.propagating(ContextPropagators.create(W3CTraceContextPropagator.getInstance()));
    private static final String TRACE = "0af7651916cd43dd8448eb211c80319c";
    private static final String SPAN = "b7ad6b7169203331";

    @Test
    void recordHasTheTraceInWhichItIsEnqueued() throws Exception {
        try (TestDatabase where = new TestDatabase()) {
            Outbox outbox = Outbox.builder(where.database)
                    .headers(TraceHeaders.of(OPEN_TELEMETRY))
                    .build();
            TraceState state = TraceState.builder().put("shop", "7").build();
            Span span = Span.wrap(SpanContext.create(TRACE, SPAN, TraceFlags.getSampled(), state));
            OutboxRecord record = OutboxRecord.builder("T").id("in").payload(1).build();

            Context.current()
                    .with(span)
                    .wrap(() -> where.enqueue(outbox, record))
                    .call();
            where.enqueue(outbox, OutboxRecord.builder("T").id("out").payload(1).build());

            BsonDocument headers = find(where, "in").getDocument("headers");
            assertEquals(new BsonString("00-" + TRACE + "-" + SPAN + "-01"), headers.get("traceparent"));
            assertEquals(new BsonString("shop=7"), headers.get("tracestate"));
            assertFalse(find(where, "out").containsKey("headers"));
        }
    }

    private static BsonDocument find(TestDatabase where, String id) {
        return where.records().find(new BsonDocument("_id", new BsonString(id))).first();
    }
}
