// The helper for tests of applications; examples/test-recipe.test.mjs is its ordinary use.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { Outbox, OutboxRecord } from "@postrider/outbox";
import { startPostrider } from "@postrider/outbox/testing";
import { environment, testDatabase } from "./support/environment.mjs";

const uri = environment("POSTRIDER_TEST_MONGODB_URI");
let client, database, close;
before(async () => {
  ({ client, database, close } = await testDatabase());
});
after(() => close());

test("messages_come_by_key_in_their_order", async () => {
  const postrider = await startPostrider({ uri, database: database.databaseName, collectionPrefix: "shop_" });
  try {
    const outbox = new Outbox(database, { collectionPrefix: "shop_" });
    await client.withSession((session) =>
      session.withTransaction(async () => {
        for (let n = 1; n <= 6; n++) {
          const payload = { n, large: 3000000000 };
          await outbox.enqueue(session, new OutboxRecord({ key: n % 2 ? "odd" : "even", type: "T", payload }));
        }
        await outbox.enqueue(session, new OutboxRecord({ type: "Bytes", payload: Buffer.from([0, 255]) }));
      }),
    );
    const odd = await postrider.waitForMessages(3, { key: "odd" });
    assert.deepEqual(
      odd.map(({ payload }) => payload),
      [1, 3, 5].map((n) => ({ n, large: 3000000000 })),
    );
    assert.equal((await postrider.waitForMessages(7)).length, 7);
    const bytes = (await postrider.messages()).find(({ type }) => type === "Bytes");
    assert.equal(bytes.payloadBase64, "AP8=");
    await assert.rejects(postrider.waitForMessages(8, { timeoutMs: 50 }), /7 of 8 messages arrived after 50 ms/);
  } finally {
    await postrider.stop();
  }
});

test("a_start_fails_with_the_log_when_the_configuration_is_invalid", async () => {
  const start = startPostrider({ uri, database: database.databaseName, settings: { "relay.max_attempts": 0 } });
  await assert.rejects(start, /it ended with code 2; the end of its log:\n.*relay\.max_attempts/s);
});

test("a_start_fails_with_the_remedy_when_there_is_no_binary", async () => {
  await assert.rejects(startPostrider({ uri, binary: "/nonexistent/postrider" }), /set POSTRIDER_BIN to the binary/);
});
