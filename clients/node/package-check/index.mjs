// In an empty project of ES modules, with the package as npm installed it.

import { Outbox, OutboxError, OutboxRecord, partitionOf } from "@postrider/outbox";
import { traceHeaders } from "@postrider/outbox/opentelemetry";
import { startPostrider } from "@postrider/outbox/testing";
import { MongoClient } from "mongodb";
import { check } from "./check.cjs";

await check({ Outbox, OutboxError, OutboxRecord, partitionOf, traceHeaders, startPostrider, MongoClient });
