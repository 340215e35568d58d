//! Hash of keys to partitions, the same in every producer.

/// Number of partitions; fixed, so that a key never moves.
pub const PARTITIONS: u16 = 256;

/// Returns the partition of a key: `(murmur3_x86_32(utf8(key), seed 0) & 0x7fffffff) % 256`.
///
/// Producers may write it; a record without a partition belongs to this one.
pub fn of_key(key: &str) -> u8 {
    let hash = murmur3::murmur3_32(&mut key.as_bytes(), 0)
        .expect("reading from a slice in memory cannot fail");
    ((hash & 0x7fff_ffff) % u32::from(PARTITIONS)) as u8
}

#[cfg(test)]
mod tests {
    use super::of_key;

    #[test]
    fn hash_matches_the_published_vectors() {
        let vectors = [
            ("", 0),
            ("order-123", 189),
            ("user-456", 22),
            ("customer-123", 37),
            ("größe-€", 3),
            ("payment:1", 227),
        ];

        for (key, partition) in vectors {
            assert_eq!(of_key(key), partition, "partition of {key:?}");
        }
    }
}
