/**
 * What the library uses of the MongoDB driver, by shape and not by class: so it accepts sessions and databases of
 * `mongodb` 6 and 7, and of a driver that another package (Mongoose) has of its own.
 */

import { OutboxError } from "./errors.js";

/** A `ClientSession`. */
export interface Session {
  readonly hasEnded: boolean;
  inTransaction(): boolean;
  // biome-ignore lint/suspicious/noExplicitAny: the types of two majors of the driver share no base.
  readonly id?: any;
}

/** A `Db`. */
export interface Database {
  readonly databaseName: string;
  // biome-ignore lint/suspicious/noExplicitAny: as above
  readonly client: any;
  // biome-ignore lint/suspicious/noExplicitAny: as above
  collection(name: string): any;
}

/** The package `mongodb`, or `mongoose.mongo`: the classes of its BSON values. */
export interface Driver {
  readonly Timestamp: new (value: { t: number; i: number }) => object;
  readonly UUID: new (text: string) => object;
}

/** A value of a BSON type that JavaScript lacks: `Long`, `ObjectId`, `UUID`, … of the driver's package. */
export interface BsonValue {
  readonly _bsontype: string;
  toString(): string;
}

export function isBsonValue(value: object): value is BsonValue {
  return typeof (value as { _bsontype?: unknown })._bsontype === "string";
}

/**
 * The major version of the `bson` package that a value is of. A driver refuses values of any other major than its own,
 * with an error that does not name their place.
 */
export function bsonMajor(value: object): number | undefined {
  return (value as Record<symbol, number | undefined>)[Symbol.for("@@mdb.bson.version")];
}

/** The driver that this package finds from where it is installed: the peer dependency. */
export function peerDriver(): Driver {
  try {
    return require("mongodb");
  } catch (cause) {
    throw new OutboxError(
      "driver",
      "the package mongodb was not found; install it, or pass the driver in use as the option `driver`, " +
        "such as `driver: mongoose.mongo`",
      { cause },
    );
  }
}
