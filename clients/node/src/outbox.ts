import { bsonMajor, type Database, type Driver, peerDriver, type Session } from "./driver.js";
import { kindOf, OutboxError } from "./errors.js";
import { probe } from "./probe.js";
import { checkedHeaders, type Headers, OutboxRecord, type RecordId } from "./record.js";

export interface OutboxOptions {
  /** The prefix of the names of the collections: `outbox.collection_prefix` of Postrider. Default: none. */
  readonly collectionPrefix?: string;
  /**
   * Headers that each record gets when it is enqueued, such as `traceparent`. Headers of the record take precedence.
   * For OpenTelemetry: `traceHeaders` of `@postrider/outbox/opentelemetry`.
   */
  readonly headers?: () => Headers | undefined;
  /**
   * The package of the driver of the sessions, if it is not the `mongodb` that this package finds: for example
   * `mongoose.mongo`.
   */
  readonly driver?: Driver;
}

/** Sessions in which a record is being inserted. */
const busy = new WeakMap<object, Promise<unknown>>();

/** The producer's side of an outbox. It holds no connection of its own. Create one and keep it. */
export class Outbox {
  readonly #database: Database;
  readonly #collection: string;
  readonly #headers: (() => Headers | undefined) | undefined;
  readonly #driver: Driver;
  readonly #driverMajor: number | undefined;

  /** The outbox in this database, from the client that starts the sessions. */
  constructor(database: Database, options: OutboxOptions = {}) {
    const prefix = options.collectionPrefix ?? "";
    if (typeof prefix !== "string" || !/^[A-Za-z0-9_.-]*$/.test(prefix)) {
      throw new OutboxError("collectionPrefix", 'must consist of letters, digits, "_", "." and "-"');
    }
    this.#database = database;
    this.#collection = `${prefix}outbox_records`;
    this.#headers = options.headers;
    this.#driver = options.driver ?? peerDriver();
    this.#driverMajor = bsonMajor(new this.#driver.Timestamp({ t: 0, i: 0 }));
  }

  /**
   * Inserts a record in the running transaction of the session, and returns its id. It is delivered once the transaction
   * has committed, and never if it aborts.
   *
   * Await it before the next call with the same session.
   *
   * @throws OutboxError if the record or the session is invalid; nothing was sent to MongoDB.
   * @throws The driver's own errors, unchanged, so that `withTransaction` can repeat the transaction. An id or a
   *   `dedupKey` that exists is error 11000.
   */
  async enqueue(session: Session, record: OutboxRecord): Promise<RecordId> {
    if (!(record instanceof OutboxRecord)) {
      throw new OutboxError("record", `must be an OutboxRecord, not ${kindOf(record)}; use new OutboxRecord({ … })`);
    }
    this.#checkSession(session);
    const running = busy.get(session);
    if (running !== undefined) await refuseParallel(running);
    const document = this.#document(record);
    const insertion = this.#database.collection(this.#collection).insertOne(document, { session });
    busy.set(session, insertion);
    try {
      await insertion;
    } finally {
      busy.delete(session);
    }
    return document._id;
  }

  /**
   * Checks that the deployment can carry an outbox: inserts a record in a transaction, reads its `seq`, and aborts. It
   * leaves nothing in the database. Call it at the start of the program.
   *
   * @throws OutboxError if MongoDB supports no transactions, or if `seq` is not what MongoDB fills in.
   */
  async probe(): Promise<void> {
    const record = new OutboxRecord({ type: "postrider.probe", payload: null });
    await probe(this.#database, this.#collection, this.#document(record));
  }

  #checkSession(session: Session): void {
    if (typeof session?.inTransaction !== "function") {
      throw new OutboxError("session", `must be a ClientSession of the driver, not ${kindOf(session)}`);
    }
    if (session.hasEnded || !session.inTransaction()) {
      throw new OutboxError(
        "session",
        "has no running transaction; enqueue within session.withTransaction, in the transaction of your own change",
      );
    }
    const identifier = session.id?.id;
    const major = typeof identifier === "object" && identifier !== null ? bsonMajor(identifier) : undefined;
    if (major !== undefined && major !== this.#driverMajor) {
      throw new OutboxError(
        "session",
        `is of a driver with bson ${major}, and this outbox uses bson ${this.#driverMajor}; pass the package of that ` +
          "driver as the option `driver`, such as `driver: mongoose.mongo`",
      );
    }
  }

  #document(record: OutboxRecord): { _id: RecordId } {
    return record.toDocument(this.#driver, this.#driverMajor, checkedHeaders(this.#headers?.()));
  }
}

/**
 * A transaction is one connection: of two calls at the same time one may start it twice or arrive after its abort. The
 * refusal waits for the call that is under way, so that an abort after it finds nothing running.
 */
async function refuseParallel(running: Promise<unknown>): Promise<never> {
  await running.catch(() => {});
  throw new OutboxError(
    "session",
    "is used by another enqueue that has not ended; a transaction takes one call at a time: await each, and use no " +
      "Promise.all",
  );
}
