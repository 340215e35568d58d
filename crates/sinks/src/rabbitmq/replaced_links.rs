//! The connections that were replaced by another one, and when the next one may be.

use std::fmt;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use lapin::ConnectionStatus;

use crate::growing_pause::GrowingPause;
use crate::rabbitmq::link::Link;

/// The silence of the broker, while messages wait for their confirms, after which it is pinged.
pub(super) const SILENCE_LIMIT: Duration = Duration::from_millis(300);

/// The number of overdue messages, while others are confirmed promptly, that is too high for one connection: half
/// of the number at which RabbitMQ stops reading from a channel. A message is overdue after twice
/// [`SILENCE_LIMIT`].
pub(super) const MAX_OVERDUE_MESSAGES: usize = 16;

/// The time limit for opening another connection, and the pause before the next attempt: a broker that is slow
/// as a whole has not stopped reading.
pub(super) const OPEN_TIMEOUT: Duration = Duration::from_secs(2);

/// The limit of replaced connections at a time. The last place is for an unresponsive one.
const MAX_LINKS: usize = 3;

/// The longest pause between two replacements because of overdue messages: a slow destination may cause
/// them on each connection.
const MAX_PAUSE: Duration = Duration::from_secs(60);

/// Why a connection is replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cause {
    /// The broker does not answer on it.
    Unresponsive,
    /// Messages are overdue, while others are confirmed promptly.
    Overdue,
}

/// The replaced connections.
#[derive(Default)]
pub(super) struct ReplacedLinks {
    /// A connection may outlive its link: as long as the broker does not read.
    pub(super) links: Vec<(Weak<Link>, ConnectionStatus)>,
    pub(super) last_ping: Option<Instant>,
    /// The last attempt to replace an unresponsive one.
    unresponsive_attempt: Option<Instant>,
    /// The pause after the last attempt because of overdue messages.
    overdue_pause: GrowingPause,
    /// When an unresponsive one was last replaced.
    pub(super) unresponsive_replaced_at: Option<Instant>,
}

impl ReplacedLinks {
    /// Returns whether the broker may be pinged: only if a replacement could follow.
    pub(super) fn may_ping(&mut self, is_overdue: bool) -> bool {
        self.last_ping.is_none_or(|at| at.elapsed() > SILENCE_LIMIT)
            && (self.may_replace(Cause::Unresponsive)
                || is_overdue && self.may_replace(Cause::Overdue))
    }

    fn may_replace(&mut self, cause: Cause) -> bool {
        self.links.retain(|(link, status)| {
            link.strong_count() > 0 || status.connected() || status.closing()
        });
        match cause {
            Cause::Unresponsive => {
                self.links.len() < MAX_LINKS
                    && self.unresponsive_attempt.is_none_or(|at| at.elapsed() > OPEN_TIMEOUT)
            }
            Cause::Overdue => self.links.len() + 1 < MAX_LINKS && self.overdue_pause.is_over(),
        }
    }

    /// Begins an attempt to replace the link in use. Returns whether it may be replaced now.
    pub(super) fn begin_attempt(&mut self, cause: Cause) -> bool {
        if !self.may_replace(cause) {
            return false;
        }
        match cause {
            Cause::Unresponsive => self.unresponsive_attempt = Some(Instant::now()),
            Cause::Overdue => self.overdue_pause.begin(OPEN_TIMEOUT, MAX_PAUSE),
        }
        true
    }

    /// Returns the links that still have messages.
    pub(super) fn links(&self) -> Vec<Arc<Link>> {
        self.links.iter().filter_map(|(link, _)| link.upgrade()).collect()
    }
}

impl fmt::Debug for ReplacedLinks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ReplacedLinks").field(&self.links.len()).finish()
    }
}
