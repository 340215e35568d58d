// The producer of examples/: several in turns, and one that is killed.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { MongoClient } from "mongodb";
import { databaseUri, uniqueName } from "./support/environment.mjs";
import { startMongod } from "./support/mongod.mjs";
import { startExample } from "./support/program.mjs";

let mongod, client, database, records;
before(async () => {
  mongod = await startMongod({ replicaSet: "producers" });
  client = await new MongoClient(mongod.uri).connect();
  database = client.db(uniqueName("test"));
  records = database.collection("outbox_records");
});
after(async () => {
  await client?.close();
  await mongod?.stop();
});

const start = () => startExample("producer.mjs", { MONGODB_URI: databaseUri(database, mongod.uri) });

test("two_producers_in_turns_write_records_in_the_order_of_their_commits", async () => {
  const producers = [start(), start()];
  const ids = [];
  for (let n = 1; n <= 10; n++) {
    const producer = producers[n % 2];
    const before = producer.lines.length;
    producer.write(`turns ${n}\n`);
    await producer.until("its id", () => producer.lines.length > before);
    ids.push(producer.lines.at(-1));
  }
  for (const producer of producers) assert.equal(await producer.finish(), 0, producer.stderr);
  const stored = await records.find({ key: "turns" }).sort({ seq: 1 }).toArray();
  assert.deepEqual(
    stored.map(({ _id }) => String(_id)),
    ids,
  );
  assert.deepEqual(stored[0].payload, { order: "turns", n: 1 });
  const order = await database.collection("orders").findOne({ _id: "turns" });
  assert.deepEqual(
    order.n,
    stored.map(({ payload }) => payload.n),
  );
});

test("change_and_record_are_both_there_or_neither_when_the_producer_is_killed", async () => {
  const producer = start();
  for (let n = 1; n <= 200; n++) producer.write(`killed ${n}\n`);
  await producer.until("some commits", () => producer.lines.length >= 5);
  await producer.kill();
  const order = await database.collection("orders").findOne({ _id: "killed" });
  const stored = await records.find({ key: "killed" }).sort({ seq: 1 }).toArray();
  assert.ok(stored.length >= producer.lines.length);
  assert.deepEqual(
    stored.map(({ payload }) => payload.n),
    order.n,
  );
});
