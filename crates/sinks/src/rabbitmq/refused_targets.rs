//! The targets that the broker has refused, of one sink.
//!
//! They outlive the sink's connections: a refused publish closes its channel, and with it the link
//! that others publish on. So a refused target is not published to again on that channel; and once
//! one routing key of an exchange was refused, each other one is tested first: its first message
//! is sent on a channel of its own. (A routing key may contain an id: each new one that is forbidden
//! would close the channel of the others again.)

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use lapin::types::ShortString;
use postrider_relay::sink::{PublishError, PublishFailure};

use crate::rabbitmq::closure::{Refusal, Scope};
use crate::rabbitmq::rendering::Target;

/// How long a missing exchange is not asked for again: short compared with the first backoff, long
/// enough that a thousand records for it cost one closed channel.
const MISSING_PAUSE: Duration = Duration::from_secs(1);

/// How long nothing is sent to a forbidden target. Then one message tries it, on a channel of its
/// own. Longer than [`MISSING_PAUSE`], since the broker logs an error for each of these channels.
const FORBIDDEN_PAUSE: Duration = Duration::from_secs(5);

/// How many forbidden routing keys of one exchange are remembered, and as many permitted ones.
const MAX_ROUTING_KEYS: usize = 10_000;

/// What is remembered of a target.
#[derive(Debug)]
pub(super) enum Leave {
    /// Nothing.
    Granted,
    /// The broker refused it a moment ago.
    Refused(PublishError),
    /// It was forbidden some time ago. The permission may have been given since.
    OnTrial,
    /// Others of its exchange are forbidden, and it was never tried. Who holds the lock tries it.
    Unproven(Arc<tokio::sync::Mutex<()>>),
}

#[derive(Debug, Default)]
pub(super) struct Refusals(Mutex<HashMap<ShortString, OfExchange>>);

#[derive(Debug, Default)]
struct OfExchange {
    whole: Option<Remembered>,
    routing_keys: HashMap<ShortString, Remembered>,
    /// Some routing key was refused: of the others only these are known to be permitted.
    permitted: Option<HashSet<ShortString>>,
    /// Those that are being tried.
    trials: HashMap<ShortString, Arc<tokio::sync::Mutex<()>>>,
}

#[derive(Debug)]
struct Remembered {
    until: Instant,
    forbidden: bool,
    words: String,
}

impl Refusals {
    /// Remembers that the broker refused this target.
    pub(super) fn note(&self, target: &Target, refusal: Refusal) {
        let Refusal { scope, forbidden, words } = refusal;
        let pause = if forbidden { FORBIDDEN_PAUSE } else { MISSING_PAUSE };
        let remembered = Remembered { until: Instant::now() + pause, forbidden, words };
        let mut refused = self.lock();
        let of_exchange = refused.entry(target.exchange.clone()).or_default();
        match scope {
            Scope::Exchange => of_exchange.whole = Some(remembered),
            Scope::RoutingKey => {
                let key = &target.routing_key;
                of_exchange.trials.remove(key);
                of_exchange.permitted.get_or_insert_default().remove(key);
                let keys = &mut of_exchange.routing_keys;
                if keys.len() >= MAX_ROUTING_KEYS {
                    // Each of them is tried once more.
                    keys.clear();
                }
                keys.insert(key.clone(), remembered);
            }
        }
    }

    /// Whether a message may go to this target. One caller gets [`Leave::OnTrial`] and tries it;
    /// the others are refused for another pause, or until [`permit`](Self::permit).
    pub(super) fn leave(&self, target: &Target) -> Leave {
        let mut refused = self.lock();
        let Some(of_exchange) = refused.get_mut(&target.exchange) else { return Leave::Granted };
        if of_exchange.whole.as_ref().is_some_and(Remembered::is_over) {
            of_exchange.whole = None;
        }
        let key = of_exchange.routing_keys.get_mut(&target.routing_key);
        if let Some(remembered) = of_exchange.whole.as_mut().or(key) {
            return remembered.leave();
        }
        match &of_exchange.permitted {
            Some(permitted) if !permitted.contains(&target.routing_key) => {
                let trial = of_exchange.trials.entry(target.routing_key.clone());
                Leave::Unproven(trial.or_default().clone())
            }
            _ => Leave::Granted,
        }
    }

    /// Whether nothing is remembered of this target, so that no message has to try it.
    pub(super) fn knows_none_of(&self, target: &Target) -> bool {
        let refused = self.lock();
        let Some(of_exchange) = refused.get(&target.exchange) else { return true };
        let key = &target.routing_key;
        of_exchange.whole.is_none()
            && !of_exchange.routing_keys.contains_key(key)
            && of_exchange.permitted.as_ref().is_none_or(|permitted| permitted.contains(key))
    }

