// The consumer of examples/, against Kafka: each message once, whatever ends the program.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { startPostrider } from "@postrider/outbox/testing";
import { MongoClient } from "mongodb";
import { expected, holdAfterCommit, messagesOf, received, receivedCount, whileLocked } from "./support/consumer.mjs";
import { databaseUri, environment, uniqueName } from "./support/environment.mjs";
import { createTopic } from "./support/kafka.mjs";
import { startMongod } from "./support/mongod.mjs";
import { startExample } from "./support/program.mjs";

let mongod, client;
before(async () => {
  mongod = await startMongod({ replicaSet: "consumers" });
  client = await new MongoClient(mongod.uri).connect();
});
after(async () => {
  await client?.close();
  await mongod?.stop();
});

/** Runs the test with a topic and a database of its own. */
function withTopic(work) {
  return async () => {
    const topic = await createTopic();
    const database = client.db(uniqueName("test"));
    const uri = databaseUri(database, mongod.uri);
    const programs = [];
    const start = (mongodbUri = uri) => {
      const env = { KAFKA_BROKERS: environment("POSTRIDER_TEST_KAFKA_BROKERS"), TOPIC: topic.name, GROUP: topic.group };
      env.INSTANCE = "one";
      programs.push(startExample("consumer-kafka.mjs", { ...env, MONGODB_URI: mongodbUri }));
      return programs.at(-1);
    };
    try {
      await work({ topic, database, uri, start });
    } finally {
      for (const program of programs) await program.kill();
      await topic.close();
    }
  };
}

test(
  "each_effect_is_there_once_when_the_consumer_is_killed_again_and_again",
  withTopic(async ({ topic, database, start }) => {
    const keys = ["a", "b", "c"];
    const messages = messagesOf(keys, 12);
    await topic.publish([...messages.slice(0, 20), ...messages.slice(15)]); // five of them twice
    for (const count of [4, 20]) {
      const consumer = start();
      await consumer.until(`${count} effects`, async () => (await receivedCount(database)) >= count);
      await consumer.kill();
    }
    const consumer = start();
    await consumer.until("all effects", async () => (await receivedCount(database)) >= 36);
    assert.deepEqual(await received(database), expected(keys, 12));
  }),
);

test(
  "an_effect_is_not_repeated_when_the_consumer_is_killed_between_commit_and_offset",
  withTopic(async ({ topic, database, uri, start }) => {
    await topic.publish(messagesOf(["a"], 3));
    const held = await holdAfterCommit(client, uri);
    try {
      const consumer = start(held.uri);
      await consumer.until("a commit", async () => (await receivedCount(database)) === 1);
      await consumer.kill();
    } finally {
      await held.release();
    }
    const next = start();
    await next.until("the other effects", async () => (await receivedCount(database)) === 3);
    assert.deepEqual(await received(database), { a: [1, 2, 3] });
    assert.deepEqual(next.lines, ["a-1 again"]);
  }),
);

test(
  "an_effect_is_there_once_when_the_consumer_is_killed_within_its_transaction",
  withTopic(async ({ topic, database, start }) => {
    await topic.publish([{ id: "message", key: "held", body: '{"n":7}' }]);
    await whileLocked(database, "received", "held", async (conflicts) => {
      const consumer = start();
      await consumer.until("a conflict", async () => (await conflicts()) > 0);
      await consumer.kill();
    });
    const next = start();
    await next.until("the effect", async () => (await receivedCount(database)) === 1);
    assert.deepEqual(await received(database), { held: [7] });
  }),
);

test(
  "a_message_that_ends_the_process_is_given_up_after_five_attempts",
  withTopic(async ({ topic, database, uri, start }) => {
    const [first, second] = messagesOf(["a"], 2);
    await topic.publish([first, { id: "poison", key: "held", body: '{"n":7}' }, second]);
    const failures = database.collection("inbox_failures");
    // The offset of the one before is missing, so it comes again in front of the other.
    const held = await holdAfterCommit(client, uri);
    try {
      const consumer = start(held.uri);
      await consumer.until("a commit", async () => (await receivedCount(database)) === 1);
      await consumer.kill();
    } finally {
      await held.release();
    }
    // The process ends while it applies the message: here it waits for a lock then, and is killed.
    await whileLocked(database, "received", "held", async (conflicts) => {
      for (let counted = 1; counted <= 5; counted++) {
        const before = await conflicts();
        const consumer = start();
        await consumer.until("a conflict", async () => (await conflicts()) > before);
        const found = await failures.findOne({ "_id.message": "poison" });
        assert.equal(found?.attempts ?? 0, counted);
        await consumer.kill();
      }
    });
    const consumer = start();
    await consumer.until("the effect behind it", async () => (await received(database)).a?.length === 2);
    assert.deepEqual(await received(database), { a: [1, 2] });
    const [letter] = await topic.deadLetters(1);
    assert.equal(letter.headers["message-id"], "poison");
    assert.equal(letter.headers.failure, "it ended the process");
    await consumer.until("the end of the count", async () => (await failures.countDocuments()) === 0);
  }),
);

