//! What all lanes of one relay share.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use crate::outbox::collections::Collections;
use crate::outbox::lease::Leaser;
use crate::outbox::repair::Repairs;
use crate::outbox::settle::{Outcome, Settlement};
use crate::relay::circuits::{Circuits, OpenDestination};
use crate::relay::dying::{Buried, Dying};
use crate::relay::failing::{self, Failing, RefusedOutcomes};
use crate::relay::gate::Gate;
use crate::relay::hands::Hands;
use crate::relay::held::Held;
use crate::relay::lane::Lane;
use crate::relay::load::Load;
use crate::relay::losses::Losses;
use crate::relay::metrics::{RelayMetrics, SinkMetrics};
use crate::relay::misplaced::Misplaced;
use crate::relay::quarantine::Quarantine;
use crate::relay::refusals::Refusals;
use crate::relay::renewal::Leases;
use crate::relay::settings::Settings;
use crate::relay::settler::Item;
use crate::relay::turns::{ProbeRoom, Turns};
use crate::routing::Router;
use crate::store::ServerClock;

/// The loss of a connection is over sooner, as a rule: nothing is released for it.
const INTERRUPTION: Duration = Duration::from_millis(500);

/// A sink with its gate and its figures.
#[derive(Debug)]
pub struct Outlet<S> {
    /// The sink.
    pub sink: S,
    /// Open while it is up.
    pub gate: Gate,
    /// Which of its destinations do not confirm.
    pub circuits: Circuits,
    /// Its isolated connection.
    pub quarantine: Quarantine<S>,
    /// Of records that lost the sink's connection.
    pub(crate) turns: Turns,
    /// Its figures.
    pub metrics: SinkMetrics,
}

/// The relay's common ground: settings, the way to MongoDB, the sinks, the books.
#[derive(Debug)]
pub struct Shared<S> {
    /// What the operator decided.
    pub settings: Settings,
    /// Where the outbox lives.
    pub collections: Collections,
    /// Takes and renews leases.
    pub leaser: Leaser,
    /// Repairs, promotes.
    pub repairs: Repairs,
    /// The server's time.
    pub clock: Arc<ServerClock>,
    /// Which sink and where.
    pub router: Router,
    /// The sinks by name.
    pub outlets: BTreeMap<String, Outlet<S>>,
    /// Lanes in hand and held.
    pub hands: Hands,
    /// Records that lost their connection before a confirm.
    pub losses: Losses,
    pub(crate) dying: Dying,
    pub(crate) misplaced: Misplaced,
    pub(crate) refusals: Refusals,
    pub(crate) outcomes: Arc<RefusedOutcomes>,
    pub(crate) failing: Arc<Failing>,
    /// Leases in use.
    pub leases: Leases,
    pub(crate) turns: Turns,
    pub(crate) probe_room: ProbeRoom,
    /// Figures of the relay itself.
    pub metrics: Arc<RelayMetrics>,
    pub(crate) in_hand: Arc<Load>,
    pub(crate) settler: mpsc::Sender<Item>,
    pub(crate) buried: mpsc::Sender<Buried>,
    pub(crate) refills: mpsc::UnboundedSender<Arc<Lane>>,
    pub(crate) stop: CancellationToken,
}

impl<S> Shared<S> {
    /// Whether another batch may be taken. What waits for a destination that does not answer takes
    /// no room but that of its bytes.
    pub fn has_room(&self) -> bool {
        let settings = &self.settings;
        self.in_hand.moving() + settings.batch_size <= settings.in_hand()
            && self.in_hand.bytes() < settings.batch_bytes
    }

    /// How many records a lane that runs short asks for: its share of what may be in hand.
    pub fn share(&self) -> usize {
        let share = self.settings.in_hand() / 2 / self.in_hand.publishing_lanes().max(1);
        share.min(self.settings.batch_size).max(Settings::LANE)
    }

    /// Whether a stop was asked for: nothing new is published.
    pub fn is_stopping(&self) -> bool {
        self.stop.is_cancelled()
    }

    /// Resolves when a stop is asked for.
    pub async fn stopping(&self) {
        self.stop.cancelled().await;
    }

    /// What MongoDB refuses or does not do, in words, while it lasts.
    pub fn store_trouble(&self) -> Option<String> {
        failing::detail(&self.failing, &self.outcomes)
    }

    /// Whether any sink can be published to.
    pub fn any_open(&self) -> bool {
        self.outlets.values().any(|outlet| outlet.gate.is_open())
    }

    /// Whether every sink can be published to.
    pub fn all_open(&self) -> bool {
        self.outlets.values().all(|outlet| outlet.gate.is_open())
    }

    /// Whether every destination of every sink confirms, as far as known.
    pub(crate) fn all_confirm(&self) -> bool {
        self.outlets.values().all(|outlet| outlet.circuits.all_closed())
    }

    /// The destinations that do not confirm.
    pub fn destinations(&self) -> Vec<OpenDestination> {
        self.outlets.values().flat_map(|outlet| outlet.circuits.open()).collect()
    }

    /// Without room, lanes that wait for a sink that is down make way for the others, unless it may
    /// be up again at once.
    pub(crate) fn make_way(&self) {
        let is_full = !self.has_room() || self.in_hand.publishing_lanes() >= self.settings.lanes();
        if is_full && self.any_open() && !self.all_open() {
            self.outlets.values().for_each(|outlet| outlet.gate.give_way(INTERRUPTION));
        }
    }

    /// Hands an outcome to the settler, which batches; the lane goes on meanwhile.
    pub(crate) async fn settle(&self, lane: &Arc<Lane>, held: Held, sink: &str, outcome: Outcome) {
        self.hand_over(lane, held, sink, outcome, None).await;
    }

    /// Hands an outcome to the settler and waits until a majority has it; answers whether
    /// the record was still ours.
    pub(crate) async fn settle_and_wait(
        &self,
        lane: &Arc<Lane>,
        held: Held,
        sink: &str,
        outcome: Outcome,
    ) -> bool {
        let (reply, answer) = oneshot::channel();
        self.hand_over(lane, held, sink, outcome, Some(reply)).await;
        // A settler that is gone (the hard end of a stop) has settled nothing.
        answer.await.unwrap_or(false)
    }

    /// A record that a renewal found in other hands: nothing is written for it.
    pub(crate) fn lost(&self, held: &Held, lane: &Arc<Lane>) {
        self.in_hand.remove(held.record.size());
        self.metrics.lost("");
        lane.leave_incomplete();
        lane.settled(&held.record.id);
    }

    /// Asks for more of a lane's key.
    pub(crate) fn ask_refill(&self, lane: Arc<Lane>) {
        // Without a driver the relay is ending, and the lane with it.
        let _ = self.refills.send(lane);
    }

    async fn hand_over(
        &self,
        lane: &Arc<Lane>,
        held: Held,
        sink: &str,
        outcome: Outcome,
        reply: Option<oneshot::Sender<bool>>,
    ) {
        held.settling();
        let bytes = held.record.size();
        let settlement = Settlement {
            id: held.record.id.clone(),
            lease: held.lease.id,
            attempt: held.attempt(),
            outcome,
        };
        let item = Item { settlement, lane: lane.clone(), sink: sink.to_owned(), bytes, reply };
        // A settler that is gone leaves the record to its lease.
        let _ = self.settler.send(item).await;
    }
}
