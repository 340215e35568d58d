// The library refuses what the published JSON Schema of a record refuses, and accepts what it accepts.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { OutboxError, OutboxRecord } from "@postrider/outbox";
import Ajv from "ajv/dist/2020.js";
import { drivers } from "./support/environment.mjs";

const read = (name) => JSON.parse(readFileSync(new URL(`../../conformance/${name}`, import.meta.url), "utf8"));
const isValid = new Ajv({ strict: false }).compile(read("record.schema.json"));
const cases = read("cases.json");

/** A value of each kind, in canonical extended JSON. */
const samples = [
  null,
  "",
  "a",
  true,
  [],
  {},
  { a: { $numberInt: "1" } },
  [{ $numberInt: "1" }],
  { $numberInt: "1" },
  { $numberLong: "1" },
  { $numberLong: "9007199254740993" },
  { $numberDouble: "1.5" },
  { $numberDouble: "2.0" },
  { $numberDouble: "NaN" },
  { $numberDecimal: "12.50" },
  { $oid: "0123456789abcdef01234567" },
  { $date: { $numberLong: "1760000000123" } },
  { $binary: { base64: "ABEiM0RVRneImaq7zN3u/w==", subType: "04" } },
  { $binary: { base64: "ABEiM0RVRneImaq7zN3u/w==", subType: "03" } },
  { $binary: { base64: "AAEC", subType: "00" } },
  { $timestamp: { t: 1, i: 1 } },
  { $regularExpression: { pattern: "a", options: "" } },
  { $minKey: 1 },
  { $maxKey: 1 },
  { $symbol: "a" },
  { $code: "a" },
];
const names = ["id", "key", "type", "payload", "contentType", "headers", "destination", "tenantId", "createdAt"];
names.push("visibleAt", "dedupKey", "status", "seq", "partition", "_id", "content_type", "other");

function* records() {
  for (const { record } of [...cases.enqueued, ...cases.refused]) yield record;
  for (const name of names) {
    for (const sample of samples) yield { type: "T", payload: "p", [name]: sample };
  }
  for (const sample of samples) yield { type: "T", payload: "p", headers: { sample } };
  yield { type: "T" };
  yield { payload: "p" };
}

for (const { name, EJSON } of drivers) {
  test(`${name}: the library and the schema agree`, () => {
    const count = { accepted: 0, refused: 0 };
    for (const record of records()) {
      let fields;
      try {
        fields = EJSON.parse(JSON.stringify(record), { relaxed: false });
      } catch {
        continue; // The parser of extended JSON refuses it.
      }
      let refusal;
      try {
        new OutboxRecord(fields);
      } catch (error) {
        assert.ok(error instanceof OutboxError, error);
        refusal = error;
      }
      const verdict = `${JSON.stringify(record)}: ${refusal ?? "accepted"}`;
      assert.equal(refusal === undefined, isValid(record), verdict);
      count[refusal === undefined ? "accepted" : "refused"]++;
    }
    assert.ok(count.accepted > 100 && count.refused > 200, JSON.stringify(count));
  });
}
