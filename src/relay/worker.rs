//! Delivers the records of one lane: one after the other, one unconfirmed at a time.

mod window;

use std::sync::Arc;
use std::time::{Duration, Instant};

use tracing::{debug, instrument, warn};

use crate::outbox::reason::DeadReason;
use crate::outbox::record::LaneKey;
use crate::outbox::settle::Outcome;
use crate::relay::blocker::{Blocker, HoldReason, Wait};
use crate::relay::dead_letter::Later;
use crate::relay::delivery::{Delivered, Delivery};
use crate::relay::held::Held;
use crate::relay::lane::{Lane, LaneEnd, Next};
use crate::relay::shared::Shared;
use crate::sink::Sink;

/// Delivers until nothing is left of a lane or something stops it.
///
/// The prefix rule in one loop: a record is published when all before it in this lane
/// are confirmed, or dead by a write that a majority acknowledged and that matched.
/// Anything else ends the lane, and gives back what is behind.
#[instrument(name = "lane", level = "debug", skip_all, fields(key = lane.key.as_str()))]
pub async fn run<S: Sink>(lane: Arc<Lane>, shared: &Shared<S>) -> LaneEnd {
    Worker { lane, shared }.run().await
}

struct Worker<'a, S> {
    lane: Arc<Lane>,
    shared: &'a Shared<S>,
}

