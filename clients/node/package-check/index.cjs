// In an empty project of CommonJS modules, with the package as npm installed it, and without OpenTelemetry.

const { Outbox, OutboxError, OutboxRecord, partitionOf } = require("@postrider/outbox");
const { startPostrider } = require("@postrider/outbox/testing");
const { MongoClient } = require("mongodb");
const { check } = require("./check.cjs");

const traceHeaders = () => {
  try {
    return require("@postrider/outbox/opentelemetry").traceHeaders();
  } catch (error) {
    if (error.code === "MODULE_NOT_FOUND" && error.message.includes("@opentelemetry/api")) return {};
    throw error;
  }
};

check({ Outbox, OutboxError, OutboxRecord, partitionOf, traceHeaders, startPostrider, MongoClient });
