// Asserts on the messages that an application sends: the real Postrider, with a file in place of the broker.
//
//   POSTRIDER_BIN=… POSTRIDER_TEST_MONGODB_URI=mongodb://localhost:27017/?replicaSet=rs0 node --test test-recipe.test.mjs

// docs:begin test-recipe
import assert from "node:assert/strict";
import { randomUUID } from "node:crypto";
import { after, before, test } from "node:test";
import { Outbox, OutboxRecord } from "@postrider/outbox";
import { startPostrider } from "@postrider/outbox/testing";
import { MongoClient } from "mongodb";

const uri = process.env.POSTRIDER_TEST_MONGODB_URI;
const client = new MongoClient(uri);
const db = client.db(`test-${randomUUID()}`);
let postrider;

before(async () => {
  postrider = await startPostrider({ uri, database: db.databaseName });
});
after(async () => {
  await postrider?.stop();
  await db.dropDatabase();
  await client.close();
});

test("an order that is placed and paid sends two messages", async () => {
  const outbox = new Outbox(db);
  for (const type of ["OrderPlaced", "OrderPaid"]) {
    const record = new OutboxRecord({ key: "order-7", type, payload: { order: "order-7" } });
    await client.withSession((session) => session.withTransaction(() => outbox.enqueue(session, record)));
  }

  const messages = await postrider.waitForMessages(2, { key: "order-7" });
  assert.deepEqual(
    messages.map(({ type, payload }) => [type, payload.order]),
    [
      ["OrderPlaced", "order-7"],
      ["OrderPaid", "order-7"],
    ],
  );
});
// docs:end test-recipe