    /// The refusal of an exchange that was missing a moment ago.
    pub(super) fn missing(&self, exchange: &ShortString) -> Option<PublishError> {
        let refused = self.lock();
        let whole = refused.get(exchange)?.whole.as_ref()?;
        (!whole.forbidden && !whole.is_over()).then(|| charge(&whole.words))
    }

    /// Forgets what was refused of this target: the broker took a message for it.
    pub(super) fn permit(&self, target: &Target) {
        let mut refused = self.lock();
        let Some(of_exchange) = refused.get_mut(&target.exchange) else { return };
        let key = &target.routing_key;
        of_exchange.whole = None;
        of_exchange.trials.remove(key);
        of_exchange.routing_keys.remove(key);
        if of_exchange.routing_keys.is_empty() {
            refused.remove(&target.exchange);
        } else if let Some(permitted) = &mut of_exchange.permitted {
            if permitted.len() >= MAX_ROUTING_KEYS {
                permitted.clear();
            }
            permitted.insert(key.clone());
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<ShortString, OfExchange>> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl Remembered {
    /// A missing exchange is looked up again, which disturbs no other message.
    fn is_over(&self) -> bool {
        !self.forbidden && self.until <= Instant::now()
    }

    fn leave(&mut self) -> Leave {
        let now = Instant::now();
        if now < self.until {
            return Leave::Refused(charge(&self.words));
        }
        self.until = now + FORBIDDEN_PAUSE;
        Leave::OnTrial
    }
}

pub(super) fn charge(words: &str) -> PublishError {
    PublishError::new(PublishFailure::Retryable, format!("the broker said: {words}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn to(exchange: &str, routing_key: &str) -> Target {
        Target { exchange: exchange.into(), routing_key: routing_key.into() }
    }

    fn refusal(scope: Scope, forbidden: bool) -> Refusal {
        Refusal { scope, forbidden, words: "no".into() }
    }

    fn pass_pause(refusals: &Refusals) {
        for of_exchange in refusals.lock().values_mut() {
            let keys = of_exchange.routing_keys.values_mut();
            keys.chain(&mut of_exchange.whole).for_each(|one| one.until = Instant::now());
        }
    }

    fn leave(refusals: &Refusals, target: &Target) -> &'static str {
        match refusals.leave(target) {
            Leave::Granted => "granted",
            Leave::Refused(error) => {
                assert_eq!(error.failure, PublishFailure::Retryable);
                "refused"
            }
            Leave::OnTrial => "on trial",
            Leave::Unproven(_) => "unproven",
        }
    }

    #[test]
    fn a_forbidden_routing_key_refuses_no_other_of_its_exchange_which_prove_themselves() {
        let refusals = Refusals::default();
        refusals.note(&to("events", "bad"), refusal(Scope::RoutingKey, true));

        assert_eq!(leave(&refusals, &to("events", "bad")), "refused");
        assert_eq!(leave(&refusals, &to("events", "ok")), "unproven");
        assert_eq!(leave(&refusals, &to("other", "bad")), "granted");
        refusals.permit(&to("events", "ok"));
        assert_eq!(leave(&refusals, &to("events", "ok")), "granted");
        assert_eq!(leave(&refusals, &to("events", "bad")), "refused");
    }

    #[test]
    fn one_message_tries_a_forbidden_target_for_all_once_the_pause_is_over() {
        for scope in [Scope::RoutingKey, Scope::Exchange] {
            let refusals = Refusals::default();
            let target = to("events", "bad");
            refusals.note(&target, refusal(scope, true));
            pass_pause(&refusals);

            assert_eq!(leave(&refusals, &target), "on trial");
            assert_eq!(leave(&refusals, &target), "refused");

            refusals.permit(&target);
            assert_eq!(leave(&refusals, &target), "granted");
            assert!(refusals.lock().is_empty());
        }
    }

    #[test]
    fn a_missing_exchange_is_looked_up_again_once_the_pause_is_over() {
        let refusals = Refusals::default();
        refusals.note(&to("late", "any"), refusal(Scope::Exchange, false));
        assert_eq!(leave(&refusals, &to("late", "other")), "refused");

        pass_pause(&refusals);

        assert_eq!(leave(&refusals, &to("late", "other")), "granted");
    }

    #[test]
    fn routing_keys_without_end_are_not_remembered_without_end() {
        let refusals = Refusals::default();
        for number in 0..MAX_ROUTING_KEYS + 10 {
            let target = to("events", &format!("bad.{number}"));
            refusals.note(&target, refusal(Scope::RoutingKey, true));
            assert_eq!(leave(&refusals, &target), "refused");
        }
        let count = refusals.lock()[&ShortString::from("events")].routing_keys.len();
        assert_eq!(count, 10);
    }
}
