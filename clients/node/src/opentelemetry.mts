export { traceHeaders } from "./opentelemetry.js";
