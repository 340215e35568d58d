// Compiled by tsc in each project: the types fit those of both majors of the driver.

import { Outbox, OutboxError, OutboxRecord, type RecordFields, type RecordId } from "@postrider/outbox";
import { type Message, startPostrider } from "@postrider/outbox/testing";
import * as mongodb from "mongodb";

export async function use(client: mongodb.MongoClient, session: mongodb.ClientSession): Promise<RecordId> {
  const outbox = new Outbox(client.db("shop"), {
    collectionPrefix: "shop_",
    headers: () => ({ traceparent: "00-1-2-01", attempt: 1, id: new mongodb.UUID() }),
    driver: mongodb,
  });
  await outbox.probe();
  const fields: RecordFields = {
    id: new mongodb.ObjectId(),
    key: "order-7",
    type: "OrderCreated",
    payload: { total: new mongodb.Decimal128("1.50"), large: 3n },
    headers: { source: "shop", count: mongodb.Long.fromNumber(1), bytes: Buffer.from("a"), none: undefined },
    createdAt: new Date(),
    visibleAt: null,
  };
  const ids: RecordId[] = [new mongodb.UUID(), new mongodb.Long(1), "text", 7, 8n];
  for (const id of ids) new OutboxRecord({ ...fields, id });

  // @ts-expect-error: the payload is missing
  new OutboxRecord({ type: "T" });
  // @ts-expect-error: a key is text
  new OutboxRecord({ type: "T", payload: 1, key: 7 });
  // @ts-expect-error: no such field
  new OutboxRecord({ type: "T", payload: 1, content_type: "text/plain" });
  // @ts-expect-error: a date is no text
  new OutboxRecord({ type: "T", payload: 1, createdAt: "2026-01-01" });
  // @ts-expect-error: a header is a scalar
  new OutboxRecord({ type: "T", payload: 1, headers: { list: [1] } });
  // @ts-expect-error: fields are not yet a record
  await outbox.enqueue(session, fields);
  // @ts-expect-error: options are not a session
  await outbox.enqueue({ session }, new OutboxRecord(fields));

  const record = new OutboxRecord(fields);
  const messageId: string = record.messageId;
  try {
    return await outbox.enqueue(session, record);
  } catch (error) {
    if (error instanceof OutboxError) console.error(error.field, messageId);
    throw error;
  }
}

export async function receive(uri: string): Promise<Message[]> {
  const postrider = await startPostrider({ uri, settings: { "relay.poll_interval": "100ms" } });
  const messages = await postrider.waitForMessages(1, { key: "order-7", timeoutMs: 10_000 });
  await postrider.stop();
  return messages;
}
