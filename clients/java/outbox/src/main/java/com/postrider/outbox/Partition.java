package com.postrider.outbox;

import java.nio.charset.StandardCharsets;

/** Hash of keys to partitions, the same in every producer. */
final class Partition {
    private static final int COUNT = 256;

    private Partition() {}

    /** Returns {@code (murmur3_x86_32(utf8(key), seed 0) & 0x7fffffff) % 256}. */
    static int of(String key) {
        return (murmur3(key.getBytes(StandardCharsets.UTF_8)) & 0x7fffffff) % COUNT;
    }

    private static int murmur3(byte[] bytes) {
        int hash = 0;
        int tail = bytes.length & ~3;
        for (int i = 0; i < tail; i += 4) {
            hash ^= scramble(word(bytes, i, 4));
            hash = Integer.rotateLeft(hash, 13) * 5 + 0xe6546b64;
        }
        hash ^= scramble(word(bytes, tail, bytes.length - tail));
        hash ^= bytes.length;
        hash = (hash ^ hash >>> 16) * 0x85ebca6b;
        hash = (hash ^ hash >>> 13) * 0xc2b2ae35;
        return hash ^ hash >>> 16;
    }

    /** Reads up to four bytes as a little-endian number; a tail of no bytes is zero, which changes no hash. */
    private static int word(byte[] bytes, int start, int length) {
        int word = 0;
        for (int i = 0; i < length; i++) {
            word |= (bytes[start + i] & 0xff) << 8 * i;
        }
        return word;
    }

    private static int scramble(int word) {
        return Integer.rotateLeft(word * 0xcc9e2d51, 15) * 0x1b873593;
    }
}
