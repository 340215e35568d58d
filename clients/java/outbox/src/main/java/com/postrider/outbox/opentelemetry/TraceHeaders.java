package com.postrider.outbox.opentelemetry;

import io.opentelemetry.api.OpenTelemetry;
import io.opentelemetry.context.Context;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.function.Supplier;

/**
 * A hook for {@link com.postrider.outbox.Outbox.Builder#headers} that gives each record the trace context in which it is
 * enqueued: {@code traceparent} and {@code tracestate}, or the headers of other propagators of the application.
 *
 * <pre>{@code
 * Outbox outbox = Outbox.builder(database).headers(TraceHeaders.of(openTelemetry)).build();
 * }</pre>
 */
public final class TraceHeaders implements Supplier<Map<String, String>> {
    private final OpenTelemetry openTelemetry;

    private TraceHeaders(OpenTelemetry openTelemetry) {
        this.openTelemetry = openTelemetry;
    }

    /**
     * Returns a hook that uses the propagators of an OpenTelemetry.
     *
     * @param openTelemetry for example {@code GlobalOpenTelemetry.get()}
     * @return the hook
     */
    public static TraceHeaders of(OpenTelemetry openTelemetry) {
        return new TraceHeaders(openTelemetry);
    }

    /** Returns the headers of the current context; empty outside of a trace. */
    @Override
    public Map<String, String> get() {
        Map<String, String> headers = new LinkedHashMap<>();
        openTelemetry.getPropagators().getTextMapPropagator().inject(Context.current(), headers, Map::put);
        return headers;
    }
}
