/**
 * Writes outbox records for Postrider, in the MongoDB transaction of your own change.
 *
 * ```js
 * const outbox = new Outbox(client.db());
 * const record = new OutboxRecord({ key: "order-7", type: "OrderCreated", payload: { order: "order-7" } });
 * await client.withSession((session) =>
 *   session.withTransaction(async () => {
 *     await orders.insertOne({ _id: "order-7" }, { session });
 *     await outbox.enqueue(session, record);
 *   }),
 * );
 * ```
 *
 * @module
 */
export type { BsonValue, Database, Driver, Session } from "./driver.js";
export { OutboxError } from "./errors.js";
export { Outbox, type OutboxOptions } from "./outbox.js";
export { partitionOf } from "./partition.js";
export { type Headers, type HeaderValue, OutboxRecord, type RecordFields, type RecordId } from "./record.js";
