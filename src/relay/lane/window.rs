//! Several unconfirmed messages of one key (`sinks.<name>.key_window`).
//!
//! What fails lets those that were under way behind it go before it, which is the operator's
//! choice. Everything else keeps its order.

use std::sync::Arc;
use std::task::Poll;

use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt as _, StreamExt as _};
use tokio::task::coop::unconstrained;

use crate::relay::held::Held;
use crate::relay::lane::{Lane, LaneEnd, Next};
use crate::relay::shared::Shared;
use crate::sink::Sink;

impl Lane {
    /// How many may be unconfirmed at a time, on the sink that this one goes to.
    pub(super) fn window<S: Sink>(&self, shared: &Shared<S>, held: &Held) -> usize {
        if self.alone || shared.settings.key_windows.is_empty() {
            return 1;
        }
        let sink = shared.sink_of(&held.record);
        sink.map_or(1, |sink| shared.settings.key_window(sink))
    }

    /// Delivers with `window` unconfirmed at a time, until nothing waits or something fails.
    ///
    /// The first on a way (sink and destination) is confirmed before the second is begun: after
    /// that a sink hands over what it is given at once, and here it is given one after the
    /// other. Nothing new begins after a failure.
    pub(super) async fn deliver_several<S: Sink>(
        self: &Arc<Self>,
        shared: &Shared<S>,
        first: Held,
        window: usize,
    ) -> Option<LaneEnd> {
        let mut end = None;
        let mut next = Some(first);
        let mut known_way = None;
        let mut under_way = FuturesUnordered::new();
        loop {
            while end.is_none() && under_way.len() < window {
                let Some(held) = next.take().or_else(|| self.next_waiting(shared)) else { break };
                if held.is_lost() {
                    shared.lost(&held, self);
                    end = Some(LaneEnd::Interrupted);
                    break;
                }
                let admitted = match shared.admit(&held, false).await {
                    Ok(admitted) => admitted,
                    Err(delivered) => {
                        let held = std::future::ready((held, delivered));
                        under_way.push(held.boxed());
                        // Its outcome first.
                        break;
                    }
                };
                let way = Some(admitted.way());
                let is_known = way == known_way;
                if !is_known && !under_way.is_empty() {
                    next = Some(held);
                    break;
                }
                known_way = way;
                let sending = async move {
                    let delivered = shared.send(admitted, &held, false).await;
                    (held, delivered)
                };
                // The first poll hands it over, before the next one is given: tokio must not put
                // it off because this task has done much already.
                let mut sending = unconstrained(sending).boxed();
                match futures_util::poll!(&mut sending) {
                    Poll::Ready(sent) => under_way.push(std::future::ready(sent).boxed()),
                    Poll::Pending => under_way.push(sending),
                }
                if !is_known {
                    break;
                }
            }
            let Some((held, delivered)) = under_way.next().await else {
                if let Some(held) = next {
                    self.state().waiting.push_front(held);
                }
                return end;
            };
            let ended = self.conclude(shared, held, delivered).await;
            end = end.or(ended);
        }
    }

    /// The next one that waits, unless a stop came or the partition went.
    fn next_waiting<S: Sink>(self: &Arc<Self>, shared: &Shared<S>) -> Option<Held> {
        if self.is_over(shared) {
            return None;
        }
        match self.next(shared) {
            Next::Publish(held) => Some(*held),
            Next::Await | Next::End => None,
        }
    }
}
