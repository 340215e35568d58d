//! Distinguishes a destination that does not confirm from a connection that is dead.
//!
//! A publish without a confirm says nothing about other publishes: a queue may have lost its majority,
//! or a partition its leader. So before the time of the publish is up, the sink pings the broker on the
//! same connection, unless other confirms have arrived meanwhile.

use std::future::{Future, pending};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::Mutex;
use tokio::time::Instant;

/// The ping begins when one part in so many of a publish's time is left.
const PING_TIME_DIVISOR: u32 = 4;

/// A confirm within this time is prompt. As a rule one comes within milliseconds.
const PROMPT_CONFIRM_LIMIT: Duration = Duration::from_millis(300);

/// When the broker last replied on a connection.
#[derive(Debug)]
pub(super) struct Liveness {
    opened_at: Instant,
    /// In microseconds since `opened_at`.
    replied: AtomicU64,
    /// The same, of a prompt confirm.
    confirmed_promptly: AtomicU64,
    /// Held during a ping: one at a time.
    pinging: Mutex<()>,
}

/// What does not respond.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unresponsive {
    /// The destination: the broker replies to other requests.
    Destination,
    Broker,
}

impl Liveness {
    /// Creates the state of a connection that was opened now.
    pub(super) fn new() -> Self {
        let (replied, confirmed_promptly) = (AtomicU64::new(0), AtomicU64::new(0));
        Self { opened_at: Instant::now(), replied, confirmed_promptly, pinging: Mutex::default() }
    }

    /// Notes that the broker has replied.
    pub(super) fn note_reply(&self) {
        self.replied.fetch_max(self.now(), Ordering::Relaxed);
    }

    /// Notes that the broker has confirmed a message that it got at `handed_over`.
    pub(super) fn note_confirm(&self, handed_over: Instant) {
        self.note_reply();
        if handed_over.elapsed() < PROMPT_CONFIRM_LIMIT {
            self.confirmed_promptly.fetch_max(self.now(), Ordering::Relaxed);
        }
    }

    fn now(&self) -> u64 {
        u64::try_from(self.opened_at.elapsed().as_micros()).unwrap_or(u64::MAX)
    }

    /// Returns whether there was a prompt confirm within this time.
    pub(super) fn has_confirmed_promptly_within(&self, time: Duration) -> bool {
        let noted = load(&self.confirmed_promptly);
        !noted.is_zero() && self.opened_at.elapsed() < noted + time
    }

    /// Returns whether the broker has replied within this time.
    pub(super) fn has_replied_within(&self, time: Duration) -> bool {
        self.opened_at.elapsed() < load(&self.replied) + time
    }

    /// Returns whether the broker has replied after a message that it got at `handed_over` should have
    /// been confirmed.
    pub(super) fn has_replied_well_after(&self, handed_over: Instant) -> bool {
        self.has_replied_since(handed_over + PROMPT_CONFIRM_LIMIT)
    }

    /// Waits until `until`, after `limit` in all, for a confirm. `ping` sends the broker another request,
    /// and returns whether it replied.
    ///
    /// # Errors
    ///
    /// What does not respond.
    pub(super) async fn confirm<T>(
        &self,
        confirm: impl Future<Output = T>,
        limit: Duration,
        until: Instant,
        ping: impl Future<Output = bool>,
    ) -> Result<T, Unresponsive> {
        let ping_at = until - limit / PING_TIME_DIVISOR;
        let mut confirm = std::pin::pin!(confirm);
        if let Ok(confirm) = tokio::time::timeout_at(ping_at, &mut confirm).await {
            return Ok(confirm);
        }
        let pinging = async {
            self.ping_unless_replied(ping_at, ping).await;
            pending().await
        };
        tokio::select! {
            biased;
            confirm = &mut confirm => return Ok(confirm),
            () = pinging => {}
            () = tokio::time::sleep_until(until) => {}
        }
        let is_alive = self.has_replied_since(ping_at);
        Err(if is_alive { Unresponsive::Destination } else { Unresponsive::Broker })
    }

    async fn ping_unless_replied(&self, since: Instant, ping: impl Future<Output = bool>) {
        let _pinging = self.pinging.lock().await;
        if !self.has_replied_since(since) && ping.await {
            self.note_reply();
        }
    }

    fn has_replied_since(&self, since: Instant) -> bool {
        self.opened_at + load(&self.replied) > since
    }
}

fn load(micros: &AtomicU64) -> Duration {
    Duration::from_micros(micros.load(Ordering::Relaxed))
}

#[cfg(test)]
mod tests {
    use std::future::ready;
    use std::sync::atomic::AtomicUsize;

    use super::*;

    const LIMIT: Duration = Duration::from_millis(800);

    async fn unresponsive(liveness: &Liveness, ping: impl Future<Output = bool>) -> Unresponsive {
        let until = Instant::now() + LIMIT;
        let unresponsive = liveness.confirm(pending::<()>(), LIMIT, until, ping).await.unwrap_err();
        assert!(Instant::now() >= until);
        unresponsive
    }

    #[tokio::test]
    async fn confirm_in_time_is_returned_without_a_ping() {
        let liveness = Liveness::new();
        let until = Instant::now() + LIMIT;

        let confirm = liveness.confirm(ready(7), LIMIT, until, async { unreachable!() }).await;

        assert_eq!(confirm, Ok(7));
    }

    #[tokio::test]
    async fn destination_is_unresponsive_if_the_broker_replies_to_the_ping() {
        let pings = AtomicUsize::new(0);
        let ping = async {
            pings.fetch_add(1, Ordering::Relaxed);
            tokio::time::sleep(Duration::from_millis(5)).await;
            true
        };

        assert_eq!(unresponsive(&Liveness::new(), ping).await, Unresponsive::Destination);
        assert_eq!(pings.into_inner(), 1);
    }

    #[tokio::test]
    async fn broker_is_unresponsive_if_it_does_not_reply_to_the_ping() {
        let liveness = Liveness::new();
        liveness.note_reply();

        assert_eq!(unresponsive(&liveness, pending()).await, Unresponsive::Broker);
    }

    #[tokio::test]
    async fn other_confirm_counts_as_a_reply() {
        let liveness = Liveness::new();
        let others = async {
            loop {
                tokio::time::sleep(LIMIT / 16).await;
                liveness.note_reply();
            }
        };

        let unresponsive = tokio::select! {
            unresponsive = unresponsive(&liveness, pending()) => unresponsive,
            () = others => unreachable!(),
        };

        assert_eq!(unresponsive, Unresponsive::Destination);
    }
}
