//! The targets that the broker has refused, of one sink.
//!
//! They outlive the sink's connections: a refused publish closes its channel, and with it the link
//! of all messages. So nothing is sent to a refused exchange until a look-up finds it accepted, and a refused routing
//! key is not published to again on that channel. Once one routing key of an exchange was refused, every other one is
//! tested first: its first message is sent on a channel of its own. (A routing key may contain an id: each new one that
//! is forbidden would close the channel of the others again.)

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use lapin::types::ShortString;
use parking_lot::Mutex;
use postrider_relay::sink::{PublishError, PublishFailure};

use crate::rabbitmq::broker_error::{self, Refusal, Scope};
use crate::rabbitmq::rendering::Target;

/// How long a missing exchange is not looked up again: short compared with the first backoff, long
/// enough that a thousand records for it cost one closed channel.
const MISSING_PAUSE: Duration = Duration::from_secs(1);

/// How long nothing is sent to a forbidden target. Then an exchange is looked up again, and a routing key is
/// tried by one message on a channel of its own. Longer than [`MISSING_PAUSE`], since the broker logs an error for
/// each of these channels.
const FORBIDDEN_PAUSE: Duration = Duration::from_secs(5);

/// The limit of the forbidden routing keys of one exchange that are remembered, and of the permitted ones.
const MAX_ROUTING_KEYS: usize = 10_000;

/// Whether, and how, a message may be sent to a target.
#[derive(Debug)]
pub(super) enum Admission {
    /// Like any other.
    Allowed,
    /// Not at all: the broker refused the target a moment ago.
    Refused(PublishError),
    /// On a trial channel: the routing key was forbidden some time ago, and may be permitted since.
    Trial,
    /// Other routing keys of the exchange are forbidden, and this one was never tried. The holder of the lock
    /// tries it.
    Untested(Arc<tokio::sync::Mutex<()>>),
}

/// When the broker refused an exchange as a whole.
#[derive(Debug)]
pub(super) enum ExchangeRefusal {
    /// A moment ago.
    Recent(PublishError),
    /// Some time ago: it can be looked up again.
    Past,
}

#[derive(Debug, Default)]
pub(super) struct RefusedTargets(Mutex<HashMap<ShortString, RefusedExchange>>);

/// What is refused of one exchange.
#[derive(Debug, Default)]
struct RefusedExchange {
    /// The exchange as a whole.
    whole: Option<PausedTarget>,
    routing_keys: HashMap<ShortString, PausedTarget>,
    /// The routing keys that are known to be permitted; `None` if none was ever refused.
    permitted: Option<HashSet<ShortString>>,
    /// The routing keys that are being tried.
    trials: HashMap<ShortString, Arc<tokio::sync::Mutex<()>>>,
}

#[derive(Debug)]
struct PausedTarget {
    until: Instant,
    reply_text: String,
}

impl RefusedTargets {
    /// Notes that the broker refused this target.
    pub(super) fn note(&self, target: &Target, refusal: Refusal) {
        let Refusal { scope, is_forbidden, reply_text } = refusal;
        let pause = if is_forbidden { FORBIDDEN_PAUSE } else { MISSING_PAUSE };
        let paused = PausedTarget { until: Instant::now() + pause, reply_text };
        let mut refused = self.0.lock();
        let exchange = refused.entry(target.exchange.clone()).or_default();
        match scope {
            Scope::Exchange => exchange.whole = Some(paused),
            Scope::RoutingKey => {
                let key = &target.routing_key;
                exchange.trials.remove(key);
                exchange.permitted.get_or_insert_default().remove(key);
                if exchange.routing_keys.len() >= MAX_ROUTING_KEYS {
                    // Each of them is tried again.
                    exchange.routing_keys.clear();
                }
                exchange.routing_keys.insert(key.clone(), paused);
            }
        }
    }

    /// Decides whether a message may be sent to this target. One caller gets [`Admission::Trial`] and tries
    /// it; the others are refused for another pause, or until [`permit`](Self::permit).
    pub(super) fn admit(&self, target: &Target) -> Admission {
        let mut exchanges = self.0.lock();
        let Some(exchange) = exchanges.get_mut(&target.exchange) else { return Admission::Allowed };
        if let Some(whole) = &exchange.whole {
            return Admission::Refused(refused(&whole.reply_text));
        }
        if let Some(paused) = exchange.routing_keys.get_mut(&target.routing_key) {
            return paused.admit();
        }
        match &exchange.permitted {
            Some(permitted) if !permitted.contains(&target.routing_key) => {
                let trial = exchange.trials.entry(target.routing_key.clone());
                Admission::Untested(trial.or_default().clone())
            }
            _ => Admission::Allowed,
        }
    }

    /// Returns whether a message to this target is allowed without a trial.
    pub(super) fn is_allowed(&self, target: &Target) -> bool {
        let refused = self.0.lock();
        let Some(exchange) = refused.get(&target.exchange) else { return true };
        let key = &target.routing_key;
        exchange.whole.is_none()
            && !exchange.routing_keys.contains_key(key)
            && exchange.permitted.as_ref().is_none_or(|permitted| permitted.contains(key))
    }

