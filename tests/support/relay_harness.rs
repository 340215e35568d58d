//! The parts of a relay: a test scans, leases and runs the lanes itself.

use std::sync::Arc;
use std::time::Duration;

use postrider::outbox::collections::Collections;
use postrider::outbox::position::Position;
use postrider::outbox::snapshot::ReadLimit;
use postrider::partition::owned::OwnedPartitions;
use postrider::relay::Relay;
use postrider::relay::acquirer::Acquirer;
use postrider::relay::context::RelayContext;
use postrider::relay::lane::{Lane, LaneEnd};
use postrider::relay::lane_worker;
use postrider::relay::repairer::Repairer;
use postrider::relay::scanner::{ScanResult, ScanScope, Scanner};
use postrider::relay::settings::Settings;
use postrider::wakeup::Wakeup;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::outbox::eventually;
use super::relay::parts;
use super::sink::TestSink;

/// The parts of a relay, with its sink up and its settlement writer running; nothing else runs by
/// itself.
pub struct RelayHarness {
    pub context: Arc<RelayContext<TestSink>>,
    /// Keeps the settlement writer and the receiver of refills.
    _relay: Relay<TestSink>,
}

impl RelayHarness {
    pub async fn new(collections: &Collections, sink: TestSink, settings: Settings) -> Self {
        let (_, share) = watch::channel(OwnedPartitions::of(0..=255));
        let parts = parts(collections, sink.clone(), settings, share, Wakeup::default());
        let relay = Relay::new(parts, CancellationToken::new());
        let context = relay.context();
        context.clock.sample(collections.database()).await.unwrap();
        let opening = context.clone();
        tokio::spawn(async move {
            let stop = CancellationToken::new();
            let circuit = &opening.sinks["test"].circuit;
            circuit.run(&sink, Duration::from_secs(1), &stop, || {}, || {}).await;
        });
        eventually("the sink is found up", || async { context.all_up() }).await;
        Self { context, _relay: relay }
    }

    /// Scans everything.
    pub async fn scan(&self) -> ScanResult {
        let owned: Vec<u8> = (0..=255).collect();
        let room = ReadLimit { records: 500, bytes: 16 << 20 };
        let scope = ScanScope::Rotation(Position::start());
        Scanner::new(&self.context).scan(scope, &owned, room).await.unwrap()
    }

    /// Leases what a scan found, after its repairs.
    pub async fn acquire(&self, mut result: ScanResult) -> Vec<Arc<Lane>> {
        let repairs = std::mem::take(&mut result.repairs);
        Repairer::new(&self.context).repair(repairs).await.unwrap();
        Acquirer::new(&self.context).acquire(result.acquisitions).await.unwrap()
    }

    /// Delivers what the lanes hold, and releases their keys.
    pub async fn deliver(&self, lanes: Vec<Arc<Lane>>) -> Vec<LaneEnd> {
        let mut ends = Vec::new();
        for lane in lanes {
            ends.push(lane_worker::run(lane.clone(), &self.context).await);
            self.context.state.key_table.release(&lane.key);
        }
        ends
    }
}
