// The consumer of appended events: guarded by their version, without an inbox.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { MongoClient } from "mongodb";
import { databaseUri, environment, eventually, uniqueName } from "./support/environment.mjs";
import { startMongod } from "./support/mongod.mjs";
import { startExample } from "./support/program.mjs";
import { declareQueue } from "./support/rabbitmq.mjs";

let mongod, client, states, queue, start;
const programs = [];
before(async () => {
  mongod = await startMongod({ replicaSet: "consumers" });
  client = await new MongoClient(mongod.uri).connect();
  const database = client.db(uniqueName("test"));
  states = database.collection("states");
  queue = await declareQueue({ type: "quorum" });
  start = () => {
    const env = { AMQP_URI: environment("POSTRIDER_TEST_AMQP_URI"), QUEUE: queue.name };
    programs.push(startExample("consumer-versions.mjs", { ...env, MONGODB_URI: databaseUri(database, mongod.uri) }));
    return programs.at(-1);
  };
});
after(async () => {
  for (const program of programs) await program.kill();
  await queue?.close();
  await client?.close();
  await mongod?.stop();
});

/** The messages of the append that made this version, with the numbers of its events. */
function append(id, version, numbers) {
  return numbers.map((n, index) => ({
    id: `${id}-${version}-${index}`,
    key: id,
    body: JSON.stringify({ n }),
    headers: {
      "aggregate-name": "order",
      "aggregate-id": id,
      "aggregate-version": version,
      "event-index": index,
      "event-count": numbers.length,
    },
  }));
}

async function stateOf(id) {
  return (await states.findOne({ _id: id }, { projection: { _id: 0 } })) ?? undefined;
}

test("events_are_applied_once_and_in_order_when_they_are_repeated_and_the_consumer_is_killed", async () => {
  const versions = [append("a", 1, [1, 2, 3]), append("a", 2, [4]), append("a", 3, [5, 6])].flat();
  // A relay that crashed sends again from some place on; a late repetition is older than the state.
  await queue.publish([...versions.slice(0, 2), ...versions, ...versions.slice(4), ...versions]);
  const first = start();
  await first.until("an effect", async () => ((await stateOf("a"))?.n.length ?? 0) >= 2);
  await first.kill();
  const second = start();
  await second.until("all effects", async () => ((await stateOf("a"))?.n.length ?? 0) >= 6);
  await second.until("an empty queue", async () => (await queue.ready()) === 0);
  assert.deepEqual(await stateOf("a"), { version: 3, index: 1, count: 2, n: [1, 2, 3, 4, 5, 6] });
  assert.equal(second.stderr, "");
  await second.kill();
});

test("events_of_an_earlier_release_are_applied_once", async () => {
  const earlier = [append("e", 1, [0, 1]), append("e", 2, [2]), append("e", 3, [3, 4])].flat();
  for (const { headers } of earlier) {
    for (const name of ["aggregate-id", "event-count"]) delete headers[name];
  }
  await queue.publish([...earlier.slice(0, 3), ...earlier.slice(1), earlier[0], ...append("e", 4, [5])]);
  const consumer = start();
  await consumer.until("the last event", async () => (await stateOf("e"))?.version === 4);
  assert.deepEqual(await stateOf("e"), { version: 4, index: 0, count: 1, n: [0, 1, 2, 3, 4, 5] });
  assert.equal(consumer.stderr, "");
  await consumer.kill();
});

test("an_event_without_its_place_is_given_up", async () => {
  const [absent] = append("f", 1, [1]);
  delete absent.headers["aggregate-version"];
  await queue.publish([{ ...absent, id: "absent" }, ...append("g", 1, [1])]);
  const consumer = start();
  await consumer.until("the event behind it", async () => (await stateOf("g")) !== undefined);
  let letter;
  await eventually("the dead letter", async () => {
    letter = await queue.deadLetter();
    return letter;
  });
  assert.equal(letter.properties.messageId, "absent");
  assert.equal(await stateOf("f"), undefined);
  await consumer.kill();
});

// The guard is part of the write: another consumer can be between the read and the write of this one.
for (const applied of [0, 1, 2]) {
  test(`an_event_that_another_consumer_applies_meanwhile_is_applied_once_${applied}`, async () => {
    const id = `m${applied}`;
    const events = [append(id, 1, [0]), append(id, 2, [1, 2]), append(id, 3, [3])].flat();
    await queue.publish(events.slice(0, applied));
    const consumer = start();
    await consumer.until("the earlier events", async () => ((await stateOf(id))?.n.length ?? 0) === applied);
    const { headers } = events[applied];
    const place = {
      version: headers["aggregate-version"],
      index: headers["event-index"],
      count: headers["event-count"],
    };
    await client.withSession(async (session) => {
      session.startTransaction();
      const change = { $set: place, $push: { n: applied } };
      await states.updateOne({ _id: id }, change, { session, upsert: true });
      await queue.publish([events[applied]]);
      const waiting = [{ $currentOp: {} }, { $match: { ns: states.namespace, op: "update" } }];
      await consumer.until(
        "a write that waits",
        async () => (await client.db("admin").aggregate(waiting).toArray()).length > 0,
      );
      await session.commitTransaction();
    });
    await queue.publish([events[applied + 1]]);
    await consumer.until("the next event", async () => (await stateOf(id)).n.includes(applied + 1));
    assert.deepEqual(
      (await stateOf(id)).n,
      Array.from({ length: applied + 2 }, (_, n) => n),
    );
    await consumer.kill();
  });
}

test("an_event_behind_a_gap_is_given_up_after_five_attempts", async () => {
  const [first, lost, third] = [append("b", 1, [1]), append("b", 2, [2, 3]), append("c", 1, [1])];
  await queue.publish([...first, lost[1], ...third]);
  const consumer = start();
  await consumer.until("the event behind the gap", async () => (await stateOf("c")) !== undefined);
  assert.deepEqual(await stateOf("b"), { version: 1, index: 0, count: 1, n: [1] });
  let letter;
  await eventually("the dead letter", async () => {
    letter = await queue.deadLetter();
    return letter;
  });
  assert.equal(letter.properties.messageId, "b-2-1");
  assert.match(consumer.stderr, /b: 2\.1 came, 2\.0 is next/);
});
