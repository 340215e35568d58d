import { randomUUID } from "node:crypto";
import { types } from "node:util";
import { type BsonValue, type Driver, isBsonValue } from "./driver.js";
import { kindOf, OutboxError } from "./errors.js";
import { LONE_SURROGATE, partitionOf } from "./partition.js";
import { storable } from "./values.js";

/** A message id: a `UUID`, an `ObjectId`, a `Long` or an `Int32` of the driver's package; a whole number; text. */
export type RecordId = string | number | bigint | BsonValue;

/** The value of a header: a scalar, or bytes. `Long`, `Double`, `Decimal128`, … are of the driver's package. */
export type HeaderValue = string | number | bigint | boolean | null | Date | Uint8Array | BsonValue;

/** Headers by name. One whose value is `undefined` is left out. */
export type Headers = { readonly [name: string]: HeaderValue | undefined } | ReadonlyMap<string, HeaderValue>;

/** What a record is made of. `null` in an optional field is the same as its absence. */
export interface RecordFields {
  /** The message id, by which consumers recognise a repetition. Default: a new UUID of version 4. */
  readonly id?: RecordId | null | undefined;
  /** Messages of one key are delivered in their order. Without a key there is no order. */
  readonly key?: string | null | undefined;
  /** The message type, which routes match on. */
  readonly type: string;
  /**
   * Objects and arrays are sent as JSON, strings as UTF-8, bytes as they are; `null` is an empty body, or a tombstone.
   * A `bigint`, and a whole number that needs more than 32 bits, is stored as int64.
   */
  readonly payload: unknown;
  /** Default: by the payload. */
  readonly contentType?: string | null | undefined;
  readonly headers?: Headers | null | undefined;
  /** The exchange or topic, in place of that of the route, if the configuration of the sink permits it. */
  readonly destination?: string | null | undefined;
  readonly tenantId?: string | null | undefined;
  /** The timestamp of the message. Default: now. */
  readonly createdAt?: Date | null | undefined;
  /** Not delivered before this time: the record is scheduled. */
  readonly visibleAt?: Date | null | undefined;
  /** Unique while the record exists: a second one fails with error 11000. */
  readonly dedupKey?: string | null | undefined;
}

const FIELDS: ReadonlySet<string> = new Set<keyof RecordFields>([
  "id",
  "key",
  "type",
  "payload",
  "contentType",
  "headers",
  "destination",
  "tenantId",
  "createdAt",
  "visibleAt",
  "dedupKey",
]);

type Optional<T> = T | undefined;

/** Fields that were checked, without null. */
interface Checked {
  readonly key: Optional<string>;
  readonly type: string;
  readonly payload: unknown;
  readonly contentType: Optional<string>;
  readonly destination: Optional<string>;
  readonly tenantId: Optional<string>;
  readonly createdAt: Date;
  readonly visibleAt: Optional<Date>;
  readonly dedupKey: Optional<string>;
}

/** The BSON types of a header, next to the types of JavaScript. */
const SCALARS: ReadonlySet<string> = new Set(["Int32", "Long", "Double", "Decimal128", "ObjectId", "Binary"]);

/**
 * A record to be enqueued, checked.
 *
 * Create it before the transaction: the constructor sets the id, so that a callback which the driver repeats writes the
 * same id each time.
 */
export class OutboxRecord {
  /** The message id as text, as the broker gets it. */
  readonly messageId: string;
  /** `undefined`: a UUID, which is `messageId`. Only the outbox knows the driver that will store it. */
  readonly #id: RecordId | undefined;
  readonly #fields: Checked;
  readonly #headers: ReadonlyMap<string, unknown>;
  readonly #partition: number | undefined;

