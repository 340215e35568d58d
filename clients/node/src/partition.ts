import { OutboxError } from "./errors.js";

/** The number of partitions of an outbox. */
const PARTITIONS = 256;

/**
 * The partition of a key: `(murmur3_x86_32(utf8(key), seed 0) & 0x7fffffff) % 256`.
 *
 * @throws OutboxError if the key has a lone surrogate, which UTF-8 cannot express.
 */
export function partitionOf(key: string): number {
  if (!key.isWellFormed()) throw new OutboxError("key", LONE_SURROGATE);
  return (murmur3(Buffer.from(key, "utf8")) & 0x7fffffff) % PARTITIONS;
}

export const LONE_SURROGATE =
  "has a lone surrogate, which the driver would replace with U+FFFD; use text that is valid Unicode";

function murmur3(bytes: Uint8Array): number {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  const tail = bytes.length & ~3;
  let hash = 0;
  for (let at = 0; at < tail; at += 4) {
    hash ^= scramble(view.getUint32(at, true));
    hash = Math.imul((hash << 13) | (hash >>> 19), 5) + 0xe6546b64;
  }
  let rest = 0;
  for (let at = bytes.length - 1; at >= tail; at--) rest = (rest << 8) | view.getUint8(at);
  if (bytes.length > tail) hash ^= scramble(rest);

  hash ^= bytes.length;
  hash = Math.imul(hash ^ (hash >>> 16), 0x85ebca6b);
  hash = Math.imul(hash ^ (hash >>> 13), 0xc2b2ae35);
  return (hash ^ (hash >>> 16)) >>> 0;
}

function scramble(block: number): number {
  const mixed = Math.imul(block, 0xcc9e2d51);
  return Math.imul((mixed << 15) | (mixed >>> 17), 0x1b873593);
}
