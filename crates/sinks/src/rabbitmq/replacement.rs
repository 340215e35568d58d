//! Replaces a connection on which the broker does not answer, although it accepts new ones.
//!
//! RabbitMQ reads nothing more from a connection once a quorum queue that does not confirm (more than
//! 32 messages) has blocked its channel for some 400 messages, whatever their queues. So the sink
//! opens another connection for the next messages, and keeps the old one for those that wait for a confirm
//! there: mostly the broker reads on after a while, and a message that was sent again meanwhile
//! would be in its queue twice. If a queue fills slowly enough, the sink does so in time, when half as many
//! messages are overdue while others are confirmed promptly: then no other message is caught on the old
//! connection.

use std::convert::Infallible;
use std::future::pending;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tracing::info;

use crate::rabbitmq::RabbitMq;
use crate::rabbitmq::link::Link;
use crate::rabbitmq::replaced_links::{Cause, MAX_OVERDUE_MESSAGES, OPEN_TIMEOUT, SILENCE_LIMIT};

impl RabbitMq {
    /// Opens another connection if the broker does not answer on this one, or is about to stop. Runs with
    /// each publish that waits for its confirm.
    pub(super) async fn watch(&self, link: &Link) -> Infallible {
        // Several unconfirmed messages of a key keep their order on one connection.
        if self.is_isolated || self.settings.delivery.key_window > 1 {
            return pending().await;
        }
        let mut waited = Duration::ZERO;
        let mut overdue = None;
        while !link.is_replaced() {
            tokio::time::sleep(SILENCE_LIMIT).await;
            waited += SILENCE_LIMIT;
            if waited > SILENCE_LIMIT {
                overdue.get_or_insert_with(|| link.count_overdue());
            }
            let is_silent = || !link.liveness.has_replied_within(SILENCE_LIMIT);
            let has_overdue = || link.overdue() >= MAX_OVERDUE_MESSAGES;
            let is_overdue =
                || has_overdue() && link.liveness.has_confirmed_promptly_within(SILENCE_LIMIT);
            // A few confirms may be those of a queue that delays all others.
            let is_doubtful = is_silent() || has_overdue();
            if !is_doubtful || !self.replaced_links.lock().may_ping(is_overdue()) {
                continue;
            }
            // One attempt at a time, and none while the sink connects anyway.
            let Ok(_opening) = self.link.opening.try_lock() else { continue };
            self.replaced_links.lock().last_ping = Some(Instant::now());
            let cause = if !link.answers(link.answer_limit().max(SILENCE_LIMIT)).await {
                Cause::Unresponsive
            } else {
                link.liveness.note_reply();
                if !is_overdue() {
                    continue;
                }
                Cause::Overdue
            };
            if !self.replaced_links.lock().begin_attempt(cause) {
                continue;
            }
            // The declared topology exists, and a broker without a majority may not confirm that.
            let opening =
                Link::connect(&self.settings, &self.control, &self.refused, &self.metrics);
            let Ok(Ok(other)) = tokio::time::timeout(OPEN_TIMEOUT, opening).await else { continue };
            // The broker, or this process, may only have paused.
            if cause == Cause::Unresponsive && is_silent() || has_overdue() {
                self.replace(link, other, cause);
            }
        }
        pending().await
    }

    fn replace(&self, link: &Link, other: Link, cause: Cause) {
        // Locked until everything is noted, so that a close does not come in between.
        let mut replaced_links = self.replaced_links.lock();
        let Some(link) = self.link.replace(link, other) else { return };
        let text = match cause {
            Cause::Unresponsive => {
                // Later publishes use the other link.
                replaced_links.unresponsive_replaced_at = Some(Instant::now());
                // Perhaps it does not respond on that one either.
                self.control.renew();
                "the broker does not respond on the connection"
            }
            Cause::Overdue => "some messages are not confirmed while others are confirmed at once",
        };
        link.mark_replaced();
        replaced_links.links.push((Arc::downgrade(&link), link.status()));
        let sink = &self.settings.name;
        info!(%sink, cause = text, "opening another connection for further messages");
    }
}