    /// Returns whether an exchange is refused as a whole, and when it was.
    pub(super) fn exchange(&self, exchange: &ShortString) -> Option<ExchangeRefusal> {
        let exchanges = self.0.lock();
        let whole = exchanges.get(exchange)?.whole.as_ref()?;
        Some(if whole.is_over() {
            ExchangeRefusal::Past
        } else {
            ExchangeRefusal::Recent(refused(&whole.reply_text))
        })
    }

    /// Forgets the refusal of an exchange as a whole: a look-up found it accepted.
    pub(super) fn permit_exchange(&self, exchange: &ShortString) {
        let mut refused = self.0.lock();
        let Some(known) = refused.get_mut(exchange) else { return };
        known.whole = None;
        if known.routing_keys.is_empty() {
            refused.remove(exchange);
        }
    }

    /// Forgets the refusals of this target: the broker accepted a message for it.
    pub(super) fn permit(&self, target: &Target) {
        let mut refused = self.0.lock();
        let Some(exchange) = refused.get_mut(&target.exchange) else { return };
        let key = &target.routing_key;
        exchange.whole = None;
        exchange.trials.remove(key);
        exchange.routing_keys.remove(key);
        if exchange.routing_keys.is_empty() {
            refused.remove(&target.exchange);
        } else if let Some(permitted) = &mut exchange.permitted {
            if permitted.len() >= MAX_ROUTING_KEYS {
                permitted.clear();
            }
            permitted.insert(key.clone());
        }
    }
}

impl PausedTarget {
    fn is_over(&self) -> bool {
        self.until <= Instant::now()
    }

    fn admit(&mut self) -> Admission {
        if !self.is_over() {
            return Admission::Refused(refused(&self.reply_text));
        }
        self.until = Instant::now() + FORBIDDEN_PAUSE;
        Admission::Trial
    }
}

/// Returns the error of a message to a refused target.
pub(super) fn refused(reply_text: &str) -> PublishError {
    PublishError::new(PublishFailure::Retryable, broker_error::quoted(reply_text))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn to(exchange: &str, routing_key: &str) -> Target {
        Target { exchange: exchange.into(), routing_key: routing_key.into() }
    }

    fn refusal(scope: Scope, is_forbidden: bool) -> Refusal {
        Refusal { scope, is_forbidden, reply_text: "no".into() }
    }

    fn pass_pause(targets: &RefusedTargets) {
        for exchange in targets.0.lock().values_mut() {
            let keys = exchange.routing_keys.values_mut();
            keys.chain(&mut exchange.whole).for_each(|one| one.until = Instant::now());
        }
    }

    fn admit(targets: &RefusedTargets, target: &Target) -> &'static str {
        match targets.admit(target) {
            Admission::Allowed => "allowed",
            Admission::Refused(error) => {
                assert_eq!(error.failure, PublishFailure::Retryable);
                "refused"
            }
            Admission::Trial => "trial",
            Admission::Untested(_) => "untested",
        }
    }

    #[test]
    fn routing_keys_are_tested_after_another_one_was_forbidden() {
        let targets = RefusedTargets::default();
        targets.note(&to("events", "bad"), refusal(Scope::RoutingKey, true));

        assert_eq!(admit(&targets, &to("events", "bad")), "refused");
        assert_eq!(admit(&targets, &to("events", "ok")), "untested");
        assert_eq!(admit(&targets, &to("other", "bad")), "allowed");
        targets.permit(&to("events", "ok"));
        assert_eq!(admit(&targets, &to("events", "ok")), "allowed");
        assert_eq!(admit(&targets, &to("events", "bad")), "refused");
    }

    #[test]
    fn one_message_tries_a_forbidden_routing_key_after_the_pause() {
        let targets = RefusedTargets::default();
        let target = to("events", "bad");
        targets.note(&target, refusal(Scope::RoutingKey, true));
        pass_pause(&targets);

        assert_eq!(admit(&targets, &target), "trial");
        assert_eq!(admit(&targets, &target), "refused");

        targets.permit(&target);
        assert_eq!(admit(&targets, &target), "allowed");
        assert!(targets.0.lock().is_empty());
    }

    #[test]
    fn refused_exchange_is_looked_up_again_after_the_pause() {
        for is_forbidden in [false, true] {
            let (targets, target) = (RefusedTargets::default(), to("late", "any"));
            targets.note(&target, refusal(Scope::Exchange, is_forbidden));
            let recent = targets.exchange(&target.exchange);
            assert!(matches!(recent, Some(ExchangeRefusal::Recent(_))), "{recent:?}");

            pass_pause(&targets);
            let past = targets.exchange(&target.exchange);
            assert!(matches!(past, Some(ExchangeRefusal::Past)), "{past:?}");
            assert_eq!(admit(&targets, &to("late", "other")), "refused");

            targets.permit_exchange(&target.exchange);
            assert_eq!(admit(&targets, &to("late", "other")), "allowed");
        }
    }

    #[test]
    fn number_of_remembered_routing_keys_is_limited() {
        let targets = RefusedTargets::default();
        for number in 0..MAX_ROUTING_KEYS + 10 {
            let target = to("events", &format!("bad.{number}"));
            targets.note(&target, refusal(Scope::RoutingKey, true));
            assert_eq!(admit(&targets, &target), "refused");
        }
        let count = targets.0.lock()[&ShortString::from("events")].routing_keys.len();
        assert_eq!(count, 10);
    }
}