  /** @throws OutboxError that names the field which is invalid. */
  constructor(fields: RecordFields) {
    if (typeof fields !== "object" || fields === null) {
      throw new OutboxError("record", `must be an object with fields, not ${kindOf(fields)}`);
    }
    for (const name of Object.keys(fields)) {
      if (!FIELDS.has(name)) {
        throw new OutboxError(name, `unknown field of a record; there are ${[...FIELDS].join(", ")}`);
      }
    }
    if (fields.payload === undefined) throw new OutboxError("payload", "is missing; null is an empty message");
    const type = text("type", fields.type);
    if (!type) throw new OutboxError("type", "is missing; it must be a string that is not empty");
    const key = text("key", fields.key);
    this.#id = checkedId(fields.id);
    this.messageId = this.#id === undefined ? randomUUID() : String(this.#id);
    this.#fields = {
      key,
      type,
      payload: fields.payload,
      contentType: text("contentType", fields.contentType),
      destination: text("destination", fields.destination),
      tenantId: text("tenantId", fields.tenantId),
      createdAt: date("createdAt", fields.createdAt) ?? new Date(),
      visibleAt: date("visibleAt", fields.visibleAt),
      dedupKey: text("dedupKey", fields.dedupKey),
    };
    this.#headers = checkedHeaders(fields.headers);
    this.#partition = key === undefined ? undefined : partitionOf(key);
  }

  /**
   * The document for a driver whose `bson` has this major version: its fields in a fixed order, without absent ones.
   *
   * @internal
   */
  toDocument(driver: Driver, major: number | undefined, hook: ReadonlyMap<string, unknown>): { _id: RecordId } {
    const fields = this.#fields;
    // Headers of the record take precedence, and come first.
    const headers = new Map([...this.#headers, ...hook, ...this.#headers]);
    const document: Record<string, unknown> = {
      _id: this.#id === undefined ? new driver.UUID(this.messageId) : storable(this.#id, "id", major),
      key: fields.key,
      type: fields.type,
      payload: storable(fields.payload, "payload", major),
      contentType: fields.contentType,
      headers: headers.size > 0 ? storable(headers, "headers", major) : undefined,
      destination: fields.destination,
      tenantId: fields.tenantId,
      status: fields.visibleAt === undefined ? "pending" : "scheduled",
      // MongoDB replaces it with its cluster time; but only in an insert, and only in a field of the document itself.
      seq: new driver.Timestamp({ t: 0, i: 0 }),
      createdAt: fields.createdAt,
      visibleAt: fields.visibleAt,
      dedupKey: fields.dedupKey,
      partition: this.#partition,
    };
    for (const name of Object.keys(document)) {
      if (document[name] === undefined) delete document[name];
    }
    return document as { _id: RecordId };
  }
}

/** Headers as a copy, each checked. */
export function checkedHeaders(headers: unknown): ReadonlyMap<string, unknown> {
  const copy = new Map<string, unknown>();
  if (headers === null || headers === undefined) return copy;
  const isMap = types.isMap(headers);
  if (typeof headers !== "object" || Array.isArray(headers) || (!isMap && !isDocument(headers))) {
    throw new OutboxError("headers", `must be an object of header values, not ${kindOf(headers)}`);
  }
  for (const [name, value] of isMap ? headers : Object.entries(headers)) {
    if (typeof name !== "string" || name.includes("\0") || !name.isWellFormed()) {
      throw new OutboxError("headers", "the name of a header must be text without U+0000 and lone surrogates");
    }
    if (value === undefined) continue;
    if (!isHeaderValue(value)) {
      throw new OutboxError(`headers.${name}`, `must be a scalar or bytes, not ${kindOf(value)}`);
    }
    copy.set(name, value);
  }
  return copy;
}

function isHeaderValue(value: unknown): boolean {
  if (typeof value !== "object") return typeof value !== "function" && typeof value !== "symbol";
  if (value === null || types.isDate(value) || types.isUint8Array(value)) return true;
  return isBsonValue(value) && SCALARS.has(value._bsontype);
}

function isDocument(value: object): boolean {
  return !isBsonValue(value) && Object.prototype.toString.call(value) === "[object Object]";
}

function text(field: string, value: unknown): string | undefined {
  if (value === null || value === undefined) return undefined;
  if (typeof value !== "string") throw new OutboxError(field, `must be a string, not ${kindOf(value)}`);
  if (!value.isWellFormed()) throw new OutboxError(field, LONE_SURROGATE);
  return value;
}

function date(field: string, value: unknown): Date | undefined {
  if (value === null || value === undefined) return undefined;
  if (!types.isDate(value) || Number.isNaN(value.getTime())) {
    throw new OutboxError(field, `must be a valid Date, not ${kindOf(value)}`);
  }
  return new Date(value);
}

function checkedId(id: unknown): RecordId | undefined {
  if (id === null || id === undefined) return undefined;
  if (typeof id === "string" && id !== "") return text("id", id);
  if (typeof id === "bigint") return id;
  if (typeof id === "number" && Number.isSafeInteger(id)) return id + 0; // The driver stores -0 as a double.
  if (typeof id === "object" && id !== null && isBsonValue(id) && isIdValue(id)) return id;
  const what = id === "" ? "an empty string" : kindOf(id);
  throw new OutboxError("id", `must be a UUID of subtype 4, an ObjectId, a whole number or a string, not ${what}`);
}

function isIdValue(id: BsonValue): boolean {
  if (id._bsontype !== "Binary") return ["ObjectId", "Int32", "Long"].includes(id._bsontype);
  const { sub_type: subtype, position } = id as BsonValue & { sub_type?: number; position?: number };
  return subtype === 4 && position === 16;
}