test(
  "a_poison_message_is_given_up_after_five_attempts",
  withTopic(async ({ topic, database, start }) => {
    const [first, second, third] = messagesOf(["a"], 3);
    const poison = { id: "not json", key: "a", body: "{" };
    await topic.publish([first, poison, { id: "no effect", key: "a", body: "null" }, second]);
    const consumer = start();
    await consumer.until("the effect behind the poison", async () => (await receivedCount(database)) === 2);
    const letters = await topic.deadLetters(2);
    assert.deepEqual(
      letters.map(({ key, value, headers }) => [key, value, headers["message-id"], headers["message-type"]]),
      [
        ["a", "{", "not json", "OrderChanged"],
        ["a", "null", "no effect", "OrderChanged"],
      ],
    );
    assert.match(letters[0].headers.failure, /SyntaxError/);
    assert.match(letters[1].headers.failure, /TypeError/);
    assert.equal(consumer.stderr.match(/^not json SyntaxError/gm).length, 5);
    assert.equal(consumer.stderr.match(/^no effect TypeError/gm).length, 5);
    await consumer.until(
      "the end of the counts",
      async () => (await database.collection("inbox_failures").countDocuments()) === 0,
    );

    // A stop leaves the group. The offset is behind them: the next start does not see them again.
    assert.equal(await consumer.stop(), 0, consumer.stderr);
    await topic.publish([third]);
    const next = start();
    await next.until("one more effect", async () => (await receivedCount(database)) === 3);
    assert.deepEqual(await received(database), { a: [1, 2, 3] });
    assert.equal(next.stderr, "");
  }),
);

test(
  "incomplete_messages_are_given_up",
  withTopic(async ({ topic, database, start }) => {
    const [a, body] = [Buffer.from("a"), Buffer.from('{"n":1}')];
    const withId = (id) => new Map([[Buffer.from("message-id"), id === null ? id : Buffer.from(id)]]);
    await topic.publishRecords([
      { value: undefined }, // a tombstone of another program
      { key: a, value: body, headers: withId(null) },
      { key: a, value: body, headers: withId("") },
      { key: a, value: undefined, headers: withId("tombstone") },
      { value: body, headers: withId("no key") },
    ]);
    await topic.publish(messagesOf(["b"], 1));
    const consumer = start();
    await consumer.until("the effect behind them", async () => (await receivedCount(database)) === 1);
    assert.deepEqual(await received(database), { b: [1] });
    const letters = await topic.deadLetters(5);
    const failures = letters.map(({ headers }) => headers.failure);
    assert.deepEqual(failures, [
      ...Array(3).fill("no message-id"),
      ...Array(2).fill("TypeError: a message without a key or a value"),
    ]);
  }),
);

test(
  "the_messages_of_a_producer_arrive_through_postrider",
  withTopic(async ({ topic, database, uri, start }) => {
    const postrider = await startPostrider({
      uri,
      settings: {
        "relay.default_sink": "stream",
        "sinks.stream.kind": "kafka",
        "sinks.stream.brokers": environment("POSTRIDER_TEST_KAFKA_BROKERS"),
        "sinks.stream.topic": topic.name,
      },
    });
    try {
      const producer = startExample("producer.mjs", { MONGODB_URI: uri });
      for (let n = 1; n <= 5; n++) producer.write(`a ${n}\nb ${n}\n`);
      assert.equal(await producer.finish(), 0, producer.stderr);
      const consumer = start();
      await consumer.until("all effects", async () => (await receivedCount(database)) >= 10);
      assert.deepEqual(await received(database), expected(["a", "b"], 5));
      const inbox = await database.collection("inbox").find().toArray();
      assert.deepEqual(inbox.map(({ _id }) => _id.message).sort(), producer.lines.sort());
    } finally {
      await postrider.stop();
    }
  }),
);
