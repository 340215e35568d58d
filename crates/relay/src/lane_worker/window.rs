//! Delivers several unconfirmed messages of one key (`sinks.<name>.key_window`).
//!
//! A failed message may be overtaken by those behind it that were sent already, which is the
//! operator's choice. Everything else keeps its order.

use std::task::Poll;

use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt as _, StreamExt as _};
use tokio::task::coop::unconstrained;

use crate::addressing;
use crate::lane::{LaneEnd, Next};
use crate::lane_worker::LaneWorker;
use crate::lease::LeasedRecord;
use crate::publisher::{Delivery, DeliveryResult, Publisher};
use crate::sink::Sink;

impl<S: Sink> LaneWorker<'_, S> {
    /// Returns how many messages may be unconfirmed at a time, on the sink of this record.
    pub(super) fn window(&self, leased: &LeasedRecord) -> usize {
        let context = self.context;
        if self.lane.is_quarantined || context.settings.key_windows.is_empty() {
            return 1;
        }
        let sink = addressing::sink_name(context, &leased.record);
        sink.map_or(1, |sink| context.settings.key_window(sink))
    }

    /// Delivers with `window` unconfirmed at a time, until nothing waits or something fails.
    ///
    /// The first message of a route (sink and destination) is confirmed before the second begins.
    /// After that the sink sends each message at once and in order, unless
    /// it says that it is not ready. Nothing new begins after a failure, nor behind a record that
    /// was not sent until that record is concluded. Messages that a lost sink interrupts wait in
    /// order, and are sent again before anything new.
    pub(super) async fn deliver_several(
        &self,
        first: LeasedRecord,
        window: usize,
    ) -> Option<LaneEnd> {
        let lane = &self.lane;
        let publisher = &Publisher::new(self.context);
        let mut end = None;
        let mut next = Some(first);
        let mut known_route = None;
        let mut under_way = FuturesUnordered::new();
        let mut begun = 0_usize;
        // The record whose outcome is awaited before anything begins.
        let mut barrier = None;
        let mut interrupted: Vec<(usize, LeasedRecord, DeliveryResult)> = Vec::new();
        loop {
            while end.is_none()
                && barrier.is_none()
                && interrupted.is_empty()
                && under_way.len() < window
            {
                let Some(leased) = next.take().or_else(|| self.next_waiting()) else { break };
                if leased.is_lost() {
                    self.drop_lost(&leased);
                    end = Some(LaneEnd::Interrupted);
                    break;
                }
                let number = begun;
                let admitted = match publisher.admit(&leased, lane, under_way.is_empty()).await {
                    Ok(admitted) => admitted,
                    Err(delivered) => {
                        begun += 1;
                        barrier = Some(number);
                        under_way.push(std::future::ready((number, leased, delivered)).boxed());
                        break;
                    }
                };
                let route = Some(admitted.route());
                let is_known = route == known_route && admitted.is_ready();
                if !is_known && !under_way.is_empty() {
                    next = Some(leased);
                    break;
                }
                begun += 1;
                known_route = route;
                let sending = async move {
                    let delivered = publisher.send(admitted, &leased, lane).await;
                    (number, leased, delivered)
                };
                // The first poll sends it, before the next one begins: tokio must not defer it
                // because this task has used its budget.
                let mut sending = unconstrained(sending).boxed();
                match futures_util::poll!(&mut sending) {
                    Poll::Ready(sent) => {
                        if sent.2.delivery != Delivery::Confirmed {
                            barrier = Some(number);
                        }
                        under_way.push(std::future::ready(sent).boxed());
                    }
                    Poll::Pending => under_way.push(sending),
                }
                if !is_known {
                    break;
                }
            }
            let Some((number, leased, delivered)) = under_way.next().await else {
                break;
            };
            if barrier == Some(number) {
                barrier = None;
            }
            if delivered.delivery == Delivery::SinkLost && end.is_none() {
                interrupted.push((number, leased, delivered));
                continue;
            }
            let ended = self.conclude(leased, delivered).await;
            end = end.or(ended);
        }
        if let Some(leased) = next {
            lane.put_back(leased);
        }
        interrupted.sort_by_key(|(number, ..)| *number);
        if end.is_none() && !self.is_over() {
            interrupted.into_iter().rev().for_each(|(_, leased, _)| lane.put_back(leased));
            return None;
        }
        for (_, leased, delivered) in interrupted {
            let ended = self.conclude(leased, delivered).await;
            end = end.or(ended);
        }
        end
    }

    /// Returns the next waiting record, unless a stop came or the partition was lost.
    fn next_waiting(&self) -> Option<LeasedRecord> {
        if self.is_over() {
            return None;
        }
        match self.next() {
            Next::Publish(leased) => Some(*leased),
            Next::Await | Next::End => None,
        }
    }
}
