// What JavaScript and the driver would change without an error on the way to MongoDB.

import assert from "node:assert/strict";
import { after, before, describe, test } from "node:test";
import { Outbox, OutboxError, OutboxRecord } from "@postrider/outbox";
import { drivers, testDatabase } from "./support/environment.mjs";

function refusalOf(field, text = "") {
  return (error) => error instanceof OutboxError && error.field === field && error.message.includes(text);
}

function frozen(value) {
  if (typeof value === "object" && value !== null && !ArrayBuffer.isView(value)) {
    Object.values(value).forEach(frozen);
    Object.freeze(value);
  }
  return value;
}

for (const [at, driver] of drivers.entries()) {
  const { Long, Double, Int32, ObjectId, Decimal128, UUID } = driver.module;
  const other = drivers[1 - at].module;

  describe(driver.name, () => {
    let client, database, records, close, outbox;
    before(async () => {
      ({ client, database, records, close } = await testDatabase(driver));
      outbox = new Outbox(database, { driver: driver.module });
    });
    after(() => close());

    async function enqueue(fields, by = outbox) {
      const record = new OutboxRecord({ type: "T", payload: null, ...fields });
      return client.withSession((session) => session.withTransaction(() => by.enqueue(session, record)));
    }

    /** The document as stored, and the BSON types of all values in a field of it. */
    async function stored(fields, by) {
      const id = await enqueue(fields, by);
      return records.findOne({ _id: id }, { promoteValues: false });
    }

    async function typesOf(fields, paths) {
      const id = await enqueue(fields);
      const project = Object.fromEntries(paths.map((path, at) => [`t${at}`, { $type: `$${path}` }]));
      const [row] = await records.aggregate([{ $match: { _id: id } }, { $project: project }]).toArray();
      return paths.map((_, at) => row[`t${at}`]);
    }

    test("whole_numbers_become_int64_when_they_need_more_than_32_bits", async () => {
      const numbers = {
        int: [0, -1, 2147483647, -2147483648, new Int32(1)],
        long: [2147483648, -2147483649, 3000000000, Number.MAX_SAFE_INTEGER, 1n, 2n ** 63n - 1n, Long.fromNumber(1)],
        double: [1.5, 2147483648.5, 2 ** 53, -(2 ** 60), 1e300, new Double(3000000000), -0, NaN, Infinity],
      };
      for (const [type, values] of Object.entries(numbers)) {
        for (const value of values) {
          const fields = { payload: { value, in: [{ it: value }] }, headers: { value } };
          const types = await typesOf(fields, ["payload.value", "payload.in.it", "headers.value"]);
          assert.deepEqual(types, [type, "array", type], String(value));
          const { payload } = await stored(fields);
          assert.deepEqual(payload.value, payload.in[0].it);
        }
      }
      for (const [id, type] of [
        [7, "int"],
        [2147483648, "long"],
        [8n, "long"],
      ]) {
        assert.deepEqual(await typesOf({ id }, ["_id"]), [type]);
      }
    });

    test("int64_arrives_whole_when_the_client_reads_bigints", async () => {
      const own = new driver.module.MongoClient(client.options.srvHost ?? process.env.POSTRIDER_TEST_MONGODB_URI, {
        useBigInt64: true,
      });
      try {
        const theirs = own.db(database.databaseName);
        const by = new Outbox(theirs, { driver: driver.module });
        const payload = { exact: 9007199254740993n, number: 3000000000, small: 7 };
        const record = new OutboxRecord({ type: "T", payload });
        await by.probe();
        const id = await own.withSession((session) => session.withTransaction(() => by.enqueue(session, record)));
        const document = await theirs.collection("outbox_records").findOne({ _id: id });
        assert.deepEqual(document.payload, { exact: 9007199254740993n, number: 3000000000n, small: 7 });
      } finally {
        await own.close();
      }
    });

    test("a_bigint_is_refused_when_it_needs_more_than_64_bits", async () => {
      await assert.rejects(enqueue({ payload: { a: [2n ** 63n] } }), refusalOf("payload.a.0", "64 bits"));
      await assert.rejects(enqueue({ payload: { a: -(2n ** 63n) - 1n } }), refusalOf("payload.a"));
      await assert.rejects(enqueue({ headers: { a: 2n ** 64n } }), refusalOf("headers.a"));
      await assert.rejects(enqueue({ id: 2n ** 64n }), refusalOf("id"));
    });

    test("values_of_another_bson_are_refused_with_their_place", async () => {
      const bson = refusalOf;
      await assert.rejects(
        enqueue({ payload: { items: [{ total: other.Decimal128.fromString("1") }] } }),
        bson("payload.items.0.total", "is a Decimal128 of bson"),
      );
      await assert.rejects(enqueue({ headers: { a: new other.Long(1) } }), bson("headers.a"));
      await assert.rejects(enqueue({ id: new other.ObjectId() }), bson("id"));
    });

    test("the_callers_values_are_never_changed", async () => {
      const fields = frozen({
        id: "frozen",
        payload: { large: 3000000000, list: [1, { large: -3000000000 }], date: new Date(0), id: new UUID() },
        headers: { large: 3000000000 },
        createdAt: new Date(1),
      });
      const { payload, headers } = await stored(fields);
      assert.deepEqual(Object.keys(payload), ["large", "list", "date", "id"]);
      assert.equal(String(payload.list[1].large), "-3000000000");
      assert.equal(String(headers.large), "3000000000");
      assert.equal(fields.payload.list[1].large, -3000000000);
    });

    test("a_date_that_changes_later_does_not_change_the_record", async () => {
      const createdAt = new Date(5);
      const record = new OutboxRecord({ id: "date", type: "T", payload: 1, createdAt });
      createdAt.setTime(6);
      await client.withSession((session) => session.withTransaction(() => outbox.enqueue(session, record)));
      assert.equal((await records.findOne({ _id: "date" })).createdAt.getTime(), 5);
    });

    test("an_id_of_negative_zero_is_an_int", async () => {
      assert.deepEqual(await typesOf({ id: -0 }, ["_id"]), ["int"]);
    });

    test("an_object_that_looks_like_a_bson_value_is_refused_with_its_path", async () => {
      for (const _bsontype of ["Long", "Unknown"]) {
        const fields = { payload: { items: [{ _bsontype, low: 1 }] } };
        await assert.rejects(() => enqueue(fields), refusalOf("payload.items.0"));
        await assert.rejects(() => enqueue({ headers: { a: { _bsontype, low: 1 } } }), refusalOf("headers.a"));
      }
    });

    test("maps_and_toBSON_are_stored_in_their_order", async () => {
      const payload = new Map([
        ["2", 3000000000],
        ["1", new Map([["b", 1n]])],
        ["own", { toBSON: () => ({ total: 3000000000, at: [new ObjectId()] }) }],
      ]);
      const document = await stored({ payload });
      const raw = await records.findOne({ _id: document._id }, { raw: true });
      assert.ok(Buffer.from(raw).indexOf("2\0") < Buffer.from(raw).lastIndexOf("own\0"));
      assert.equal(String(document.payload["2"]), "3000000000");
      assert.equal(document.payload["1"].b._bsontype, "Long");
      assert.equal(document.payload.own.total._bsontype, "Long");
      assert.equal(payload.get("2"), 3000000000);
      const types = await typesOf({ payload }, ["payload.2", "payload.own.total", "payload.own.at"]);
      assert.deepEqual(types, ["long", "long", "array"]);
    });

    test("a_field_named___proto___stays_a_field", async () => {
      const payload = JSON.parse('{"__proto__": {"large": 3000000000}, "b": 3000000000}');
      const id = await enqueue({ payload });
      const raw = Buffer.from(await records.findOne({ _id: id }, { raw: true }));
      assert.ok(raw.includes("__proto__\0"));
    });

    test("what_the_driver_would_drop_is_refused", async () => {
      const cycle = { a: {} };
      cycle.a.b = cycle;
      const refused = [
        [{ a: () => 1 }, "payload.a"],
        [[Symbol("a")], "payload.0"],
        [{ a: new Set([1]) }, "payload.a"],
        [Promise.resolve(1), "payload"],
        [{ a: { b: Promise.resolve(1) } }, "payload.a.b"],
        [{ a: new Float64Array(2) }, "payload.a"],
        [{ a: new Date(NaN) }, "payload.a"],
        [{ a: "b\ud800" }, "payload.a"],
        [new Map([[1, 2]]), "payload"],
        [cycle, "payload.a"],
      ];
      for (const [payload, field] of refused) {
        await assert.rejects(enqueue({ payload }), refusalOf(field), field);
      }
      await assert.rejects(enqueue({ payload: undefined }), refusalOf("payload"));
      for (const headers of [Promise.resolve({}), new Set(), new Date(), /a/]) {
        assert.throws(() => new OutboxRecord({ type: "T", payload: 1, headers }), refusalOf("headers"));
      }
      assert.throws(() => new OutboxRecord(null), refusalOf("record"));
    });

    test("undefined_within_a_payload_follows_the_drivers_option", async () => {
      const payload = { a: undefined, b: 3000000000 };
      assert.deepEqual(Object.entries((await stored({ payload })).payload)[0], ["a", null]);
      const by = new Outbox(client.db(database.databaseName, { ignoreUndefined: true }), { driver: driver.module });
      assert.deepEqual(Object.keys((await stored({ payload }, by)).payload), ["b"]);
      assert.equal((await stored({ headers: { a: undefined } })).headers, undefined);
    });

    test("other_values_are_stored_as_the_driver_stores_them", async () => {
      const payload = [Buffer.from([1]), new Uint8Array([2]), /a/i, new Decimal128("1.50"), true, null, new Date(3)];
      const { payload: kept } = await stored({ payload });
      await records.insertOne({ _id: "bare", payload });
      assert.deepEqual(kept, (await records.findOne({ _id: "bare" }, { promoteValues: false })).payload);
    });
  });
}
