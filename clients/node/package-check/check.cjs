// What each project does with the installed package: one record, from the probe to the message.

const assert = require("node:assert/strict");

exports.check = async ({
  Outbox,
  OutboxError,
  OutboxRecord,
  partitionOf,
  traceHeaders,
  startPostrider,
  MongoClient,
}) => {
  // Both forms of the package are one library.
  assert.equal(require("@postrider/outbox").Outbox, Outbox);
  assert.equal(partitionOf("order-123"), 189);
  assert.deepEqual(traceHeaders(), {});
  assert.throws(() => new OutboxRecord({ type: "", payload: null }), OutboxError);

  const uri = process.env.POSTRIDER_TEST_MONGODB_URI;
  const client = new MongoClient(uri);
  const database = client.db(`node_package_${process.pid}`);
  let postrider;
  try {
    const outbox = new Outbox(database, { headers: traceHeaders });
    await outbox.probe();
    const record = new OutboxRecord({ key: "order-123", type: "OrderCreated", payload: { total: 3000000000 } });
    await client.withSession((session) => session.withTransaction(() => outbox.enqueue(session, record)));
    postrider = await startPostrider({ uri, database: database.databaseName });
    const [message] = await postrider.waitForMessages(1, { key: "order-123" });
    assert.equal(message.id, record.messageId);
    assert.deepEqual(message.payload, { total: 3000000000 });
  } finally {
    await postrider?.stop();
    await database.dropDatabase();
    await client.close();
  }
};
