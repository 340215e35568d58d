import { types } from "node:util";
import { bsonMajor, isBsonValue } from "./driver.js";
import { kindOf, OutboxError } from "./errors.js";
import { LONE_SURROGATE } from "./partition.js";

/** MongoDB refuses documents that are nested deeper than this; so this also ends a cycle. */
const MAX_DEPTH = 200;
const INT32_MIN = -(2 ** 31);
const INT32_MAX = 2 ** 31 - 1;
const INT64_MIN = -(2n ** 63n);
const INT64_MAX = 2n ** 63n - 1n;

/**
 * A value as MongoDB stores it without a loss, for the driver whose `bson` has this major version. It is the same
 * object where nothing in it changes, else a copy: the caller's value is never changed.
 *
 * - Whole numbers outside of int32 and up to 2^53 become int64. The driver would store them as doubles, so that the type
 *   of a field would depend on its value, and consumers would read `3000000000.0`.
 * - What the driver would drop or replace without an error is refused: functions, symbols, bigints outside of int64, lone
 *   surrogates, invalid dates, sets, promises; and values of another `bson`, which the driver refuses without their place.
 *
 * @throws OutboxError with the path of the value, such as `payload.items.0.total`.
 */
export function storable(value: unknown, path: string, major: number | undefined, depth = 0): unknown {
  switch (typeof value) {
    case "string":
      if (!value.isWellFormed()) throw new OutboxError(path, LONE_SURROGATE);
      return value;
    case "number":
      return storableNumber(value);
    case "bigint":
      if (value < INT64_MIN || value > INT64_MAX) {
        throw new OutboxError(path, "a bigint must be within 64 bits; store it as a string or a Decimal128");
      }
      return value;
    case "object":
      return value === null ? null : storableObject(value, path, major, depth);
    case "function":
    case "symbol":
      throw new OutboxError(path, `${kindOf(value)} cannot be stored; the driver would drop it`);
    default:
      return value; // Booleans; and undefined, for which the driver's own option `ignoreUndefined` holds.
  }
}

function storableNumber(value: number): number | bigint {
  const fits = value >= INT32_MIN && value <= INT32_MAX;
  return fits || !Number.isSafeInteger(value) ? value : BigInt(value);
}

function storableObject(value: object, path: string, major: number | undefined, depth: number): unknown {
  if (depth > MAX_DEPTH) {
    throw new OutboxError(
      path.split(".", 2).join("."),
      `is nested deeper than ${MAX_DEPTH} levels, or contains itself`,
    );
  }
  if (Array.isArray(value)) return storableArray(value, path, major, depth);
  if (isBsonValue(value)) {
    const own = bsonMajor(value);
    if (own === undefined) {
      throw new OutboxError(
        path,
        "has a field _bsontype but is not a value of the driver's classes, so the driver refuses it; rename the field",
      );
    }
    if (major !== undefined && own !== major) {
      throw new OutboxError(
        path,
        `is a ${value._bsontype} of bson ${own}, and the driver of this session takes those of bson ${major}; ` +
          "make it with the classes of that driver",
      );
    }
    return value;
  }
  if (types.isDate(value)) {
    if (Number.isNaN(value.getTime())) throw new OutboxError(path, "is an invalid Date; use a valid one, or null");
    return value;
  }
  const { toBSON } = value as { toBSON?: unknown };
  if (typeof toBSON === "function") return storable(toBSON.call(value), path, major, depth + 1);
  if (types.isUint8Array(value) || types.isAnyArrayBuffer(value) || types.isRegExp(value)) return value;
  if (types.isMap(value)) {
    for (const name of value.keys()) {
      if (typeof name !== "string") throw new OutboxError(path, `a Map must have string keys, not ${kindOf(name)}`);
    }
    const entries = storableEntries([...value], path, major, depth);
    return entries === undefined ? value : new Map(entries);
  }
  if (types.isSet(value) || types.isPromise(value) || types.isWeakMap(value) || ArrayBuffer.isView(value)) {
    throw new OutboxError(path, `${kindOf(value)} cannot be stored; use an object, an array or a Uint8Array`);
  }
  const entries = storableEntries(Object.entries(value), path, major, depth);
  return entries === undefined ? value : Object.fromEntries(entries);
}

function storableArray(value: unknown[], path: string, major: number | undefined, depth: number): unknown[] {
  let copy: unknown[] | undefined;
  for (let at = 0; at < value.length; at++) {
    const item = value[at];
    const stored = isPlain(item) ? item : storable(item, `${path}.${at}`, major, depth + 1);
    if (stored !== item) {
      copy ??= [...value];
      copy[at] = stored;
    }
  }
  return copy ?? value;
}

/** Replaces what must be replaced in the entries; `undefined` if there was nothing to replace. */
function storableEntries(
  entries: [unknown, unknown][],
  path: string,
  major: number | undefined,
  depth: number,
): [string, unknown][] | undefined {
  let changed = false;
  for (const entry of entries) {
    const [name, item] = entry;
    if (isPlain(item)) continue;
    const stored = storable(item, `${path}.${name}`, major, depth + 1);
    if (stored !== item) {
      entry[1] = stored;
      changed = true;
    }
  }
  return changed ? (entries as [string, unknown][]) : undefined;
}

/** Whether a value needs no look: most do not, and a path is made for those that do only. */
function isPlain(value: unknown): boolean {
  return typeof value === "boolean" || value === null || (typeof value === "string" && value.isWellFormed());
}
