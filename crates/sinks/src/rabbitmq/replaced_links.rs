//! The connections that were left for others, and when the next one may be.

use std::fmt;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use lapin::ConnectionStatus;

use crate::rabbitmq::link::Link;

/// For so long the broker says nothing to those who wait for their confirms before it is asked
/// something.
pub(super) const SILENCE: Duration = Duration::from_millis(300);

/// So many messages that wait for their confirms for twice that time, while others are confirmed
/// at once, are too many for one connection: half of those with which RabbitMQ holds up a channel.
pub(super) const BURDEN: usize = 16;

/// What opening another connection may take, and the pause before the next try: a broker that is slow
/// as a whole is none that stopped reading.
pub(super) const OPENING: Duration = Duration::from_secs(2);

/// Connections that are left behind at a time. The last place is for one on which the broker says
/// nothing.
const MOST: usize = 3;

/// The longest pause between two burdened connections: a destination that is slow and well burdens each.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// The connections that were left behind.
#[derive(Default)]
pub(super) struct LeftBehind {
    /// A connection may last longer than what waits on it: for as long as the broker does not read.
    pub(super) links: Vec<(Weak<Link>, ConnectionStatus)>,
    /// When the broker was last asked something.
    pub(super) asked: Option<Instant>,
    /// When another connection was last opened for a silent one, or could not be.
    tried: Option<Instant>,
    /// The same for a burdened one, and the pause after it.
    relieved: Option<(Instant, Duration)>,
    /// When a silent one was last left behind.
    pub(super) silent_at: Option<Instant>,
}

impl LeftBehind {
    /// Whether to ask the broker something, where a connection may be replaced then.
    pub(super) fn may_ask(&mut self, is_burdened: bool) -> bool {
        self.asked.is_none_or(|at| at.elapsed() > SILENCE)
            && (self.may_replace(true) || is_burdened && self.may_replace(false))
    }

    pub(super) fn may_replace(&mut self, is_silent: bool) -> bool {
        self.links.retain(|(link, status)| {
            link.strong_count() > 0 || status.connected() || status.closing()
        });
        match is_silent {
            true => self.links.len() < MOST && self.tried.is_none_or(|at| at.elapsed() > OPENING),
            false => {
                self.links.len() + 1 < MOST
                    && self.relieved.is_none_or(|(at, pause)| at.elapsed() > pause)
            }
        }
    }

    pub(super) fn note_try(&mut self, is_silent: bool) {
        if is_silent {
            self.tried = Some(Instant::now());
            return;
        }
        let recent = self.relieved.filter(|(at, pause)| at.elapsed() < *pause + LONGEST_PAUSE);
        let pause = recent.map_or(OPENING, |(_, pause)| (pause * 2).min(LONGEST_PAUSE));
        self.relieved = Some((Instant::now(), pause));
    }

    /// Those on which something waits.
    pub(super) fn links(&self) -> Vec<Arc<Link>> {
        self.links.iter().filter_map(|(link, _)| link.upgrade()).collect()
    }
}

impl fmt::Debug for LeftBehind {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_tuple("LeftBehind").field(&self.links.len()).finish()
    }
}
