// Takes the messages of a Kafka topic, each once: effect and inbox row in one transaction.
//
//   MONGODB_URI=mongodb://localhost:27017/shop KAFKA_BROKERS=localhost:9092 TOPIC=orders GROUP=orders-view \
//     node consumer-kafka.mjs

// docs:begin consumer-kafka
import { setTimeout as pause } from "node:timers/promises";
import { Consumer, Producer, stringDeserializer } from "@platformatic/kafka";
import { MongoClient, MongoNetworkError, MongoServerSelectionError } from "mongodb";

const CONSUMER = "orders"; // Each consumer has rows of its own in the inbox.
const MAX_ATTEMPTS = 5;
const RETRY_PAUSE_MS = 500;
// Longer than any time after which a message can come again: above all the retention of the topic.
const INBOX_TTL_SECONDS = Number(process.env.INBOX_TTL_SECONDS ?? 30 * 24 * 3600);

const client = new MongoClient(process.env.MONGODB_URI);
const db = client.db();
const inbox = db.collection("inbox");
const failures = db.collection("inbox_failures");
await inbox.createIndex({ at: 1 }, { expireAfterSeconds: INBOX_TTL_SECONDS });
await failures.createIndex({ at: 1 }, { expireAfterSeconds: INBOX_TTL_SECONDS });

async function effect(key, payload, session) {
  await db.collection("received").updateOne({ _id: key }, { $push: { n: payload.n } }, { upsert: true, session });
}

class DoneBefore extends Error {}

/** Returns whether the effect was not there before. */
async function applyOnce(id, key, body) {
  // A tombstone has no value.
  if (key === undefined || body === undefined) throw new TypeError("a message without a key or a value");
  const payload = JSON.parse(body);
  try {
    // Repeats the callback after a conflict with another transaction (code 112).
    await client.withSession((session) =>
      session.withTransaction(async () => {
        const row = { _id: { consumer: CONSUMER, message: id }, at: new Date() };
        await inbox.insertOne(row, { session }).catch((error) => {
          // MongoDB has aborted the transaction: leave it.
          throw error.code === 11000 ? new DoneBefore() : error;
        });
        await effect(key, payload, session);
      }),
    );
    return true;
  } catch (error) {
    if (!(error instanceof DoneBefore)) throw error;
    console.log(id, "again");
    return false;
  }
}

/** Whether MongoDB is at fault, and not the message. */
function isPassing(error) {
  if (error instanceof MongoNetworkError || error instanceof MongoServerSelectionError) return true;
  const labels = ["TransientTransactionError", "UnknownTransactionCommitResult"];
  return labels.some((label) => error.hasErrorLabel?.(label));
}

/** Counts outside of the transaction, so that the count stays; returns the number of attempts until now. */
async function countAttempt(id, failure) {
  const counted = await failures.findOneAndUpdate(
    { _id: { consumer: CONSUMER, message: id } },
    { $inc: { attempts: 1 }, $set: { failure, at: new Date() } },
    { upsert: true, returnDocument: "after" },
  );
  return counted.attempts;
}

async function forgetAttempts(id) {
  await failures.deleteOne({ _id: { consumer: CONSUMER, message: id } });
}

/** Partitions in which this process has applied a message. */
const proven = new Set();

async function handle(message) {
  const id = message.headers.get("message-id")?.toString();
  if (!id) return await moveToDead(message, "no message-id"); // It is not a message of Postrider.
  // Kafka does not count deliveries. A message that ends the process is in the next process the first one of its
  // partition whose effect is not there yet. So only such a message is counted before its attempt.
  let isCounted = !proven.has(message.partition);
  let failure = "it ended the process";
  let failed = isCounted ? (await countAttempt(id, failure)) - 1 : 0;
  while (failed < MAX_ATTEMPTS) {
    try {
      if (await applyOnce(id, message.key, message.value)) proven.add(message.partition);
      if (isCounted || failed > 0) await forgetAttempts(id);
      return;
    } catch (error) {
      console.error(id, error);
      if (!isPassing(error)) {
        failure = String(error);
        failed = isCounted ? failed + 1 : await countAttempt(id, failure);
        isCounted = false;
      }
    }
    await pause(RETRY_PAUSE_MS); // In place, so that the messages behind it wait.
  }
  await moveToDead(message, failure);
  await forgetAttempts(id); // If it is sent again, it has all its attempts again.
}

async function moveToDead(message, failure) {
  const headers = new Map([...message.headers].map(([name, value]) => [Buffer.from(name), value]));
  headers.set(Buffer.from("failure"), Buffer.from(failure));
  const { key, value } = message;
  const letter = { topic: `${message.topic}.dead`, key: key === undefined ? key : Buffer.from(key), value, headers };
  await producer.send({ messages: [letter], acks: -1 });
}

const kafka = { clientId: CONSUMER, bootstrapBrokers: process.env.KAFKA_BROKERS.split(",") };
const producer = new Producer(kafka);
const consumer = new Consumer({
  ...kafka,
  groupId: process.env.GROUP,
  // A name of this process that stays: after a crash it has its partitions again at once.
  ...(process.env.INSTANCE && { groupInstanceId: process.env.INSTANCE }),
  autocommit: false,
  deserializers: { key: stringDeserializer, headerKey: stringDeserializer },
  sessionTimeout: 10_000,
  heartbeatInterval: 1_000,
  maxWaitTime: 500,
});
const stream = await consumer.consume({ topics: [process.env.TOPIC], mode: "committed", fallbackMode: "earliest" });
// A stop leaves the group; of a program that is killed, the partitions wait for the session timeout.
let isStopping = false;
process.once("SIGTERM", () => {
  isStopping = true;
  stream.close();
});
try {
  for await (const message of stream) {
    await handle(message);
    await message.commit(); // After the commit of the transaction.
    if (isStopping) break;
  }
} finally {
  await consumer.close(true);
  await producer.close();
  await client.close();
}
// docs:end consumer-kafka
