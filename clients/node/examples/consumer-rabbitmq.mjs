// Takes the messages of a RabbitMQ queue, each once: effect and inbox row in one transaction.
//
//   MONGODB_URI=mongodb://localhost:27017/shop AMQP_URI=amqp://localhost QUEUE=orders node consumer-rabbitmq.mjs

// docs:begin consumer-rabbitmq
import { setTimeout as pause } from "node:timers/promises";
import amqp from "amqplib";
import { MongoClient, MongoNetworkError, MongoServerSelectionError } from "mongodb";

const CONSUMER = "orders"; // Each consumer has rows of its own in the inbox.
const MAX_ATTEMPTS = 5;
const RETRY_PAUSE_MS = 500;
// Longer than any time after which a message can come again.
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

async function applyOnce(id, key, body) {
  if (key === undefined) throw new TypeError("a message without a key");
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
  } catch (error) {
    if (!(error instanceof DoneBefore)) throw error;
    console.log(id, "again");
  }
}

/** Whether MongoDB is at fault, and not the message. */
function isPassing(error) {
  if (error instanceof MongoNetworkError || error instanceof MongoServerSelectionError) return true;
  const labels = ["TransientTransactionError", "UnknownTransactionCommitResult"];
  return labels.some((label) => error.hasErrorLabel?.(label));
}

/** Counts outside of the transaction, which was aborted; returns the number until now. */
async function countFailure(id, failure) {
  const counted = await failures.findOneAndUpdate(
    { _id: { consumer: CONSUMER, message: id } },
    { $inc: { attempts: 1 }, $set: { failure: String(failure), at: new Date() } },
    { upsert: true, returnDocument: "after" },
  );
  return counted.attempts;
}

async function handle(message) {
  const { messageId: id, headers = {} } = message.properties;
  if (!id) return channel.reject(message, false); // It is not a message of Postrider.
  // Deliveries without an answer: the message may crash this program. Quorum queues count them.
  const crashes = headers["x-delivery-count"];
  let attempts = crashes ?? 0;
  if (message.fields.redelivered && crashes === undefined) attempts = await countFailure(id, "redelivered");
  while (attempts < MAX_ATTEMPTS) {
    try {
      await applyOnce(id, headers["message-key"], message.content);
      return channel.ack(message); // After the commit.
    } catch (error) {
      console.error(id, error);
      if (!isPassing(error)) attempts = (crashes ?? 0) + (await countFailure(id, error));
    }
    await pause(RETRY_PAUSE_MS); // In place, so that the messages behind it wait.
  }
  // If it is published again, it has all its attempts again.
  await failures.deleteOne({ _id: { consumer: CONSUMER, message: id } });
  // To the dead-letter exchange of the queue; without one RabbitMQ drops the message.
  channel.reject(message, false);
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
// docs:end consumer-rabbitmq
