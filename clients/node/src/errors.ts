/**
 * What a record, a session or a driver is refused for, before anything of it is sent to MongoDB.
 *
 * Errors of MongoDB and its driver are never wrapped: their labels decide whether a transaction is repeated.
 */
export class OutboxError extends Error {
  override readonly name = "OutboxError";

  /** What is wrong: a field of the record (`headers.source`, `payload.items.0`), or `session`, `record`, `seq`. */
  readonly field: string;

  constructor(field: string, what: string, options?: ErrorOptions) {
    super(`outbox: ${field}: ${what}`, options);
    this.field = field;
  }
}

/** The kind of a value, for errors. Values themselves stay out of errors: they may be secret. */
export function kindOf(value: unknown): string {
  if (value === null) return "null";
  if (Array.isArray(value)) return "an array";
  if (value instanceof Date) return Number.isNaN(value.getTime()) ? "an invalid Date" : "a Date";
  if (typeof value === "object") {
    const { _bsontype: bsonType } = value as { _bsontype?: unknown };
    const name = bsonType ?? value.constructor?.name ?? "object";
    return name === "Object" ? "an object" : `a value of type ${String(name)}`;
  }
  if (value === undefined) return "undefined";
  return typeof value === "bigint" ? "a bigint" : `a ${typeof value}`;
}
