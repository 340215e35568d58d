//! The limit of file descriptors: raised at the start, calculated, and divided between the listeners.
//!
//! A process without descriptors accepts no connection and opens none: neither a probe of the kubelet nor a
//! lost connection to a broker comes through. So the listeners get what the other parts leave. Postrider
//! starts no child process, which would inherit the limit.

use std::fmt;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::config::Resolved;
use crate::ops;
use crate::store::connect;

/// The limit is raised up to this, the default of `fs.nr_open` of Linux.
const MAX_LIMIT: u64 = 1 << 20;

/// The descriptors of the process itself: standard streams, the log, runtimes, signals, two sockets that
/// listen, files that are being read, names that are being resolved, a connection that waits for a place.
const OWN: u64 = 48;

/// The fewest connections of a listener, however few descriptors there are.
const MIN_CONNECTIONS: u64 = 4;

/// Raises the limit of open descriptors as far as it is permitted, and returns it.
pub fn raise() -> u64 {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let wanted = attainable();
    if current.is_none_or(|current| current >= wanted) {
        return current.unwrap_or(MAX_LIMIT);
    }
    match setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum }) {
        Ok(()) => wanted,
        Err(_) => current.unwrap_or(MAX_LIMIT),
    }
}

/// Returns the limit after [`raise`].
pub fn attainable() -> u64 {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let permitted = maximum.unwrap_or(MAX_LIMIT).min(MAX_LIMIT);
    current.map_or(MAX_LIMIT, |current| current.max(permitted))
}

/// What the parts of a configuration may need at a time, and what the listeners get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DescriptorBudget {
    limit: u64,
    /// For everything but the connections of clients.
    others: u64,
    /// `api.max_connections`; 0 without the API.
    api: u64,
}

impl DescriptorBudget {
    /// Calculates what a configuration needs, under this limit.
    pub fn new(plan: &Resolved, limit: u64) -> Self {
        let sinks = plan.sinks.values().map(|sink| sink.kind.max_descriptors());
        let sinks = if plan.relay.enabled { sinks.sum() } else { 0 };
        let others = OWN + connect::max_connections(&plan.mongo) + sinks;
        let api = plan.api.as_ref().map_or(0, |(api, _)| api.max_connections as u64);
        Self { limit, others, api }
    }

    /// The connections of the API.
    pub fn api_connections(&self) -> usize {
        if self.is_enough() {
            return to_size(self.api);
        }
        let left = self.spare().saturating_sub(self.ops_connections() as u64);
        to_size(left.max(MIN_CONNECTIONS).min(self.api))
    }

    /// The connections of the ops server.
    pub fn ops_connections(&self) -> usize {
        let all = ops::MAX_CONNECTIONS as u64;
        if self.is_enough() {
            return to_size(all);
        }
        // The API gets the most, and the ops server enough for probes.
        let share = if self.api == 0 { self.spare() } else { self.spare() / 4 };
        to_size(share.clamp(MIN_CONNECTIONS, all))
    }

    /// Returns whether the limit permits everything at a time.
    pub fn is_enough(&self) -> bool {
        self.needed() <= self.limit
    }

    /// Returns what is necessary for everything at a time.
    pub fn needed(&self) -> u64 {
        self.others + ops::MAX_CONNECTIONS as u64 + self.api
    }

    /// Returns what to do about a limit that is too low.
    pub fn remedy(&self) -> String {
        let lower = if self.api == 0 { "" } else { ", or lower api.max_connections" };
        let needed = self.needed();
        format!(
            "raise the hard limit of open files to {needed} (LimitNOFILE={needed} for systemd, \
             --ulimit nofile={needed} for Docker, ulimit -n {needed} in a shell){lower}"
        )
    }

    fn spare(&self) -> u64 {
        self.limit.saturating_sub(self.others)
    }
}

impl fmt::Display for DescriptorBudget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { limit, api, .. } = self;
        write!(f, "up to {} file descriptors may be needed, {limit} are permitted", self.needed())?;
        if self.is_enough() {
            return Ok(());
        }
        write!(f, "; ops.listen gets {} connections", self.ops_connections())?;
        if *api == 0 {
            return Ok(());
        }
        write!(f, ", the API {} of the {api} in api.max_connections", self.api_connections())
    }
}

fn to_size(connections: u64) -> usize {
    usize::try_from(connections).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn budget(limit: u64, api: u64) -> DescriptorBudget {
        DescriptorBudget { limit, others: 140, api }
    }

    #[test]
    fn listeners_get_what_the_other_parts_leave() {
        for (limit, api, expected) in [
            (1 << 20, 1024, (64, 1024)),
            (140 + 64 + 1024, 1024, (64, 1024)),
            (1024, 1024, (64, 820)),
            (256, 1024, (29, 87)),
            (64, 1024, (4, 4)),
            (64, 2, (4, 2)),
            (204, 0, (64, 0)),
            (180, 0, (40, 0)),
        ] {
            let budget = budget(limit, api);

            let found = (budget.ops_connections(), budget.api_connections());
            assert_eq!(found, expected, "{limit}, {api}");
            let listeners = (found.0 + found.1) as u64;
            assert!(listeners <= 8 || listeners + 140 <= limit, "{limit}, {api}");
        }
    }

    #[test]
    fn limit_is_raised_as_far_as_permitted() {
        let expected = attainable();

        assert_eq!(raise(), expected);
        assert_eq!(getrlimit(Resource::Nofile).current, Some(expected));
        assert_eq!(attainable(), expected);
    }
}