impl<S: Sink> Worker<'_, S> {
    async fn run(&self) -> LaneEnd {
        let mut publishing = self.shared.in_hand.publishing();
        let end = loop {
            if self.is_over() {
                break LaneEnd::Interrupted;
            }
            let held = match self.next() {
                Next::Publish(held) => *held,
                Next::Await => {
                    publishing.pause();
                    tokio::select! {
                        () = self.lane.changed() => {}
                        () = self.shared.stopping() => {}
                    }
                    continue;
                }
                Next::End => break LaneEnd::Drained,
            };
            publishing.resume();
            let delivered = match self.window(&held) {
                1 => self.deliver(held).await,
                window => self.deliver_several(held, window).await,
            };
            if let Some(end) = delivered {
                break end;
            }
        };
        publishing.pause();
        self.lane.close();
        self.give_back().await;
        end
    }

    fn next(&self) -> Next {
        let shared = self.shared;
        let share = shared.has_room().then(|| shared.share());
        let (next, asks) = self.lane.next(share);
        if asks {
            shared.ask_refill(self.lane.clone());
        }
        next
    }

    fn is_over(&self) -> bool {
        self.lane.is_over(&self.shared.stop)
    }

    async fn settle(&self, held: Held, sink: &str, outcome: Outcome) {
        self.shared.settle(&self.lane, held, sink, outcome).await;
    }

    async fn settle_and_wait(&self, held: Held, sink: &str, outcome: Outcome) -> bool {
        self.shared.settle_and_wait(&self.lane, held, sink, outcome).await
    }

    /// One record; `None` lets the next one go.
    async fn deliver(&self, held: Held) -> Option<LaneEnd> {
        if held.is_lost() {
            self.shared.lost(&held, &self.lane);
            return Some(LaneEnd::Interrupted);
        }
        let mut lost_since = None;
        let delivery = loop {
            let delivery = self.shared.deliver(&held, &self.lane).await;
            if delivery.outcome != Delivery::SinkLost || held.is_lost() || self.is_over() {
                break delivery;
            }
            // Sent again first, as soon as the sink is up.
            let since = *lost_since.get_or_insert_with(Instant::now);
            if since.elapsed() > self.shared.settings.grace() {
                break delivery;
            }
        };
        self.conclude(held, delivery).await
    }

    /// Settles what came of one record; `None` lets the next one go.
    async fn conclude(&self, held: Held, delivery: Delivered) -> Option<LaneEnd> {
        let sink = delivery.sink;
        match delivery.outcome {
            Delivery::Confirmed if self.lane.alone => {
                // Before the next one's turn, which may end this process: a record that was
                // delivered must not be charged for its successor's crash time and again.
                let ours = self.settle_and_wait(held, &sink, Outcome::Done).await;
                if ours { None } else { Some(LaneEnd::Interrupted) }
            }
            Delivery::Confirmed => {
                self.settle(held, &sink, Outcome::Done).await;
                None
            }
            Delivery::Failed(error) if held.attempt() < self.shared.settings.max_attempts => {
                let delay = self.shared.settings.backoff.delay(held.attempt());
                debug!(id = %held.record.id, attempt = held.attempt(), error, "delivery failed");
                self.release_followers().await;
                let blocker = Blocker::written(&held.record);
                let outcome = Outcome::Retry { delay, error };
                let ours = self.settle_and_wait(held, &sink, outcome).await;
                // The next read shows what was written, and can be compared with later ones.
                let delay = delay.min(self.shared.settings.poll_interval);
                match ours {
                    true => Some(wait(HoldReason::NotDue, blocker, delay)),
                    false => Some(LaneEnd::Interrupted),
                }
            }
            Delivery::Failed(error) => {
                let attempts = held.attempt();
                let reason = DeadReason::AttemptsExhausted { attempts, error };
                self.bury(held, &sink, reason).await
            }
            Delivery::Undeliverable(reason) => self.bury(held, &sink, reason).await,
            Delivery::DestinationPaused(destination, until) => {
                self.release_followers().await;
                let blocker = Blocker::of(&held.record);
                let way = sink.as_str().into();
                let wait = Wait::for_destination(blocker, Some(until), way, destination);
                self.settle(held, &sink, Outcome::Released).await;
                Some(LaneEnd::Waits(Box::new(wait)))
            }
            Delivery::SinkLost | Delivery::Interrupted => {
                self.settle(held, &sink, Outcome::Released).await;
                Some(LaneEnd::Interrupted)
            }
        }
    }

    /// Makes a record dead; its followers go only when that is known to be so (guard 4).
    async fn bury(&self, held: Held, sink: &str, reason: DeadReason) -> Option<LaneEnd> {
        let blocks = self.shared.settings.ordered
            && self.shared.settings.block_on_dead
            && matches!(self.lane.key, LaneKey::Keyed(_));
        let attempts = match reason {
            DeadReason::AttemptsExhausted { attempts, .. } => attempts,
            // The delivery that can't be is none.
            _ => held.record.attempt,
        };
        let id = held.record.id.clone();
        let is_first = self.shared.dying.reason(&held.record).is_none();
        // It may take as long as a publish may, and takes no room from others.
        let parked = self.lane.park(&self.shared.in_hand);
        let sent =
            self.shared.send_dead_letter(&held.record, attempts, &reason, self.lane.alone).await;
        drop(parked);
        if let Err(Later) = sent {
            // It would die without its dead letter; only its key waits.
            let delay = self.shared.settings.probe_max;
            self.shared.dying.remember(&held.record, &reason, delay);
            self.release_followers().await;
            let outcome = match reason {
                // The last attempt stays counted: another instance does not begin again.
                DeadReason::AttemptsExhausted { error, .. } if is_first => {
                    Outcome::Retry { delay, error }
                }
                _ => Outcome::Released,
            };
            let blocker = Blocker::written(&held.record);
            let ours = self.settle_and_wait(held, sink, outcome).await;
            let end = wait(HoldReason::DeadLetter, blocker, delay);
            return Some(if ours { end } else { LaneEnd::Interrupted });
        }
        self.shared.dying.forget(&id);
        let kind = held.record.raw.get_str("type").unwrap_or_default().to_owned();
        let words = reason.to_string();
        self.shared.losses.forget(&id);
        let ours = self.settle_and_wait(held, sink, Outcome::Dead { reason, blocks }).await;
        if !ours {
            return Some(LaneEnd::Interrupted);
        }
        warn!(%id, key = self.lane.key.as_str(), r#type = kind, reason = words, blocks, "record is dead");
        if blocks { Some(LaneEnd::Interrupted) } else { None }
    }

    async fn release_followers(&self) {
        for held in self.lane.take_waiting() {
            self.settle(held, "", Outcome::Released).await;
        }
    }

    /// Releases what was not published and waits until all is settled, so that
    /// whoever reads the key next sees it as it is.
    async fn give_back(&self) {
        loop {
            self.release_followers().await;
            if self.lane.is_finished() {
                return;
            }
            self.lane.changed().await;
        }
    }
}

fn wait(reason: HoldReason, blocker: Blocker, delay: Duration) -> LaneEnd {
    LaneEnd::Waits(Box::new(Wait::new(reason, blocker, Some(Instant::now() + delay))))
}
