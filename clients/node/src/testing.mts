export type { Message, PostriderOptions } from "./testing.js";
export { Postrider, startPostrider } from "./testing.js";
