//! Distinguishes a destination that does not confirm from a connection that is dead.
//!
//! A publish without a confirm says nothing of its neighbours: a queue may have lost its majority,
//! or a partition its leader. So before its time is up the sink asks the broker something else on
//! the same connection, unless other confirms have arrived meanwhile.

use std::future::{Future, pending};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::Mutex;
use tokio::time::Instant;

/// The part of a publish's time that is left when the connection is doubted: one part in so many.
const DOUBT: u32 = 4;

/// A connection that was heard from for so long after a message was handed over owes that message
/// its confirm: as a rule one comes within milliseconds.
const OWED: Duration = Duration::from_millis(300);

/// When a connection was last heard from.
#[derive(Debug)]
pub(super) struct Pulse {
    begin: Instant,
    /// In microseconds since `begin`.
    heard: AtomicU64,
    /// The same, of a message that was confirmed at once.
    quick: AtomicU64,
    /// One question at a time.
    asking: Mutex<()>,
}

/// Why there is no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Silent {
    /// The broker says other things.
    Destination,
    /// The broker says nothing.
    Broker,
}

impl Pulse {
    /// Of a connection that was opened now.
    pub(super) fn new() -> Self {
        let (heard, quick) = (AtomicU64::new(0), AtomicU64::new(0));
        Self { begin: Instant::now(), heard, quick, asking: Mutex::default() }
    }

    /// Notes that the broker has said something.
    pub(super) fn beat(&self) {
        self.heard.fetch_max(self.now(), Ordering::Relaxed);
    }

    /// Notes that the broker has answered what was handed over at that moment.
    pub(super) fn beat_for(&self, handed_over: Instant) {
        self.beat();
        if handed_over.elapsed() < OWED {
            self.quick.fetch_max(self.now(), Ordering::Relaxed);
        }
    }

    fn now(&self) -> u64 {
        u64::try_from(self.begin.elapsed().as_micros()).unwrap_or(u64::MAX)
    }

    /// Whether something was confirmed at once within this time.
    pub(super) fn quick_within(&self, time: Duration) -> bool {
        let quick = noted(&self.quick);
        !quick.is_zero() && self.begin.elapsed() < quick + time
    }

    /// Whether the broker has said something within this time.
    pub(super) fn heard_within(&self, time: Duration) -> bool {
        self.begin.elapsed() < noted(&self.heard) + time
    }

    /// Whether the broker has said something long after that moment.
    pub(super) fn heard_long_after(&self, moment: Instant) -> bool {
        self.has_beaten_since(moment + OWED)
    }

    /// Waits for an answer that is due at `until`, after `limit` in all. `question` asks the broker
    /// something else, and answers whether it replied.
    pub(super) async fn answer<T>(
        &self,
        answer: impl Future<Output = T>,
        limit: Duration,
        until: Instant,
        question: impl Future<Output = bool>,
    ) -> Result<T, Silent> {
        let doubted = until - limit / DOUBT;
        let mut answer = std::pin::pin!(answer);
        if let Ok(answer) = tokio::time::timeout_at(doubted, &mut answer).await {
            return Ok(answer);
        }
        let asking = async {
            self.ask(doubted, question).await;
            pending().await
        };
        tokio::select! {
            biased;
            answer = &mut answer => return Ok(answer),
            () = asking => {}
            () = tokio::time::sleep_until(until) => {}
        }
        let silent =
            if self.has_beaten_since(doubted) { Silent::Destination } else { Silent::Broker };
        Err(silent)
    }

    /// Asks, unless the broker has said something since then.
    async fn ask(&self, since: Instant, question: impl Future<Output = bool>) {
        let _asking = self.asking.lock().await;
        if !self.has_beaten_since(since) && question.await {
            self.beat();
        }
    }

    fn has_beaten_since(&self, since: Instant) -> bool {
        self.begin + noted(&self.heard) > since
    }
}

/// A moment that was noted, since the beginning.
fn noted(micros: &AtomicU64) -> Duration {
    Duration::from_micros(micros.load(Ordering::Relaxed))
}

#[cfg(test)]
mod tests {
    use std::future::ready;
    use std::sync::atomic::AtomicUsize;

    use super::*;

    const LIMIT: Duration = Duration::from_millis(800);

    async fn silence(pulse: &Pulse, question: impl Future<Output = bool>) -> Silent {
        let until = Instant::now() + LIMIT;
        let silent = pulse.answer(pending::<()>(), LIMIT, until, question).await.unwrap_err();
        assert!(Instant::now() >= until);
        silent
    }

    #[tokio::test]
    async fn an_answer_in_time_is_given_and_nothing_is_asked() {
        let pulse = Pulse::new();
        let until = Instant::now() + LIMIT;

        let answer = pulse.answer(ready(7), LIMIT, until, async { unreachable!() }).await;

        assert_eq!(answer, Ok(7));
    }

    #[tokio::test]
    async fn a_broker_that_replies_to_the_question_leaves_the_destination_silent() {
        let asked = AtomicUsize::new(0);
        let question = async {
            asked.fetch_add(1, Ordering::Relaxed);
            tokio::time::sleep(Duration::from_millis(5)).await;
            true
        };

        assert_eq!(silence(&Pulse::new(), question).await, Silent::Destination);
        assert_eq!(asked.into_inner(), 1);
    }

    #[tokio::test]
    async fn a_broker_that_does_not_reply_is_silent_whatever_it_said_before() {
        let pulse = Pulse::new();
        pulse.beat();

        assert_eq!(silence(&pulse, pending()).await, Silent::Broker);
    }

    #[tokio::test]
    async fn other_confirms_are_a_reply() {
        let pulse = Pulse::new();
        let others = async {
            loop {
                tokio::time::sleep(LIMIT / 16).await;
                pulse.beat();
            }
        };

        let silent = tokio::select! {
            silent = silence(&pulse, pending()) => silent,
            () = others => unreachable!(),
        };

        assert_eq!(silent, Silent::Destination);
    }
}
