//! Which partition of a topic a record goes to, known before it is published: a partition without a
//! leader delays its own records only.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard};

use crate::kafka::config::KafkaSettings;
use crate::kafka::properties::canonical;

/// Partitioners of librdkafka that hash a key as Java's clients do.
const MURMUR2: [&str; 2] = ["murmur2", "murmur2_random"];

/// The partitions of the topics, each with the number of the broker that leads it.
#[derive(Debug)]
pub(super) struct Partitions {
    hashes_as_java: bool,
    leaders: Mutex<HashMap<String, Vec<i32>>>,
}

impl Partitions {
    /// No topic is known yet.
    pub(super) fn new(settings: &KafkaSettings) -> Self {
        let mut set = settings.own.properties.iter();
        let partitioner =
            set.find_map(|(name, value)| (canonical(name) == "partitioner").then_some(value));
        Self {
            hashes_as_java: partitioner.is_none_or(|name| MURMUR2.contains(&name)),
            leaders: Mutex::default(),
        }
    }

    /// Notes the leaders of a topic's partitions, as a broker reported them; below zero for a
    /// partition without one.
    pub(super) fn note(&self, topic: &str, leaders: Vec<i32>) {
        let mut known = self.leaders();
        match known.get_mut(topic) {
            Some(known) => *known = leaders,
            None => drop(known.insert(topic.to_owned(), leaders)),
        }
    }

    /// Names the part of a topic that confirms this key, or fails to, apart from its other parts:
    /// the partition; the key alone where the operator's partitioner hashes in another way; `None`,
    /// the whole topic, where the broker has not been asked yet.
    pub(super) fn part(&self, topic: &str, key: &str) -> Option<String> {
        let leaders = self.leaders();
        let leaders = leaders.get(topic)?;
        if !self.hashes_as_java {
            return Some(format!("key {key}"));
        }
        Some(format!("partition {}", partition(key, leaders.len())?))
    }

    /// Whether this broker led the partition of this key when it was asked last; any partition of
    /// the topic, where it is not known which one.
    pub(super) fn leads(&self, broker: i32, topic: &str, key: &str) -> bool {
        let leaders = self.leaders();
        let Some(leaders) = leaders.get(topic) else { return false };
        match partition(key, leaders.len()) {
            Some(partition) if self.hashes_as_java => leaders[partition] == broker,
            _ => leaders.contains(&broker),
        }
    }

    fn leaders(&self) -> MutexGuard<'_, HashMap<String, Vec<i32>>> {
        self.leaders.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

/// The partition of a key, as Java's clients choose it.
fn partition(key: &str, count: usize) -> Option<usize> {
    let hash = usize::try_from(murmur2(key.as_bytes()) & 0x7fff_ffff).ok()?;
    hash.checked_rem(count)
}

/// The hash of a key: `Utils.murmur2` of Kafka's Java client. (The crates that have it are not
/// maintained.)
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

    /// Those of Kafka's `UtilsTest.testMurmur2`.
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
    fn part_is_as_fine_as_the_sink_can_know() {
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
