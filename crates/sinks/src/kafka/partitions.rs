//! The partition of each record, known before it is published: a partition without a leader delays only its
//! own records.

use std::collections::HashMap;

use parking_lot::Mutex;

use crate::kafka::config::KafkaSettings;
use crate::kafka::properties;

/// Partitioners of librdkafka that hash a key as Java's clients do.
const MURMUR2_PARTITIONERS: [&str; 2] = ["murmur2", "murmur2_random"];

/// The partitions of the topics, each with the number of the broker that leads it.
#[derive(Debug)]
pub(super) struct Partitions {
    hashes_like_java: bool,
    leaders: Mutex<HashMap<String, Vec<i32>>>,
}

impl Partitions {
    /// Creates the table without topics.
    pub(super) fn new(settings: &KafkaSettings) -> Self {
        let partitioner = properties::find(&settings.own.properties, "partitioner");
        let hashes_like_java =
            partitioner.is_none_or(|(_, value)| MURMUR2_PARTITIONERS.contains(&value));
        Self { hashes_like_java, leaders: Mutex::default() }
    }

    /// Notes the leaders of a topic's partitions, as a broker reported them; below zero for a
    /// partition without one.
    pub(super) fn note(&self, topic: &str, leaders: Vec<i32>) {
        self.leaders.lock().insert(topic.to_owned(), leaders);
    }

    /// Names the part of a topic that confirms this key independently of the other parts: the partition;
    /// the key if the operator's partitioner hashes in another way; `None`, the whole topic, before the
    /// first look-up.
    pub(super) fn part(&self, topic: &str, key: &str) -> Option<String> {
        let leaders = self.leaders.lock();
        let leaders = leaders.get(topic)?;
        if !self.hashes_like_java {
            return Some(format!("key {key}"));
        }
        Some(format!("partition {}", partition(key, leaders.len())?))
    }

    /// Returns whether this broker led the partition of this key at the last look-up; any partition of the
    /// topic, if the key's is not known.
    pub(super) fn leads(&self, broker: i32, topic: &str, key: &str) -> bool {
        let leaders = self.leaders.lock();
        let Some(leaders) = leaders.get(topic) else { return false };
        match partition(key, leaders.len()) {
            Some(partition) if self.hashes_like_java => leaders[partition] == broker,
            _ => leaders.contains(&broker),
        }
    }
}

/// Returns the partition of a key, as Java's clients choose it.
fn partition(key: &str, count: usize) -> Option<usize> {
    let hash = usize::try_from(murmur2(key.as_bytes()) & 0x7fff_ffff).ok()?;
    hash.checked_rem(count)
}

/// Hashes a key as `Utils.murmur2` of Kafka's Java client. (The crates that have it are not maintained.)
fn murmur2(bytes: &[u8]) -> u32 {
    const SEED: u32 = 0x9747_b28c;
    const M: u32 = 0x5bd1_e995;
    let mut hash = SEED ^ u32::try_from(bytes.len()).unwrap_or(u32::MAX);
    let (words, rest) = bytes.as_chunks::<4>();
    for word in words {
        let mut word = u32::from_le_bytes(*word).wrapping_mul(M);
        word = (word ^ (word >> 24)).wrapping_mul(M);
        hash = hash.wrapping_mul(M) ^ word;
    }
    if !rest.is_empty() {
        let mut last = [0; 4];
        last[..rest.len()].copy_from_slice(rest);
        hash = (hash ^ u32::from_le_bytes(last)).wrapping_mul(M);
    }
    hash = (hash ^ (hash >> 13)).wrapping_mul(M);
    hash ^ (hash >> 15)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The values of Kafka's `UtilsTest.testMurmur2`.
    #[test]
    fn murmur2_is_that_of_kafkas_java_client() {
        for (key, expected) in [
            ("21", -973_932_308),
            ("foobar", -790_332_482),
            ("a-little-bit-long-string", -985_981_536),
            ("a-little-bit-longer-string", -1_486_304_829),
            ("lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58_897_971),
            ("abc", 479_470_107),
        ] {
            assert_eq!(murmur2(key.as_bytes()), i32::cast_unsigned(expected), "{key}");
        }
    }

    #[test]
    fn part_is_the_partition_or_the_key_or_the_topic() {
        let mut settings = KafkaSettings::new("s", crate::kafka::KafkaConfig::at("localhost"));
        let partitions = Partitions::new(&settings);
        assert_eq!(partitions.part("t", "21"), None);
        partitions.note("t", vec![7]);
        assert_eq!(partitions.part("t", "21").as_deref(), Some("partition 0"));
        assert!(partitions.leads(7, "t", "21") && !partitions.leads(8, "t", "21"));
        partitions.note("t", Vec::new());
        assert_eq!(partitions.part("t", "21"), None);

        settings.own.properties = [("topic.partitioner", "fnv1a")].into();
        let partitions = Partitions::new(&settings);
        partitions.note("t", vec![7, 8]);
        assert_eq!(partitions.part("t", "21").as_deref(), Some("key 21"));
        assert!(partitions.leads(7, "t", "21") && partitions.leads(8, "t", "21"));
    }
}
