/** Adds the trace context of OpenTelemetry to messages; needs {@code io.opentelemetry:opentelemetry-api}. */
package com.postrider.outbox.opentelemetry;
