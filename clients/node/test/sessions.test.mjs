// Transactions: calls in parallel, sessions that cannot be used, errors of the driver.

import assert from "node:assert/strict";
import { after, afterEach, before, describe, test } from "node:test";
import { Outbox, OutboxError, OutboxRecord } from "@postrider/outbox";
import { drivers, testDatabase } from "./support/environment.mjs";

const fields = { key: "order-7", type: "OrderCreated", payload: { order: 7 } };

function isRefusedSession(text) {
  return (error) => error instanceof OutboxError && error.field === "session" && error.message.includes(text);
}

for (const [at, driver] of drivers.entries()) {
  describe(driver.name, () => {
    let client, database, records, close, outbox;
    before(async () => {
      ({ client, database, records, close } = await testDatabase(driver));
      outbox = new Outbox(database, { driver: driver.module });
    });
    afterEach(() => records.deleteMany({}));
    after(() => close());

    test("parallel_calls_on_one_session_are_refused_and_nothing_is_stored", async () => {
      const ended = [];
      await assert.rejects(
        client.withSession((session) =>
          session.withTransaction(async () => {
            const calls = [1, 2, 3].map(() => outbox.enqueue(session, new OutboxRecord(fields)));
            calls.forEach((call, at) => {
              const note = () => ended.push(at);
              call.then(note, note);
            });
            await Promise.all(calls);
          }),
        ),
        isRefusedSession("await each"),
      );
      // The refusal came when the first call had ended: nothing of the session was under way at the abort.
      assert.equal(ended[0], 0);
      assert.equal(await records.countDocuments(), 0);
    });

    test("a_session_is_free_again_after_a_call_that_failed", async () => {
      await client.withSession(async (session) => {
        const record = new OutboxRecord({ ...fields, id: "twice" });
        session.startTransaction();
        await outbox.enqueue(session, record);
        await assert.rejects(outbox.enqueue(session, record), { code: 11000 });
        await session.abortTransaction();
        await session.withTransaction(() => outbox.enqueue(session, record));
      });
      assert.equal(await records.countDocuments(), 1);
    });

    test("parallel_calls_on_two_sessions_are_accepted", async () => {
      const enqueue = () =>
        client.withSession((session) =>
          session.withTransaction(() => outbox.enqueue(session, new OutboxRecord(fields))),
        );
      await Promise.all(Array.from({ length: 8 }, enqueue));
      assert.equal(await records.countDocuments(), 8);
    });

    test("two_outboxes_know_of_each_others_calls", async () => {
      const other = new Outbox(database, { driver: driver.module, collectionPrefix: "other_" });
      await client.withSession(async (session) => {
        session.startTransaction();
        const first = outbox.enqueue(session, new OutboxRecord(fields));
        await assert.rejects(other.enqueue(session, new OutboxRecord(fields)), isRefusedSession("await each"));
        await first;
        await session.abortTransaction();
      });
    });

    test("a_session_of_another_bson_is_refused_with_the_remedy", async () => {
      const other = new Outbox(database, { driver: drivers[1 - at].module });
      await client.withSession(async (session) => {
        session.startTransaction();
        await assert.rejects(
          other.enqueue(session, new OutboxRecord(fields)),
          isRefusedSession("driver: mongoose.mongo"),
        );
        await session.abortTransaction();
      });
    });

    test("what_is_not_a_session_is_refused", async () => {
      const record = new OutboxRecord(fields);
      const ended = client.startSession();
      await ended.endSession();
      await assert.rejects(outbox.enqueue(ended, record), isRefusedSession("no running transaction"));
      await client.withSession((session) =>
        assert.rejects(outbox.enqueue({ session }, record), isRefusedSession("must be a ClientSession")),
      );
      await assert.rejects(outbox.enqueue(null, record), isRefusedSession("null"));
    });

    test("what_is_not_a_record_is_refused", async () => {
      await client.withSession(async (session) => {
        session.startTransaction();
        for (const value of [fields, null, undefined]) {
          await assert.rejects(outbox.enqueue(session, value), { name: "OutboxError", field: "record" });
        }
        await session.abortTransaction();
      });
    });

    test("errors_of_the_driver_go_through_unchanged", async () => {
      const stranger = new driver.module.MongoClient(process.env.POSTRIDER_TEST_MONGODB_URI);
      await stranger.withSession(async (session) => {
        session.startTransaction();
        await assert.rejects(
          outbox.enqueue(session, new OutboxRecord(fields)),
          driver.module.MongoInvalidArgumentError,
        );
        await session.abortTransaction();
      });
      await stranger.close();
    });

    test("a_write_conflict_repeats_the_callback_and_keeps_the_id", async () => {
      const orders = database.collection("orders");
      await orders.insertOne({ _id: "order-7", n: 0 });
      const record = new OutboxRecord(fields);
      let calls = 0;
      await client.withSession((session) =>
        session.withTransaction(async () => {
          calls++;
          await orders.findOne({ _id: "order-7" }, { session }); // the snapshot of this transaction
          if (calls === 1) await orders.updateOne({ _id: "order-7" }, { $inc: { n: 1 } });
          await outbox.enqueue(session, record);
          await orders.updateOne({ _id: "order-7" }, { $inc: { n: 1 } }, { session });
        }),
      );
      assert.equal(calls, 2);
      const stored = await records.find().toArray();
      assert.deepEqual(
        stored.map(({ _id }) => String(_id)),
        [record.messageId],
      );
    });

    test("a_prefix_with_other_characters_is_refused", () => {
      assert.throws(() => new Outbox(database, { collectionPrefix: "a$" }), { field: "collectionPrefix" });
    });
  });
}
