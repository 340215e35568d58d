import { context, propagation } from "@opentelemetry/api";

/**
 * The headers of the active trace, by the propagator of the application: `traceparent`, `tracestate`, `baggage`.
 *
 * ```js
 * const outbox = new Outbox(database, { headers: traceHeaders });
 * ```
 */
export function traceHeaders(): Record<string, string> {
  const carrier: Record<string, string> = {};
  propagation.inject(context.active(), carrier);
  return carrier;
}
