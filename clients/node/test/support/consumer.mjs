/** Messages as Postrider sends them: `count` of each key, in turns; `n` counts within the key. */
export function messagesOf(keys, count) {
  const messages = [];
  for (let n = 1; n <= count; n++) {
    for (const key of keys) messages.push({ id: `${key}-${n}`, key, body: JSON.stringify({ order: key, n }) });
  }
  return messages;
}

/** What the consumer has done: key → the numbers, in the order of their effects. */
export async function received(database) {
  const rows = await database.collection("received").find().toArray();
  return Object.fromEntries(rows.map(({ _id, n }) => [_id, n]));
}

export async function receivedCount(database) {
  return Object.values(await received(database)).flat().length;
}

/** What it must have done in the end: the effect of each message once, in the order of its key. */
export function expected(keys, count) {
  return Object.fromEntries(keys.map((key) => [key, Array.from({ length: count }, (_, at) => at + 1)]));
}

/**
 * Does `work` while an open transaction has changed the document of a key: each effect on it meets a conflict. `work` is
 * given a function that returns how many did. The server must be the test's own.
 */
export async function whileLocked(database, name, key, work) {
  await database.command({ profile: 2 });
  // Outside of the transaction, which would otherwise lock the collection.
  if ((await database.listCollections({ name }).toArray()).length === 0) await database.createCollection(name);
  const conflicts = () => database.collection("system.profile").countDocuments({ errCode: 112 });
  const admin = database.client.db("admin");
  const { was } = await admin.command({ setParameter: 1, transactionLifetimeLimitSeconds: 60 });
  await database.client.withSession(async (session) => {
    session.startTransaction();
    const locked = { $set: { locked: true } };
    await database.collection(name).updateOne({ _id: key }, locked, { session, upsert: true });
    await work(conflicts);
    await session.abortTransaction();
  });
  // Ends the open transactions of programs that were killed.
  await admin.command({ killAllSessions: [] });
  await admin.command({ setParameter: 1, transactionLifetimeLimitSeconds: was });
}

/**
 * The URI for a program that is held after its commit and before its acknowledgement; `release` ends that. The server
 * must be the test's own.
 */
export async function holdAfterCommit(client, uri) {
  const appName = "held";
  const set = (fields) => client.db("admin").command({ configureFailPoint: "failCommand", ...fields });
  // The server commits, and answers with a failed write concern: the driver repeats the commit for two minutes.
  const writeConcernError = { code: 64, errmsg: "held by the test" };
  await set({ mode: "alwaysOn", data: { failCommands: ["commitTransaction"], appName, writeConcernError } });
  const address = new URL(uri);
  address.searchParams.set("appName", appName);
  return { uri: address.href, release: () => set({ mode: "off" }) };
}
