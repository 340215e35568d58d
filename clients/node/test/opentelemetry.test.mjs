import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { context, propagation, trace } from "@opentelemetry/api";
import { AsyncLocalStorageContextManager } from "@opentelemetry/context-async-hooks";
import { W3CTraceContextPropagator } from "@opentelemetry/core";
import { BasicTracerProvider } from "@opentelemetry/sdk-trace-base";
import { Outbox, OutboxRecord } from "@postrider/outbox";
import { traceHeaders } from "@postrider/outbox/opentelemetry";
import { testDatabase } from "./support/environment.mjs";

let client, database, records, close;
before(async () => {
  context.setGlobalContextManager(new AsyncLocalStorageContextManager().enable());
  propagation.setGlobalPropagator(new W3CTraceContextPropagator());
  trace.setGlobalTracerProvider(new BasicTracerProvider());
  ({ client, database, records, close } = await testDatabase());
});
after(() => close());

async function headersOf(fields) {
  const outbox = new Outbox(database, { headers: traceHeaders });
  const record = new OutboxRecord({ type: "T", payload: 1, ...fields });
  const id = await client.withSession((session) => session.withTransaction(() => outbox.enqueue(session, record)));
  return (await records.findOne({ _id: id })).headers;
}

test("a_record_has_the_active_trace_when_it_is_enqueued", async () => {
  await trace.getTracer("test").startActiveSpan("order", async (span) => {
    const { traceId, spanId } = span.spanContext();
    const traceparent = `00-${traceId}-${spanId}-01`;
    assert.deepEqual(await headersOf({ headers: { source: "shop" } }), { source: "shop", traceparent });
    assert.deepEqual(await headersOf({ headers: { traceparent: "own" } }), { traceparent: "own" });
    span.end();
  });
});

test("a_record_has_no_trace_headers_without_an_active_span", async () => {
  assert.equal(await headersOf({}), undefined);
});
