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
use std::future::pending;
use std::sync::{Arc, MutexGuard};
use std::time::{Duration, Instant};

use tracing::info;

use crate::config::SinkConfig as _;
use crate::rabbitmq::RabbitMq;
use crate::rabbitmq::config::RabbitMqSettings;
use crate::rabbitmq::left_behind::{BURDEN, LeftBehind, OPENING, SILENCE};
use crate::rabbitmq::link::Link;

impl RabbitMq {
    pub(super) fn left_behind(&self) -> MutexGuard<'_, LeftBehind> {
        self.left_behind.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Opens another connection should the broker say nothing on this one, or be about to. Kept up by
    /// each publish that waits for its confirm.
    pub(super) async fn watch(&self, link: &Link) -> Infallible {
        if !self.replaces {
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
            let own = self.settings.own.clone().without_declarations();
            let settings = RabbitMqSettings { own, ..self.settings.clone() };
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
