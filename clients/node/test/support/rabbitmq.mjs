import amqp from "amqplib";
import { environment, eventually, uniqueName } from "./environment.mjs";

/** A queue of a test's own, with a queue of what it gives up. */
export async function declareQueue({ type }) {
  const connection = await amqp.connect(environment("POSTRIDER_TEST_AMQP_URI"));
  const channel = await connection.createConfirmChannel();
  const name = uniqueName("queue");
  const dead = `${name}.dead`;
  await channel.assertQueue(dead, { durable: true });
  const deadLetter = { "x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead };
  await channel.assertQueue(name, { durable: true, arguments: { "x-queue-type": type, ...deadLetter } });

  return {
    name,
    async publish(messages) {
      for (const { id, key, body, headers } of messages) {
        const properties = { messageId: id, type: "OrderChanged", contentType: "application/json", persistent: true };
        properties.headers = { "message-key": key, ...headers };
        channel.sendToQueue(name, Buffer.from(body), properties);
      }
      await channel.waitForConfirms();
    },
    /** Publishes through the HTTP API, which can leave out the headers. */
    async publishForeign(payload, properties) {
      const { username, password, pathname } = new URL(environment("POSTRIDER_TEST_AMQP_URI"));
      const vhost = pathname.slice(1) || "%2f";
      const answer = await fetch(
        `${environment("POSTRIDER_TEST_RABBITMQ_API")}/api/exchanges/${vhost}/amq.default/publish`,
        {
          method: "POST",
          headers: { authorization: `Basic ${btoa(`${username}:${password}`)}` },
          body: JSON.stringify({ routing_key: name, payload, payload_encoding: "string", properties }),
        },
      );
      if (!(await answer.json()).routed) throw new Error("the message was not routed");
    },
    async ready() {
      return (await channel.checkQueue(name)).messageCount;
    },
    /** Takes a message from the dead letters, if there is one. */
    async deadLetter() {
      return channel.get(dead, { noAck: true });
    },
    async awaitDeadLetter() {
      let letter;
      await eventually("a dead letter", async () => {
        letter = await channel.get(dead, { noAck: true });
        return letter;
      });
      return letter;
    },
    async close() {
      await channel.deleteQueue(name);
      await channel.deleteQueue(dead);
      await connection.close();
    },
  };
}
