// What `probe` finds at the start of a program.

import assert from "node:assert/strict";
import { after, before, describe, test } from "node:test";
import { Outbox, OutboxError } from "@postrider/outbox";
import { drivers, testDatabase } from "./support/environment.mjs";
import { startMongod } from "./support/mongod.mjs";

for (const driver of drivers) {
  describe(driver.name, () => {
    let client, database, close;
    before(async () => {
      ({ client, database, close } = await testDatabase(driver));
    });
    after(() => close());

    const probe = (by = database, options = {}) => new Outbox(by, { driver: driver.module, ...options }).probe();

    function isRefusedSeq(text) {
      return (error) => error instanceof OutboxError && error.field === "seq" && error.message.includes(text);
    }

    /** A layer between the application and MongoDB, which changes its inserts. */
    function layer(insertOne) {
      return {
        databaseName: database.databaseName,
        client,
        collection: (name) => {
          const collection = database.collection(name);
          return {
            insertOne: (document, options) => insertOne(collection, document, options),
            findOne: (...args) => collection.findOne(...args),
          };
        },
      };
    }

    test("it_succeeds_and_leaves_nothing", async () => {
      await probe();
      assert.deepEqual(await database.listCollections().toArray(), []);
    });

    test("it_succeeds_when_the_collection_exists", async () => {
      await database.createCollection("shop_outbox_records");
      await probe(database, { collectionPrefix: "shop_" });
      assert.equal(await database.collection("shop_outbox_records").countDocuments(), 0);
      await database.dropCollection("shop_outbox_records");
    });

    test("it_succeeds_whatever_the_client_makes_of_values", async () => {
      for (const options of [{ useBigInt64: true }, { promoteValues: false }, { raw: true }]) {
        await probe(client.db(database.databaseName, options));
      }
    });

    test("it_fails_when_inserts_become_upserts", async () => {
      const upserts = layer((collection, { _id, ...fields }, options) =>
        collection.updateOne({ _id }, { $set: fields }, { ...options, upsert: true }),
      );
      await assert.rejects(probe(upserts), isRefusedSeq("is still zero"));
    });

    test("it_fails_when_the_zero_timestamp_is_dropped", async () => {
      const drops = layer((collection, { seq, ...document }, options) => collection.insertOne(document, options));
      await assert.rejects(probe(drops), isRefusedSeq("nothing"));
    });

    test("it_fails_when_the_zero_timestamp_is_replaced", async () => {
      const { Timestamp } = driver.module;
      const now = Math.floor(Date.now() / 1000);
      const others = [new Date(), 0, new Timestamp({ t: now + 60, i: 1 }), new Timestamp({ t: now - 60, i: 1 })];
      for (const seq of others) {
        const replaces = layer((collection, document, options) => collection.insertOne({ ...document, seq }, options));
        await assert.rejects(probe(replaces), isRefusedSeq(""), String(seq));
      }
      assert.deepEqual(await database.listCollections().toArray(), []);
    });

    test("it_fails_when_mongodb_is_a_standalone_server", async () => {
      const mongod = await startMongod();
      const own = new driver.module.MongoClient(mongod.uri);
      try {
        await assert.rejects(probe(own.db("app")), (error) => {
          assert.ok(error instanceof OutboxError, error);
          assert.match(error.message, /must be a replica set/);
          assert.equal(error.cause.code, 20);
          return true;
        });
      } finally {
        await own.close();
        await mongod.stop();
      }
    });
  });
}
