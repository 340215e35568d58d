export type {
  BsonValue,
  Database,
  Driver,
  Headers,
  HeaderValue,
  OutboxOptions,
  RecordFields,
  RecordId,
  Session,
} from "./index.js";
export { Outbox, OutboxError, OutboxRecord, partitionOf } from "./index.js";
