// The cases that the libraries of all languages pass: clients/conformance/README.md says what each section means.

import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { readFileSync } from "node:fs";
import { after, before, beforeEach, describe, test } from "node:test";
import { promisify } from "node:util";
import { Outbox, OutboxError, OutboxRecord, partitionOf } from "@postrider/outbox";
import { drivers, environment, testDatabase, uniqueName } from "./support/environment.mjs";

const cases = JSON.parse(readFileSync(new URL("../../conformance/cases.json", import.meta.url), "utf8"));
assert.equal(cases.format, 1);

/** How often a fail point that another process replaced is set again. */
const FAIL_POINT_TRIES = 5;
const UUID_V4 = /^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$/;

function fromUnits(units) {
  return String.fromCharCode(...units);
}

function isRefusalOf(field) {
  return (error) => {
    assert.ok(error instanceof OutboxError, error);
    assert.equal(error.field, field);
    assert.ok(error.message.includes(field), error.message);
    return true;
  };
}

describe("partitions", () => {
  for (const { name, key, units, partition, refused } of cases.partitions) {
    test(name, () => {
      const text = key ?? fromUnits(units);
      if (refused === undefined) assert.equal(partitionOf(text), partition);
      else assert.throws(() => partitionOf(text), isRefusalOf(refused));
    });
  }
});

for (const driver of drivers) {
  describe(driver.name, () => conformance(driver, async () => {}));
}
describe(`${drivers[0].name}, with the validator of Postrider`, () => {
  conformance(drivers[0], async (database) => {
    await promisify(execFile)(environment("POSTRIDER_BIN"), ["schema", "apply"], {
      env: {
        POSTRIDER__MONGO__URI: environment("POSTRIDER_TEST_MONGODB_URI"),
        POSTRIDER__MONGO__DATABASE: database.databaseName,
      },
    });
  });
});

