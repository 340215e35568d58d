//! A steady flow of insertions, and what arrives of it.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use bson::raw::RawDocumentBuf;
use postrider::ids::RecordId;
use postrider::outbox::collections::Collections;
use tokio::task::{JoinHandle, JoinSet};
use tokio_util::sync::CancellationToken;

/// Enough keys for every partition.
pub const KEYS: usize = 4_000;

/// A record that was inserted.
pub struct Sent {
    pub id: String,
    pub partition: u8,
    /// Before the insertion was sent.
    pub at: Instant,
}

impl Sent {
    pub fn now(record: &RawDocumentBuf) -> Self {
        Self { id: id(record), partition: super::partition_of(record), at: Instant::now() }
    }
}

/// The id of a record, as a message has it.
pub fn id(record: &RawDocumentBuf) -> String {
    let id = bson::Bson::try_from(record.get("_id").unwrap().unwrap()).unwrap();
    RecordId::from(id).to_string()
}

/// A running producer.
pub struct Flow {
    stop: CancellationToken,
    task: JoinHandle<Vec<Sent>>,
}

impl Flow {
    /// Inserts this many records per second, one by one.
    pub fn start(collections: &Collections, per_second: u32) -> Self {
        let stop = CancellationToken::new();
        let (collections, stopped) = (collections.clone(), stop.clone());
        let task = tokio::spawn(async move {
            let mut ticks = tokio::time::interval(Duration::from_secs(1) / per_second);
            let (mut sent, mut inserts) = (Vec::new(), JoinSet::new());
            while !stopped.is_cancelled() {
                ticks.tick().await;
                let record = super::record(sent.len(), KEYS);
                sent.push(Sent::now(&record));
                let records = collections.records();
                inserts.spawn(async move { records.insert_one(record).await.unwrap() });
            }
            inserts.join_all().await;
            sent
        });
        Self { stop, task }
    }

    /// Stops it; returns what it inserted, in order.
    pub async fn stop(self) -> Vec<Sent> {
        self.stop.cancel();
        self.task.await.unwrap()
    }
}

/// Seconds that a record took to arrive.
pub struct Waited {
    pub seconds: f64,
    pub partition: u8,
}

/// What was sent within this time, and how long it took to arrive.
pub fn waited(
    sent: &[Sent],
    arrived: &HashMap<String, Instant>,
    (from, to): (Instant, Instant),
) -> Vec<Waited> {
    let within = sent.iter().filter(|sent| (from..to).contains(&sent.at));
    let waited = within.map(|sent| Waited {
        seconds: arrived[&sent.id].duration_since(sent.at).as_secs_f64(),
        partition: sent.partition,
    });
    let mut waited: Vec<Waited> = waited.collect();
    waited.sort_by(|one, other| one.seconds.total_cmp(&other.seconds));
    waited
}
