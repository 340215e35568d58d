//! Delivers the records of one lane in order, one unconfirmed at a time.

mod window;

use std::sync::Arc;
use std::time::{Duration, Instant};

use postrider_outbox::reason::DeadReason;
use postrider_outbox::settle::Outcome;
use tracing::{debug, instrument, warn};

use crate::addressing;
use crate::blocker::{BlockReason, Blocker, KeyBlock};
use crate::context::{ExpectedLane, RelayContext, SinkHandle};
use crate::dead_letter::{DeadLetterDelayed, DeadLetterSender};
use crate::lane::{Lane, LaneEnd, Next};
use crate::lease::LeasedRecord;
use crate::publisher::{Delivery, DeliveryResult, Publisher};
use crate::sink::Sink;

/// Delivers until a lane is empty or something stops it.
///
/// This loop implements the prefix rule: a record is published when all records before it in this
/// lane are confirmed, or dead by a write that matched and that a majority acknowledged. Anything
/// else ends the lane, and releases the records behind.
#[instrument(
    name = "lane",
    level = "debug",
    skip_all,
    fields(key = lane.key.as_str(), partition = lane.partition)
)]
pub async fn run<S: Sink>(lane: Arc<Lane>, context: &RelayContext<S>) -> LaneEnd {
    LaneWorker { lane, context }.run().await
}

struct LaneWorker<'a, S> {
    lane: Arc<Lane>,
    context: &'a RelayContext<S>,
}

