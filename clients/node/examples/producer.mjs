// Reads lines "KEY N", and changes the order KEY and enqueues a record of it in one transaction for each. Prints the
// message id after the commit.
//
//   MONGODB_URI=mongodb://localhost:27017/shop node producer.mjs

import { createInterface } from "node:readline";

// docs:begin producer
import { Outbox, OutboxRecord } from "@postrider/outbox";
import { MongoClient } from "mongodb";

const client = new MongoClient(process.env.MONGODB_URI);
const db = client.db();
const outbox = new Outbox(db);
await outbox.probe();

async function changeOrder(key, n) {
  // Before the transaction: a callback that the driver repeats writes the same message id.
  const record = new OutboxRecord({ key, type: "OrderChanged", payload: { order: key, n } });
  await client.withSession((session) =>
    session.withTransaction(async () => {
      await db.collection("orders").updateOne({ _id: key }, { $push: { n } }, { upsert: true, session });
      await outbox.enqueue(session, record);
    }),
  );
  return record.messageId;
}
// docs:end producer

for await (const line of createInterface({ input: process.stdin })) {
  const [key, n] = line.split(" ");
  console.log(await changeOrder(key, Number(n)));
}
await client.close();
