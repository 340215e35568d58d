// The consumer of examples/, against RabbitMQ: each message once, whatever ends the program.

import assert from "node:assert/strict";
import { after, before, describe, test } from "node:test";
import { startPostrider } from "@postrider/outbox/testing";
import { MongoClient } from "mongodb";
import { expected, holdAfterCommit, messagesOf, received, receivedCount, whileLocked } from "./support/consumer.mjs";
import { databaseUri, environment, uniqueName } from "./support/environment.mjs";
import { startMongod } from "./support/mongod.mjs";
import { startExample } from "./support/program.mjs";
import { declareQueue } from "./support/rabbitmq.mjs";

let mongod, client;
before(async () => {
  mongod = await startMongod({ replicaSet: "consumers" });
  client = await new MongoClient(mongod.uri).connect();
});
after(async () => {
  await client?.close();
  await mongod?.stop();
});

/** Runs the test with a queue and a database of its own. */
function withQueue(type, work) {
  return async () => {
    const queue = await declareQueue({ type });
    const database = client.db(uniqueName("test"));
    const uri = databaseUri(database, mongod.uri);
    const programs = [];
    const start = (mongodbUri = uri) => {
      const env = { MONGODB_URI: mongodbUri, AMQP_URI: environment("POSTRIDER_TEST_AMQP_URI"), QUEUE: queue.name };
      programs.push(startExample("consumer-rabbitmq.mjs", env));
      return programs.at(-1);
    };
    try {
      await work({ queue, database, uri, start });
    } finally {
      for (const program of programs) await program.kill();
      await queue.close();
    }
  };
}

for (const type of ["quorum", "classic"]) {
  describe(`a ${type} queue`, () => {
    test(
      "each_effect_is_there_once_when_the_consumer_is_killed_again_and_again",
      withQueue(type, async ({ queue, database, start }) => {
        const keys = ["a", "b", "c"];
        await queue.publish(messagesOf(keys, 12));
        for (const count of [4, 13, 27]) {
          const consumer = start();
          await consumer.until(`${count} effects`, async () => (await receivedCount(database)) >= count);
          await consumer.kill();
        }
        const consumer = start();
        await consumer.until("all effects", async () => (await receivedCount(database)) >= 36);
        await consumer.until("an empty queue", async () => (await queue.ready()) === 0);
        assert.deepEqual(await received(database), expected(keys, 12));
      }),
    );

    test(
      "a_message_that_ends_the_process_is_given_up_after_five_attempts",
      withQueue(type, async ({ queue, database, start }) => {
        await queue.publish([
          { id: "poison", key: "held", body: '{"n":7}' },
          { id: "behind", key: "a", body: '{"n":1}' },
        ]);
        // The process ends while it applies the message: here it waits for a lock then, and is killed.
        await whileLocked(database, "received", "held", async (conflicts) => {
          for (let attempt = 1; attempt <= 5; attempt++) {
            const before = await conflicts();
            const consumer = start();
            await consumer.until("a conflict", async () => (await conflicts()) > before);
            await consumer.kill();
          }
        });
        const consumer = start();
        await consumer.until("the effect behind it", async () => (await receivedCount(database)) === 1);
        assert.deepEqual(await received(database), { a: [1] });
        const letter = await queue.awaitDeadLetter();
        assert.equal(letter.properties.messageId, "poison");
      }),
    );

    test(
      "an_effect_is_there_once_when_the_consumer_is_killed_within_its_transaction",
      withQueue(type, async ({ queue, database, start }) => {
        await queue.publish([{ id: "message", key: "held", body: '{"n":7}' }]);
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
      "a_poison_message_is_given_up_after_five_attempts",
      withQueue(type, async ({ queue, database, start }) => {
        const [first, second] = messagesOf(["a"], 2);
        const poison = [
          { id: "not json", key: "a", body: "{" },
          { id: "no effect", key: "a", body: "null" },
        ];
        await queue.publish([first, ...poison, second]);
        const consumer = start();
        await consumer.until("the effect behind the poison", async () => (await receivedCount(database)) === 2);
        assert.deepEqual(await received(database), { a: [1, 2] });
        for (const attempts of [5, 10]) {
          for (const { id } of poison) {
            const letter = await queue.awaitDeadLetter();
            assert.equal(letter.properties.messageId, id);
            assert.equal(consumer.stderr.match(new RegExp(`^${id} \\w+Error`, "gm")).length, attempts);
          }
          assert.equal(await database.collection("inbox_failures").countDocuments(), 0);
          if (attempts === 5) await queue.publish(poison); // An operator moves them back.
        }
      }),
    );
  });
}

test(
  "incomplete_messages_are_given_up",
  withQueue("quorum", async ({ queue, database, start }) => {
    const foreign = [{}, { message_id: "" }, { message_id: "no headers" }, { message_id: "no key", headers: {} }];
    for (const properties of foreign) await queue.publishForeign('{"n":1}', properties);
    await queue.publish(messagesOf(["a"], 1));
    const consumer = start();
    await consumer.until("the effect behind them", async () => (await receivedCount(database)) === 1);
    assert.deepEqual(await received(database), { a: [1] });
    for (const { message_id: id } of foreign) {
      const letter = await queue.awaitDeadLetter();
      assert.equal(letter.properties.messageId, id);
    }
  }),
);

test(
  "each_effect_is_there_once_when_consumers_compete_for_repetitions",
  withQueue("classic", async ({ queue, database, start }) => {
    const messages = messagesOf(["a", "b"], 8);
    await queue.publish(messages.flatMap((message) => [message, message]));
    const [one, two] = [start(), start()];
    const again = () => [...one.lines, ...two.lines].filter((line) => line.endsWith(" again")).length;
    await one.until("all deliveries", async () => (await receivedCount(database)) + again() >= 32);
    const counts = Object.values(await received(database)).map((n) => [n.length, new Set(n).size]);
    assert.deepEqual(counts, [
      [8, 8],
      [8, 8],
    ]);
  }),
);

test(
  "the_messages_of_a_producer_arrive_through_postrider",
  withQueue("quorum", async ({ queue, database, uri, start }) => {
    const postrider = await startPostrider({
      uri,
      settings: {
        "relay.default_sink": "queue",
        "sinks.queue.kind": "rabbitmq",
        "sinks.queue.uri": environment("POSTRIDER_TEST_AMQP_URI"),
        "sinks.queue.routing_key": queue.name,
      },
    });
    try {
      const producer = startExample("producer.mjs", { MONGODB_URI: uri });
      for (let n = 1; n <= 10; n++) producer.write(`a ${n}\nb ${n}\n`);
      assert.equal(await producer.finish(), 0, producer.stderr);
      assert.equal(producer.lines.length, 20);
      const consumer = start();
      await consumer.until("all effects", async () => (await receivedCount(database)) >= 20);
      assert.deepEqual(await received(database), expected(["a", "b"], 10));
      const inbox = await database.collection("inbox").find().toArray();
      assert.deepEqual(inbox.map(({ _id }) => _id.message).sort(), producer.lines.sort());
    } finally {
      await postrider.stop();
    }
  }),
);

test(
  "an_effect_is_not_repeated_when_the_consumer_is_killed_between_commit_and_acknowledgement",
  withQueue("quorum", async ({ queue, database, uri, start }) => {
    await queue.publish(messagesOf(["a"], 3));
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
