//! A relay taken apart: a test calls the halves of a take and runs the lanes itself.

use std::sync::Arc;
use std::time::Duration;

use postrider::outbox::collections::Collections;
use postrider::outbox::position::Position;
use postrider::outbox::snapshot::Room;
use postrider::partition::share::Share;
use postrider::relay::Relay;
use postrider::relay::lane::{Lane, LaneEnd};
use postrider::relay::look::{Look, Seen};
use postrider::relay::settings::Settings;
use postrider::relay::shared::Shared;
use postrider::relay::wake::Wake;
use postrider::relay::worker;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::outbox::eventually;
use super::relay::parts;
use super::sink::TestSink;

/// The parts of a relay, with its sink up and its settler at work; nothing moves by itself.
pub struct Stage {
    pub shared: Arc<Shared<TestSink>>,
    /// Keeps the settler and the receiver of refills.
    _relay: Relay<TestSink>,
}

impl Stage {
    pub async fn new(collections: &Collections, sink: TestSink, settings: Settings) -> Self {
        let (_, share) = watch::channel(Share::of(0..=255));
        let parts = parts(collections, sink.clone(), settings, share, Wake::default());
        let relay = Relay::new(parts, CancellationToken::new());
        let shared = relay.shared();
        shared.clock.sample(collections.database()).await.unwrap();
        let opening = shared.clone();
        tokio::spawn(async move {
            let stop = CancellationToken::new();
            let gate = &opening.outlets["test"].gate;
            gate.keep(&sink, Duration::from_secs(1), &stop, || {}, || {}).await;
        });
        eventually("the sink is found up", || async { shared.all_open() }).await;
        Self { shared, _relay: relay }
    }

    /// The first half of a take, over everything.
    pub async fn look(&self) -> Seen {
        let owned: Vec<u8> = (0..=255).collect();
        let room = Room { records: 500, bytes: 16 << 20 };
        self.shared.look(Look::Rotation(Position::start()), &owned, room).await.unwrap()
    }

    /// The second half, after what the look found to repair.
    pub async fn lease(&self, mut seen: Seen) -> Vec<Arc<Lane>> {
        self.shared.repair(std::mem::take(&mut seen.repairs)).await.unwrap();
        self.shared.lease(seen).await.unwrap()
    }

    /// Delivers what the lanes hold, and strikes their keys off.
    pub async fn deliver(&self, lanes: Vec<Arc<Lane>>) -> Vec<LaneEnd> {
        let mut ends = Vec::new();
        for lane in lanes {
            ends.push(worker::run(lane.clone(), &self.shared).await);
            self.shared.hands.free(&lane.key);
        }
        ends
    }
}
