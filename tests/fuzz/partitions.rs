//! The hash of keys, compared with its definition.

use proptest::prelude::*;

use crate::arbitrary;

/// MurmurHash3, x86, 32 bits, seed 0, as its author wrote it.
fn murmur3(bytes: &[u8]) -> u32 {
    let scramble =
        |block: u32| block.wrapping_mul(0xcc9e_2d51).rotate_left(15).wrapping_mul(0x1b87_3593);
    let mut hash = 0_u32;
    let mut blocks = bytes.chunks_exact(4);
    for block in blocks.by_ref() {
        let block = u32::from_le_bytes(block.try_into().unwrap());
        hash = (hash ^ scramble(block)).rotate_left(13).wrapping_mul(5).wrapping_add(0xe654_6b64);
    }
    let mut tail = 0_u32;
    for (at, byte) in blocks.remainder().iter().enumerate() {
        tail |= u32::from(*byte) << (8 * at);
    }
    hash ^= scramble(tail) ^ u32::try_from(bytes.len()).unwrap();
    hash = (hash ^ (hash >> 16)).wrapping_mul(0x85eb_ca6b);
    hash = (hash ^ (hash >> 13)).wrapping_mul(0xc2b2_ae35);
    hash ^ (hash >> 16)
}

proptest! {
    #[test]
    fn any_key_has_the_documented_partition(key in arbitrary::text()) {
        let expected = (murmur3(key.as_bytes()) & 0x7fff_ffff) % 256;

        prop_assert_eq!(u32::from(postrider::partition::of_key(&key)), expected);
    }
}
