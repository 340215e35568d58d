import { randomBytes } from "node:crypto";
import { createRequire } from "node:module";

/** A variable that names a server or a binary; `scripts/services.sh env` prints them. */
export function environment(name) {
  const value = process.env[name];
  if (!value) throw new Error(`${name} is not set; run: eval "$(scripts/services.sh env)"`);
  return value;
}

const require = createRequire(import.meta.url);

/** The drivers that the library is tested with. The first is the one that it finds by itself here. */
export const drivers = ["mongodb", "mongodb6"].map((name) => {
  const module = require(name);
  return { name: `mongodb ${require(`${name}/package.json`).version}`, module, EJSON: module.BSON.EJSON };
});

export function uniqueName(subject) {
  return `node_${subject}_${process.pid}_${randomBytes(4).toString("hex")}`;
}

/** A client of the shared MongoDB and a database of its own, which `close` drops. */
export async function testDatabase(driver = drivers[0], clientOptions = {}) {
  const uri = environment("POSTRIDER_TEST_MONGODB_URI");
  const client = new driver.module.MongoClient(uri, { monitorCommands: true, ...clientOptions });
  const database = client.db(uniqueName("test"));
  await client.connect();
  const close = async () => {
    await database.dropDatabase();
    await client.close();
  };
  return { client, database, records: database.collection("outbox_records"), close };
}

/** The URI of a database, for a program that takes it from its environment. */
export function databaseUri(database, uri = environment("POSTRIDER_TEST_MONGODB_URI")) {
  const address = new URL(uri);
  address.pathname = `/${database.databaseName}`;
  return address.href;
}

/** Waits until the condition holds. */
export async function eventually(what, condition, { timeoutMs = 30_000, state = () => "" } = {}) {
  const deadline = Date.now() + timeoutMs;
  while (!(await condition())) {
    if (Date.now() > deadline) throw new Error(`${what}: not within ${timeoutMs} ms ${state()}`);
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
}
