import type { Database } from "./driver.js";
import { kindOf, OutboxError } from "./errors.js";

/** What reads and writes of the probe are done with, whatever the defaults of the application are. */
const TRANSACTION = { readPreference: "primary", readConcern: { level: "snapshot" }, writeConcern: { w: "majority" } };

/** "Transaction numbers are only allowed on a replica set member or mongos": a standalone server. */
const ILLEGAL_OPERATION = 20;

/** Inserts the document in a transaction, checks the `seq` that it has there, and aborts. */
export async function probe(database: Database, collection: string, document: { _id: unknown }): Promise<void> {
  const session = database.client.startSession();
  try {
    await session.withTransaction(async () => {
      const records = database.collection(collection);
      // A read: from its answer the session knows the cluster time that the insertion must exceed.
      await records.findOne({ _id: document._id }, { session });
      const before = clusterTime(session);
      await records.insertOne(document, { session });
      const stored = await records.findOne({ _id: document._id }, { session, raw: false });
      checkSeq(stored?.seq, before, clusterTime(session));
      await session.abortTransaction();
    }, TRANSACTION);
  } catch (error) {
    if ((error as { code?: unknown })?.code === ILLEGAL_OPERATION) {
      throw new OutboxError(
        "session",
        "MongoDB supports no transactions here; it must be a replica set, of one member at least",
        {
          cause: error,
        },
      );
    }
    throw error;
  } finally {
    await session.endSession();
  }
}

function checkSeq(seq: unknown, before: bigint | undefined, after: bigint | undefined): void {
  const remedy =
    "Postrider's order of messages depends on it; look for a layer between this program and MongoDB that changes inserts";
  const time = asBigInt(seq);
  if (time === undefined) {
    throw new OutboxError(
      "seq",
      `was stored as ${seq === undefined ? "nothing" : kindOf(seq)}, not as a timestamp; ${remedy}`,
    );
  }
  if (time === 0n) {
    throw new OutboxError("seq", `is still zero: the insertion did not reach MongoDB as an insert; ${remedy}`);
  }
  if ((before !== undefined && time <= before) || (after !== undefined && time > after)) {
    throw new OutboxError(
      "seq",
      `is not MongoDB's cluster time: the zero timestamp was replaced on its way; ${remedy}`,
    );
  }
}

function clusterTime(session: { clusterTime?: { clusterTime?: unknown } }): bigint | undefined {
  return asBigInt(session.clusterTime?.clusterTime);
}

function asBigInt(value: unknown): bigint | undefined {
  const timestamp = value as { _bsontype?: string; t?: number; i?: number } | null | undefined;
  if (timestamp?._bsontype !== "Timestamp" || timestamp.t === undefined || timestamp.i === undefined) return undefined;
  return (BigInt(timestamp.t) << 32n) | BigInt(timestamp.i);
}
