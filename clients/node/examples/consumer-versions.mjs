// Takes the messages of appended events, each once and without an inbox: guarded by their version.
//
//   MONGODB_URI=mongodb://localhost:27017/shop AMQP_URI=amqp://localhost QUEUE=orders node consumer-versions.mjs

// docs:begin consumer-versions
import { setTimeout as pause } from "node:timers/promises";
import amqp from "amqplib";
import { MongoClient, MongoNetworkError, MongoServerSelectionError } from "mongodb";

const MAX_ATTEMPTS = 5;
const RETRY_PAUSE_MS = 500;

const client = new MongoClient(process.env.MONGODB_URI);
const db = client.db();
const states = db.collection("states");
const failures = db.collection("inbox_failures");

/** A message before this one has not been applied. */
class Gap extends Error {}

/** The "version.index" of the events that may follow. */
function nextPlaces(state) {
  if (state === null) return ["1.0"];
  const sameVersion = `${state.version}.${state.index + 1}`;
  const nextVersion = `${state.version + 1}.0`;
  if (state.count === null) return [sameVersion, nextVersion]; // An earlier release does not send event-count.
  return [state.index + 1 < state.count ? sameVersion : nextVersion];
}

/** Applies the event if it is the next one; does nothing if it was applied before. */
async function applyNext(headers, body) {
  // Messages of an earlier release of Postrider have no aggregate-id, but the same as their key.
  const id = headers["aggregate-id"] ?? headers["message-key"];
  const { "aggregate-version": version, "event-index": index, "event-count": count = null } = headers;
  if (typeof id !== "string" || !Number.isInteger(version) || !Number.isInteger(index)) {
    throw new TypeError("a header of appended events is absent");
  }
  const payload = JSON.parse(body);
  const state = await states.findOne({ _id: id });
  if (state !== null && (version < state.version || (version === state.version && index <= state.index))) {
    return; // Done before.
  }
  const next = nextPlaces(state);
  if (!next.includes(`${version}.${index}`)) {
    throw new Gap(`${id}: ${version}.${index} came, ${next.join(" or ")} is next`);
  }
  // The guard and the effect are one write: only the state that was read is changed.
  const read = { _id: id, version: state?.version ?? null, index: state?.index ?? null };
  const effect = { $push: { n: payload.n } };
  const written = await states.updateOne(
    read,
    { ...effect, $set: { version, index, count } },
    { upsert: state === null },
  );
  if (written.matchedCount + written.upsertedCount === 0) throw new Gap(`${id}: another consumer changed it`);
}

/** Whether the same may succeed later, and the message is not at fault. */
function isPassing(error) {
  // 11000: another consumer has made the first state.
  return error instanceof MongoNetworkError || error instanceof MongoServerSelectionError || error.code === 11000;
}

async function countFailure(id, failure) {
  const counted = await failures.findOneAndUpdate(
    { _id: { consumer: "states", message: id } },
    { $inc: { attempts: 1 }, $set: { failure: String(failure), at: new Date() } },
    { upsert: true, returnDocument: "after" },
  );
  return counted.attempts;
}

async function handle(message) {
  const { messageId: id, headers = {} } = message.properties;
  if (!id) return channel.reject(message, false); // It is not a message of Postrider.
  // Deliveries without an answer: the message may end this program. Quorum queues count them.
  const crashes = headers["x-delivery-count"];
  let attempts = crashes ?? 0;
  if (message.fields.redelivered && crashes === undefined) attempts = await countFailure(id, "redelivered");
  while (attempts < MAX_ATTEMPTS) {
    try {
      await applyNext(headers, message.content);
      return channel.ack(message);
    } catch (error) {
      console.error(id, error);
      if (!isPassing(error)) attempts = (crashes ?? 0) + (await countFailure(id, error));
    }
    await pause(RETRY_PAUSE_MS);
  }
  // If it is published again, it has all its attempts again.
  await failures.deleteOne({ _id: { consumer: "states", message: id } });
  channel.reject(message, false); // To the dead-letter exchange of the queue.
}

/** What is not acknowledged is delivered again, to the next start of this program. */
function stop(error) {
  console.error(error);
  process.exit(1);
}

const connection = await amqp.connect(process.env.AMQP_URI);
connection.on("close", () => stop(new Error("the connection to RabbitMQ was closed")));
const channel = await connection.createChannel();
await channel.prefetch(1); // One after the other, in the order of the queue.
await channel.consume(process.env.QUEUE, (message) => {
  if (message === null) stop(new Error("the queue was deleted"));
  else handle(message).catch(stop);
});
// docs:end consumer-versions
