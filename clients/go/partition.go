package outbox

import (
	"encoding/binary"
	"math/bits"
)

// partitions is the number of parts of all keys. It is the same for every producer and for the relay.
const partitions = 256

// partitionOf returns the partition of a key: (murmur3_x86_32(key, seed 0) & 0x7fffffff) % 256.
func partitionOf(key string) int32 {
	return int32(murmur3([]byte(key))&0x7fffffff) % partitions
}

// murmur3 is MurmurHash3_x86_32 with the seed 0.
func murmur3(data []byte) uint32 {
	const c1, c2 = 0xcc9e2d51, 0x1b873593
	scramble := func(block uint32) uint32 { return bits.RotateLeft32(block*c1, 15) * c2 }

	var hash uint32
	rest := data
	for ; len(rest) >= 4; rest = rest[4:] {
		hash ^= scramble(binary.LittleEndian.Uint32(rest))
		hash = bits.RotateLeft32(hash, 13)*5 + 0xe6546b64
	}
	if len(rest) > 0 {
		var tail [4]byte
		copy(tail[:], rest)
		hash ^= scramble(binary.LittleEndian.Uint32(tail[:]))
	}

	hash ^= uint32(len(data))
	hash = (hash ^ hash>>16) * 0x85ebca6b
	hash = (hash ^ hash>>13) * 0xc2b2ae35
	return hash ^ hash>>16
}
