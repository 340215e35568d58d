//! Another connection in place of one on which the broker says nothing, though it takes new ones.
//!
//! RabbitMQ reads nothing more from a connection once a quorum queue that does not confirm (more than
//! 32 messages) has held up its channel for some 400 messages, whatever their queues. So the sink
//! opens another connection for what follows, and leaves the old one to what waits for a confirm
//! there: as a rule the broker reads on after a while, and a message that was sent again meanwhile
//! would be there twice. Where a queue fills slowly enough it does so in time, when half as many
//! messages are overdue while others are confirmed at once: then nothing else is caught on the old
//! connection.

use std::convert::Infallible;
use std::fmt;
use std::future::pending;
use std::sync::{Arc, MutexGuard, Weak};
use std::time::{Duration, Instant};

use lapin::ConnectionStatus;
use tracing::info;

use crate::config::tree::Declare;
use crate::sink::rabbitmq::link::Link;
use crate::sink::rabbitmq::{RabbitMq, RabbitMqSettings};

/// For so long the broker says nothing to those who wait for their confirms before it is asked
/// something.
const SILENCE: Duration = Duration::from_millis(300);

/// So many messages that wait for their confirms for twice that time, while others are confirmed
/// at once, are too many for one connection: half of those with which RabbitMQ holds up a channel.
const BURDEN: usize = 16;

/// What opening another connection may take, and the pause before the next try: a broker that is slow
/// as a whole is none that stopped reading.
const OPENING: Duration = Duration::from_secs(2);

/// Connections that are left behind at a time. The last place is for one on which the broker says
/// nothing.
const MOST: usize = 3;

/// The longest pause between two burdened connections: a destination that is slow and well burdens each.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// The connections that were left behind.
#[derive(Default)]
pub(super) struct LeftBehind {
    /// A connection may last longer than what waits on it: for as long as the broker does not read.
    links: Vec<(Weak<Link>, ConnectionStatus)>,
    /// When the broker was last asked something.
    asked: Option<Instant>,
    /// When another connection was last opened for a silent one, or could not be.
    tried: Option<Instant>,
    /// The same for a burdened one, and the pause after it.
    relieved: Option<(Instant, Duration)>,
    /// When a silent one was last left behind.
    pub(super) silent_at: Option<Instant>,
}

impl LeftBehind {
    /// Whether to ask the broker something, where a connection may be replaced then.
    fn may_ask(&mut self, is_burdened: bool) -> bool {
        self.asked.is_none_or(|at| at.elapsed() > SILENCE)
            && (self.may_replace(true) || is_burdened && self.may_replace(false))
    }

    fn may_replace(&mut self, is_silent: bool) -> bool {
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

    fn note_try(&mut self, is_silent: bool) {
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

impl RabbitMq {
    pub(super) fn left_behind(&self) -> MutexGuard<'_, LeftBehind> {
        self.left_behind.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Opens another connection should the broker say nothing on this one, or be about to. Kept up by
    /// each publish that waits for its confirm.
    pub(super) async fn watch(&self, link: &Link) -> Infallible {
        if !self.settings.replaces {
            return pending().await;
        }
        let mut waited = Duration::ZERO;
        let mut overdue = None;
        while !link.is_left_behind() {
            tokio::time::sleep(SILENCE).await;
            waited += SILENCE;
            if waited > SILENCE {
                overdue.get_or_insert_with(|| link.count_overdue());
            }
            let is_quiet = !link.pulse.heard_within(SILENCE);
            let is_burdened = || link.overdue() >= BURDEN && link.pulse.quick_within(SILENCE);
            // What trickles in may be the confirms of a queue that holds all others up.
            let is_doubted = is_quiet || link.overdue() >= BURDEN;
            if !is_doubted || !self.left_behind().may_ask(is_burdened()) {
                continue;
            }
            // One at a time, and none while the sink connects anyway.
            let Ok(_opening) = self.opening.try_lock() else { continue };
            self.left_behind().asked = Some(Instant::now());
            let is_silent = !link.answers(link.longest_answer().max(SILENCE)).await;
            if !is_silent {
                link.pulse.beat();
            }
            let is_wanted = is_silent || is_burdened();
            if !is_wanted || !self.left_behind().may_replace(is_silent) {
                continue;
            }
            self.left_behind().note_try(is_silent);
            // What an operator declared is there, and a broker without a majority may not say so.
            let settings =
                RabbitMqSettings { declare: Declare::default(), ..self.settings.clone() };
            let opening = tokio::time::timeout(OPENING, Link::open(&settings, &self.refusals));
            let Ok(Ok(other)) = opening.await else { continue };
            // It may have been a pause of the broker, or of this process.
            let is_quiet = is_silent && !link.pulse.heard_within(SILENCE);
            if is_quiet || link.overdue() >= BURDEN {
                self.replace(link, other, is_silent);
            }
        }
        pending().await
    }

    fn replace(&self, link: &Link, other: Link, is_silent: bool) {
        // Kept until all is noted, lest a close comes in between.
        let mut left_behind = self.left_behind();
        let Some(link) = self.link.replace(link, other) else { return };
        if is_silent {
            // What is begun from here on goes over the other one.
            left_behind.silent_at = Some(Instant::now());
        }
        link.leave_behind();
        left_behind.links.push((Arc::downgrade(&link), link.status()));
        let cause = match is_silent {
            true => "the broker says nothing on the connection",
            false => "messages wait for their confirms while others are confirmed at once",
        };
        info!(sink = %self.settings.name, cause, "another connection is opened for what follows");
    }
}
