//! Metrics of subscriptions. The label has at most as many values as a context has subscriptions.

use std::collections::HashSet;

use metrics::gauge;
use postrider_store::metric::Description;

use crate::subscriptions::lag::Lag;

/// Events of the feed behind the position.
pub const LAG_EVENTS: &str = "postrider_subscription_lag_events";
/// Age of the first event behind the position.
pub const LAG_SECONDS: &str = "postrider_subscription_lag_seconds";
/// Whether the subscription proceeds.
pub const UP: &str = "postrider_subscription_up";

/// Parked events of a pull subscription.
pub const PARKED: &str = "postrider_subscription_parked";

/// The descriptions of these metrics.
pub const DESCRIPTIONS: [Description; 4] = [
    Description::gauge(
        LAG_EVENTS,
        "Events of the feed after the position of the subscription, regardless of its filter.",
    ),
    Description::gauge(
        LAG_SECONDS,
        "Age of the first event after the position of the subscription, regardless of its filter.",
    )
    .in_seconds(),
    Description::gauge(
        UP,
        "1 while the subscription runs without an error, 0 while it has an error or was stopped by a \
         renewed feed; absent while it is paused.",
    ),
    Description::gauge(
        PARKED,
        "Parked events of the pull subscription. (Those of a push subscription are dead records.)",
    ),
];

/// The series of the subscriptions that were seen.
#[derive(Default)]
pub(super) struct SubscriptionMetrics {
    seen: HashSet<String>,
}

impl SubscriptionMetrics {
    /// Sets the series of one subscription. `None` is unknown: the page of metrics leaves it out.
    pub(super) fn set(
        &mut self,
        name: &str,
        lag: Option<Lag>,
        is_up: Option<bool>,
        parked: Option<i64>,
    ) {
        if !self.seen.contains(name) {
            self.seen.insert(name.to_owned());
        }
        let label = || name.to_owned();
        let events = lag.map_or(f64::NAN, |lag| lag.events as f64);
        gauge!(LAG_EVENTS, "subscription" => label()).set(events);
        let seconds = lag.map_or(f64::NAN, |lag| lag.seconds);
        gauge!(LAG_SECONDS, "subscription" => label()).set(seconds);
        let up = is_up.map_or(f64::NAN, f64::from);
        gauge!(UP, "subscription" => label()).set(up);
        let parked = parked.map_or(f64::NAN, |parked| parked as f64);
        gauge!(PARKED, "subscription" => label()).set(parked);
    }

    /// Ends the series of all but these.
    pub(super) fn retain(&mut self, names: &HashSet<&str>) {
        let gone: Vec<String> =
            self.seen.iter().filter(|name| !names.contains(name.as_str())).cloned().collect();
        for name in gone {
            self.set(&name, None, None, None);
            self.seen.remove(&name);
        }
    }
}
