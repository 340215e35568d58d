// Calls the API by the client that @hey-api/openapi-ts has generated from its description. Both are compiled with strict
// types: what a request must have, and what an answer may lack, is checked by the compiler.

import { strict as assert } from "node:assert";
import { client } from "./api/client.gen.js";
import {
  appendEvents,
  type Condition,
  countEvents,
  enqueueOutboxRecord,
  getOutboxRecord,
  type JsonObject,
  listEvents,
  type ProblemAnswer,
} from "./api/index.js";

client.setConfig({ baseUrl: process.argv[2], auth: "t" });
const path = { name: "order", id: "o-1" };

const appended = await appendEvents({
  path,
  body: { requestId: "r-1", expectedVersion: "none", events: [{ name: "OrderPlaced", body: { total: 120 } }] },
});
assert.equal(appended.data?.version, 1, JSON.stringify(appended.error));

const events = await listEvents({ path });
assert.ok(typeof events.data === "object", JSON.stringify(events.error));
const body: JsonObject | undefined = events.data.items[0]?.body[0]?.body;
assert.deepEqual(body, { total: 120 });

const condition: Condition = {
  operator: "AND",
  children: [
    { operator: "EQ", field: "body.body.total", value: 120 },
    { operator: "STARTS_WITH", field: "body.name", value: "order", options: { ignoreCase: true } },
  ],
};
const counted = await countEvents({ path: { name: "order" }, body: { condition } });
assert.equal(counted.data?.count, 1, JSON.stringify(counted.error));

const enqueued = await enqueueOutboxRecord({ body: { type: "T", payload: [1, "a", null] } });
assert.ok(enqueued.data, JSON.stringify(enqueued.error));
const record = await getOutboxRecord({ path: { id: enqueued.data.id } });
assert.deepEqual(record.data?.payload, [1, "a", null]);

const refused = await appendEvents({
  path,
  body: { requestId: "r-2", expectedVersion: 7, events: [{ name: "OrderPaid", body: {} }] },
});
const problem: ProblemAnswer | undefined = refused.error;
assert.equal(problem?.code, "version_conflict");
assert.equal(problem.actualVersion, 1);
