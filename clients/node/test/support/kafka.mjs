import { Admin, Consumer, Producer, stringDeserializers } from "@platformatic/kafka";
import { environment, eventually, uniqueName } from "./environment.mjs";

/** A topic of a test's own with one partition, and the topic of what the consumer gives up. */
export async function createTopic() {
  const options = { clientId: "test", bootstrapBrokers: environment("POSTRIDER_TEST_KAFKA_BROKERS").split(",") };
  const admin = new Admin(options);
  const producer = new Producer(options);
  const name = uniqueName("topic");
  const dead = `${name}.dead`;
  await admin.createTopics({ topics: [name, dead], partitions: 1, replicas: 1 });

  return {
    name,
    group: uniqueName("group"),
    async publish(messages) {
      const records = messages.map(({ id, key, body }) => ({
        key: Buffer.from(key),
        value: Buffer.from(body),
        headers: new Map(
          [
            ["message-id", id],
            ["message-type", "OrderChanged"],
          ].map(([header, value]) => [Buffer.from(header), Buffer.from(value)]),
        ),
      }));
      await this.publishRecords(records);
    },
    /** Publishes records as they are. */
    async publishRecords(records) {
      await producer.send({ messages: records.map((record) => ({ topic: name, partition: 0, ...record })), acks: -1 });
    },
    /** The messages that were given up, once there are so many. */
    async deadLetters(count) {
      const consumer = new Consumer({ ...options, groupId: uniqueName("reader"), deserializers: stringDeserializers });
      const letters = [];
      try {
        const stream = await consumer.consume({
          topics: [dead],
          mode: "earliest",
          autocommit: false,
          maxWaitTime: 100,
        });
        stream.on("data", ({ key, value, headers }) =>
          letters.push({ key, value, headers: Object.fromEntries(headers) }),
        );
        await eventually(`${count} dead letters`, () => letters.length >= count);
      } finally {
        await consumer.close(true);
      }
      return letters;
    },
    async close() {
      await producer.close();
      await admin.deleteTopics({ topics: [name, dead] });
      await admin.close();
    },
  };
}