function conformance(driver, prepare) {
  const { EJSON, serialize } = driver.module.BSON;
  const parsed = (value) => EJSON.parse(JSON.stringify(value), { relaxed: false });
  const bytes = (value) => Buffer.from(serialize({ value })).toString("hex");
  let client, database, close;
  let sent = [];

  before(async () => {
    ({ client, database, close } = await testDatabase(driver));
    client.on("commandStarted", ({ commandName }) => sent.push(commandName));
    await prepare(database);
    for (const command of cases.setup) await database.command(parsed(command));
  });
  after(() => close());
  beforeEach(async () => {
    await database.collection(cases.collection).deleteMany({});
  });

  const outboxWith = ({ hook, collectionPrefix }) => {
    const headers = hook === undefined ? undefined : parsed(hook);
    return {
      headers,
      outbox: new Outbox(database, {
        driver: driver.module,
        ...(headers && { headers: () => headers }),
        ...(collectionPrefix && { collectionPrefix }),
      }),
    };
  };
  const count = () => database.collection(cases.collection).countDocuments();
  const inTransaction = (work) => client.withSession((session) => session.withTransaction(() => work(session)));

  describe("enqueued", () => {
    for (const entry of cases.enqueued) {
      test(entry.name, async () => {
        const begin = Date.now();
        const { outbox, headers } = outboxWith(entry);
        const fields = parsed(entry.record);
        const given = [bytes(fields), bytes(headers ?? null)];
        const record = new OutboxRecord(fields);
        const { messageId } = record;
        const id = await inTransaction((session) => outbox.enqueue(session, record));

        const collection = database.collection(`${entry.collectionPrefix ?? ""}${cases.collection}`);
        const [stored, ...others] = await collection.find({}, { promoteValues: false }).toArray();
        assert.equal(others.length, 0);
        assert.deepEqual(Object.keys(stored), entry.fields);
        for (const [field, value] of Object.entries(parsed(entry.stored))) {
          assert.equal(bytes(stored[field]), bytes(value), `${field}: ${EJSON.stringify(stored[field])}`);
        }
        for (const [path, type] of Object.entries(entry.types)) {
          const [row] = await collection.aggregate([{ $project: { t: { $type: `$${path}` } } }]).toArray();
          assert.equal(row.t, type, path);
        }
        assert.equal(stored.seq._bsontype, "Timestamp");
        assert.notEqual(stored.seq.t, 0);
        assert.equal(bytes(id), bytes(stored._id));
        assert.equal(messageId, String(stored._id));
        if (fields.id === undefined || fields.id === null) {
          assert.equal(stored._id.sub_type, 4);
          assert.match(messageId, UUID_V4);
        }
        if (fields.createdAt === undefined || fields.createdAt === null) {
          assert.ok(stored.createdAt >= begin && stored.createdAt <= Date.now(), stored.createdAt);
        }
        assert.deepEqual([bytes(fields), bytes(headers ?? null)], given, "the caller's values are as before");
      });
    }
  });

  // Refused by the parser of extended JSON already, but an application can make them.
  const unparsable = new Map([
    ["a header's name has U+0000", { type: "T", payload: 1, headers: { "a\0b": 1 } }],
    ["id is a UUID of 15 bytes", { type: "T", payload: 1, id: new driver.module.Binary(Buffer.alloc(15), 4) }],
  ]);

  async function assertRefused(entry, fields, field) {
    const { outbox } = outboxWith(entry);
    await client.withSession(async (session) => {
      session.startTransaction();
      sent = [];
      await assert.rejects(async () => outbox.enqueue(session, new OutboxRecord(fields)), isRefusalOf(field));
      assert.deepEqual(sent, []);
      await session.abortTransaction();
    });
    assert.equal(await count(), 0);
  }

  describe("refused", () => {
    for (const entry of cases.refused) {
      const fields = unparsable.get(entry.name) ?? parsed(entry.record);
      test(entry.name, () => assertRefused(entry, fields, entry.field));
    }
    test("the cases made by hand exist", () => {
      for (const name of unparsable.keys()) assert.ok(cases.refused.some((entry) => entry.name === name));
    });
  });

  describe("lone surrogates", () => {
    for (const entry of cases.loneSurrogates) {
      test(entry.name, async () => {
        const fields = parsed(entry.record);
        const [field, header] = entry.field.split(".");
        fields[field] = header === undefined ? fromUnits(entry.units) : { [header]: fromUnits(entry.units) };
        await assertRefused(entry, fields, entry.field);
      });
    }
  });

  const transactions = {
    async commit({ record, records }) {
      const { outbox } = outboxWith({});
      await inTransaction((session) => outbox.enqueue(session, new OutboxRecord(parsed(record))));
      assert.equal(await count(), records);
    },

    async abort({ record, records }) {
      const { outbox } = outboxWith({});
      await client.withSession(async (session) => {
        session.startTransaction();
        await outbox.enqueue(session, new OutboxRecord(parsed(record)));
        await session.abortTransaction();
      });
      assert.equal(await count(), records);
    },

    async repeat({ record, records, calls, failPoint }) {
      const appName = uniqueName("failpoint");
      const own = new driver.module.MongoClient(environment("POSTRIDER_TEST_MONGODB_URI"), { appName });
      const outbox = new Outbox(own.db(database.databaseName), { driver: driver.module });
      const admin = client.db("admin");
      const { configureFailPoint, mode, data } = parsed(failPoint);
      try {
        for (let tried = 1; ; tried++) {
          await database.collection(cases.collection).deleteMany({});
          const made = new OutboxRecord(parsed(record));
          let called = 0;
          await admin.command({ configureFailPoint, mode, data: { ...data, appName } });
          await own.withSession((session) =>
            session.withTransaction(async () => {
              called++;
              await outbox.enqueue(session, made);
            }),
          );
          // The commit alone is repeated where the callback is called once; nothing shows that to the application.
          if (called < calls && tried < FAIL_POINT_TRIES) continue;
          assert.equal(called, calls);
          const [stored] = await database.collection(cases.collection).find().toArray();
          assert.equal(String(stored._id), made.messageId);
          assert.equal(await count(), records);
          return;
        }
      } finally {
        await admin.command({ configureFailPoint, mode: "off" });
        await own.close();
      }
    },

    async refuse({ record, records, session: state, field }) {
      const { outbox } = outboxWith({});
      await client.withSession(async (session) => {
        if (state === "committed" || state === "aborted") {
          session.startTransaction();
          await database.collection("others").findOne({}, { session });
          await (state === "committed" ? session.commitTransaction() : session.abortTransaction());
        }
        sent = [];
        const given = state === "none" ? undefined : session;
        await assert.rejects(outbox.enqueue(given, new OutboxRecord(parsed(record))), isRefusalOf(field));
        assert.deepEqual(sent, []);
      });
      assert.equal(await count(), records);
    },

    async twice({ first, second, oneTransaction, code, records }) {
      const { outbox } = outboxWith({});
      const enqueue = (session, record) => outbox.enqueue(session, new OutboxRecord(parsed(record)));
      if (!oneTransaction) await inTransaction((session) => enqueue(session, first));
      await assert.rejects(
        inTransaction(async (session) => {
          if (oneTransaction) await enqueue(session, first);
          await enqueue(session, second);
        }),
        (error) => error instanceof driver.module.MongoServerError && error.code === code,
      );
      assert.equal(await count(), records);
    },

    async order({ entries, oneTransaction, records }) {
      const { outbox } = outboxWith({});
      const made = entries.map((entry) => new OutboxRecord(parsed(entry)));
      const enqueueAll = async (session, all) => {
        for (const record of all) await outbox.enqueue(session, record);
      };
      if (oneTransaction) await inTransaction((session) => enqueueAll(session, made));
      else for (const record of made) await inTransaction((session) => enqueueAll(session, [record]));
      const stored = await database.collection(cases.collection).find().sort({ seq: 1 }).toArray();
      assert.deepEqual(
        stored.map(({ _id }) => String(_id)),
        made.map(({ messageId }) => messageId),
      );
      assert.equal(new Set(stored.map(({ seq }) => `${seq.t} ${seq.i}`)).size, records);
    },
  };

  describe("transactions", () => {
    for (const entry of cases.transactions) {
      test(entry.name, () => transactions[entry.does](entry));
    }
  });
}
