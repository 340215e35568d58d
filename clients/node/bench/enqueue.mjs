// What `enqueue` costs: the same document in the same kind of transaction, by the library and by a bare insertOne, in
// turns. Prints the ratio of the medians; the target is at most 1.1.
//
//   POSTRIDER_TEST_MONGODB_URI=… node bench/enqueue.mjs [ROUNDS [TRANSACTIONS]]

import { Outbox, OutboxRecord, partitionOf } from "@postrider/outbox";
import { MongoClient, Timestamp, UUID } from "mongodb";

const rounds = Number(process.argv[2] ?? 9);
const transactions = Number(process.argv[3] ?? 200);
const client = new MongoClient(process.env.POSTRIDER_TEST_MONGODB_URI);
const database = client.db(`node_bench_${process.pid}`);
const records = database.collection("outbox_records");
const outbox = new Outbox(database);
const items = Array.from({ length: 10 }, (_, at) => ({
  sku: `sku-${at}`,
  count: at,
  price: 9.5 + at,
  tags: ["a", "b"],
}));
const payload = { order: "order-7", customer: "customer-123", total: 3000000000, items };

async function bare(session, n) {
  const key = `order-${n}`;
  await records.insertOne(
    {
      _id: new UUID(),
      key,
      type: "OrderCreated",
      payload,
      headers: { source: "shop" },
      status: "pending",
      seq: new Timestamp({ t: 0, i: 0 }),
      createdAt: new Date(),
      partition: partitionOf(key),
    },
    { session },
  );
}

async function library(session, n) {
  const headers = { source: "shop" };
  const record = new OutboxRecord({ key: `order-${n}`, type: "OrderCreated", payload, headers });
  await outbox.enqueue(session, record);
}

/** Milliseconds that a transaction takes. */
async function measure(session, insert, n) {
  const begin = process.hrtime.bigint();
  await session.withTransaction(() => insert(session, n));
  return Number(process.hrtime.bigint() - begin) / 1e6;
}

const median = (values) => values.sort((a, b) => a - b)[Math.floor(values.length / 2)];

try {
  await database.createCollection("outbox_records");
  const session = client.startSession();
  const times = { bare: [], library: [] };
  // One transaction after the other, in turns: what else the machine does slows both. The first round is not counted.
  for (let round = 0; round <= rounds; round++) {
    for (let n = 0; n < transactions; n++) {
      const order = n % 2 ? ["library", "bare"] : ["bare", "library"];
      for (const kind of order) {
        const time = await measure(session, kind === "bare" ? bare : library, n);
        if (round > 0) times[kind].push(time);
      }
    }
  }
  await session.endSession();
  const [one, other] = [median(times.bare), median(times.library)];
  console.log(
    `insertOne ${one.toFixed(3)} ms, enqueue ${other.toFixed(3)} ms a transaction: ratio ${(other / one).toFixed(3)}`,
  );
} finally {
  await database.dropDatabase();
  await client.close();
}