impl<S: Sink> LaneWorker<'_, S> {
    async fn run(&self) -> LaneEnd {
        let mut publishing = self.context.state.in_flight.publishing();
        let mut expected: Option<ExpectedLane<'_, S>> = None;
        let end = loop {
            if self.is_over() {
                break LaneEnd::Interrupted;
            }
            let leased = match self.next() {
                Next::Publish(leased) => *leased,
                Next::Await => {
                    publishing.pause();
                    expected = None;
                    tokio::select! {
                        () = self.lane.changed() => {}
                        () = self.context.stopping() => {}
                    }
                    continue;
                }
                Next::End => break LaneEnd::Drained,
            };
            publishing.resume();
            // A quarantined record uses an isolated connection.
            let handle = addressing::sink_of(self.context, &leased.record);
            let handle = handle.filter(|_| !self.lane.is_quarantined);
            if !expected.as_ref().is_some_and(|expected| expected.is_for(handle)) {
                expected = handle.map(SinkHandle::expect_lane);
            }
            let delivered = match self.window(&leased) {
                1 => self.deliver(leased).await,
                window => self.deliver_several(leased, window).await,
            };
            if let Some(end) = delivered {
                break end;
            }
        };
        publishing.pause();
        drop(expected);
        self.lane.close();
        self.release_rest().await;
        end
    }

    fn next(&self) -> Next {
        let context = self.context;
        let refill_size = context.has_room().then(|| context.refill_size());
        let (next, asks) = self.lane.next(refill_size);
        if asks {
            context.ask_refill(self.lane.clone());
        }
        next
    }

    fn is_over(&self) -> bool {
        self.lane.is_over(&self.context.stop)
    }

    async fn settle(&self, leased: LeasedRecord, sink: &str, outcome: Outcome) {
        self.context.queues.settlements.settle(&self.lane, leased, sink, outcome).await;
    }

    async fn settle_and_wait(&self, leased: LeasedRecord, sink: &str, outcome: Outcome) -> bool {
        let settlements = &self.context.queues.settlements;
        settlements.settle_and_wait(&self.lane, leased, sink, outcome).await
    }

    /// Delivers one record. Returns `None` if the next one may go.
    async fn deliver(&self, leased: LeasedRecord) -> Option<LaneEnd> {
        if leased.is_lost() {
            self.drop_lost(&leased);
            return Some(LaneEnd::Interrupted);
        }
        let publisher = Publisher::new(self.context);
        let mut lost_since = None;
        let result = loop {
            let result = publisher.deliver(&leased, &self.lane).await;
            if result.delivery != Delivery::SinkLost || leased.is_lost() || self.is_over() {
                break result;
            }
            // Published again first, as soon as the sink is up.
            let since = *lost_since.get_or_insert_with(Instant::now);
            if since.elapsed() > self.context.settings.grace() {
                break result;
            }
        };
        self.conclude(leased, result).await
    }

    /// Settles one record by the result of its delivery. Returns `None` if the next one may go.
    async fn conclude(&self, leased: LeasedRecord, result: DeliveryResult) -> Option<LaneEnd> {
        let sink = result.sink;
        match result.delivery {
            Delivery::Confirmed if self.lane.is_quarantined => {
                // Settled before the next quarantined record, which may end this process: a
                // delivered record must not be counted for the crash of its successor.
                let ours = self.settle_and_wait(leased, &sink, Outcome::Done).await;
                if ours { None } else { Some(LaneEnd::Interrupted) }
            }
            Delivery::Confirmed => {
                self.settle(leased, &sink, Outcome::Done).await;
                None
            }
            Delivery::Failed(error) if leased.attempt() < self.context.settings.max_attempts => {
                let delay = self.context.settings.backoff.delay(leased.attempt());
                debug!(record.id = %leased.record.id, attempt = leased.attempt(), error, "delivery failed");
                self.release_followers().await;
                let blocker = Blocker::written(&leased.record);
                let outcome = Outcome::Retry { delay, error };
                let ours = self.settle_and_wait(leased, &sink, outcome).await;
                // The next read shows what was written, and can be compared with later reads.
                let delay = delay.min(self.context.settings.poll_interval);
                if ours {
                    Some(wait(BlockReason::NotDue, blocker, delay))
                } else {
                    Some(LaneEnd::Interrupted)
                }
            }
            Delivery::Failed(error) => {
                let attempts = leased.attempt();
                let reason = DeadReason::AttemptsExhausted { attempts, error };
                self.mark_dead(leased, &sink, reason).await
            }
            Delivery::Undeliverable(reason) => self.mark_dead(leased, &sink, reason).await,
            Delivery::DestinationDown(destination, until) => {
                self.release_followers().await;
                let blocker = Blocker::of(&leased.record);
                let route = sink.as_str().into();
                let wait = KeyBlock::for_destination(blocker, Some(until), route, destination);
                self.settle(leased, &sink, Outcome::Released).await;
                Some(LaneEnd::Waits(Box::new(wait)))
            }
            Delivery::SinkLost | Delivery::Interrupted => {
                self.settle(leased, &sink, Outcome::Released).await;
                Some(LaneEnd::Interrupted)
            }
        }
    }

    /// Makes a record dead. Its followers go only when a majority has acknowledged that (guard 4).
    async fn mark_dead(
        &self,
        leased: LeasedRecord,
        sink: &str,
        reason: DeadReason,
    ) -> Option<LaneEnd> {
        let blocks = self.context.settings.dead_blocks(&self.lane.key);
        let attempts = match reason {
            DeadReason::AttemptsExhausted { attempts, .. } => attempts,
            // An impossible delivery does not count.
            _ => leased.record.attempt,
        };
        let id = leased.record.id.clone();
        let is_first = self.context.state.pending_deaths.reason(&leased.record).is_none();
        // A dead letter may take as long as a publish, and takes no room from others.
        let parked = self.lane.park(&self.context.state.in_flight);
        let sender = DeadLetterSender::new(self.context);
        let sent = sender.send(&leased.record, attempts, &reason, self.lane.is_quarantined).await;
        drop(parked);
        if let Err(DeadLetterDelayed) = sent {
            // It would die without its dead letter: only its key waits with it.
            let delay = self.context.settings.sink_probe_interval_max;
            self.context.state.pending_deaths.remember(&leased.record, &reason, delay);
            self.release_followers().await;
            let outcome = match reason {
                // The last attempt stays counted: another instance does not begin again.
                DeadReason::AttemptsExhausted { error, .. } if is_first => {
                    Outcome::Retry { delay, error }
                }
                _ => Outcome::Released,
            };
            let blocker = Blocker::written(&leased.record);
            let ours = self.settle_and_wait(leased, sink, outcome).await;
            let end = wait(BlockReason::DeadLetter, blocker, delay);
            return Some(if ours { end } else { LaneEnd::Interrupted });
        }
        self.context.state.pending_deaths.forget(&id);
        let kind = leased.record.raw.get_str("type").unwrap_or_default().to_owned();
        let words = reason.to_string();
        self.context.state.connection_losses.forget(&id);
        let ours = self.settle_and_wait(leased, sink, Outcome::Dead { reason, blocks }).await;
        if !ours {
            return Some(LaneEnd::Interrupted);
        }
        warn!(%id, key = self.lane.key.as_str(), r#type = kind, reason = words, blocks, "record is dead");
        if blocks { Some(LaneEnd::Interrupted) } else { None }
    }

    /// Drops a record that a renewal found leased elsewhere: nothing is written for it.
    fn drop_lost(&self, leased: &LeasedRecord) {
        self.context.state.in_flight.remove(leased.record.size());
        self.context.metrics.lost("");
        self.lane.leave_incomplete();
        self.lane.settled(&leased.record.id);
    }

    async fn release_followers(&self) {
        for leased in self.lane.take_waiting() {
            self.settle(leased, "", Outcome::Released).await;
        }
    }

    /// Releases the unpublished records and waits until all are settled, so that the next scan of
    /// the key sees the result.
    async fn release_rest(&self) {
        loop {
            self.release_followers().await;
            if self.lane.is_finished() {
                return;
            }
            self.lane.changed().await;
        }
    }
}

fn wait(reason: BlockReason, blocker: Blocker, delay: Duration) -> LaneEnd {
    LaneEnd::Waits(Box::new(KeyBlock::new(reason, blocker, Some(Instant::now() + delay))))
}
