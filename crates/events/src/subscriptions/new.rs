//! A subscription to be created, and what may be wrong with it.

use std::time::Duration;

use crate::error::Flaw;
use crate::feed::FeedFilter;
use crate::names::check_name;

/// The length of a pull lease by default.
pub const DEFAULT_LEASE: Duration = Duration::from_secs(30);

/// The shortest and the longest pull lease.
pub const LEASE_RANGE: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(3_600));

/// The most records of a push subscription that wait by default.
pub const DEFAULT_MAX_PENDING: i64 = 1_000;

/// The largest `max_pending`: so many ids are read at a time.
pub const MAX_MAX_PENDING: i64 = 10_000;

/// The longest destination: the limit of AMQP; Kafka's is lower.
const MAX_DESTINATION_BYTES: usize = 255;

/// A subscription to be created.
#[derive(Clone, Debug, PartialEq)]
pub struct NewSubscription {
    /// Its name: `[a-zA-Z][a-zA-Z0-9_.-]{0,63}`.
    pub name: String,
    /// How events leave it.
    pub delivery: SubscriptionDelivery,
    /// Which events it has.
    pub filter: FeedFilter,
    /// The position behind which it begins.
    pub after: i64,
}

/// How events leave a subscription, with the settings of each way.
#[derive(Clone, Debug, PartialEq)]
pub enum SubscriptionDelivery {
    /// Copied as outbox records.
    Push {
        /// Their exchange or topic.
        destination: String,
        /// The most of them that wait.
        max_pending: i64,
    },
    /// Read and acknowledged by a member.
    Pull {
        /// How long a member may be silent before another one takes its place.
        lease: Duration,
    },
}

impl NewSubscription {
    /// All that is wrong with it.
    pub fn flaws(&self) -> Vec<Flaw> {
        let mut flaws = Vec::new();
        if let Err(rule) = check_name(&self.name) {
            flaws.push(Flaw::new("name", rule.to_string()));
        }
        match &self.delivery {
            SubscriptionDelivery::Push { destination, max_pending } => {
                if destination.is_empty() || destination.len() > MAX_DESTINATION_BYTES {
                    let rule = format!("must have between 1 and {MAX_DESTINATION_BYTES} bytes");
                    flaws.push(Flaw::new("destination", rule));
                }
                if !(1..=MAX_MAX_PENDING).contains(max_pending) {
                    let rule = format!("must be between 1 and {MAX_MAX_PENDING}");
                    flaws.push(Flaw::new("maxPending", rule));
                }
            }
            SubscriptionDelivery::Pull { lease } => {
                if !(LEASE_RANGE.0..=LEASE_RANGE.1).contains(lease) {
                    flaws.push(Flaw::new("lease", "must be between 1s and 1h"));
                }
            }
        }
        flaws.extend(self.filter.flaws());
        if self.after < 0 {
            flaws.push(Flaw::new("after", "must be 0 or above"));
        }
        flaws
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(new: &NewSubscription) -> Vec<String> {
        new.flaws().into_iter().map(|flaw| flaw.field).collect()
    }

    #[test]
    fn flaws_name_every_wrong_field() {
        let filter = FeedFilter {
            aggregates: vec!["1".into()],
            events: vec![String::new()],
            tenant_id: None,
        };
        let push = SubscriptionDelivery::Push { destination: String::new(), max_pending: 0 };
        let wrong = NewSubscription { name: "1".into(), delivery: push, filter, after: -1 };

        let names = ["name", "destination", "maxPending", "events", "aggregates", "after"];
        assert_eq!(fields(&wrong), names);
        let pull = SubscriptionDelivery::Pull { lease: Duration::ZERO };
        let wrong = NewSubscription { delivery: pull, ..wrong };
        assert_eq!(fields(&wrong), ["name", "lease", "events", "aggregates", "after"]);
    }

    #[test]
    fn defaults_are_permitted() {
        for delivery in [
            SubscriptionDelivery::Push {
                destination: "orders".into(),
                max_pending: DEFAULT_MAX_PENDING,
            },
            SubscriptionDelivery::Pull { lease: DEFAULT_LEASE },
        ] {
            let (name, filter) = ("billing".into(), FeedFilter::default());
            assert_eq!(fields(&NewSubscription { name, delivery, filter, after: 0 }), [""; 0]);
        }
    }
}
