//! Another connection in place of one on which the broker says nothing, though it takes new ones.
//!
//! RabbitMQ reads nothing more from a connection once a quorum queue that does not confirm (more than
//! 32 messages) has held up its channel for some 400 messages, whatever their queues. So the sink
//! opens another connection for what follows, and leaves the old one to what waits for a confirm
//! there: as a rule the broker reads on after a while, and a message that was sent again meanwhile
//! would be there twice.

use std::convert::Infallible;
use std::future::pending;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use tracing::info;

use crate::sink::rabbitmq::RabbitMq;
use crate::sink::rabbitmq::link::Link;

/// For so long the broker says nothing, first to those who wait for their confirms and then to a
/// question, before another connection is opened.
const SILENCE: Duration = Duration::from_millis(300);

/// What opening it may take: a broker that is slow as a whole is none that stopped reading.
const OPENING: Duration = Duration::from_secs(2);

/// Connections that are left behind at a time.
const MOST: usize = 3;

/// The connections that were left behind, for as long as something waits on them.
#[derive(Debug, Default)]
pub(super) struct LeftBehind(Vec<Weak<Link>>);

impl LeftBehind {
    fn has_room(&mut self) -> bool {
        self.0.retain(|link| link.strong_count() > 0);
        self.0.len() < MOST
    }
}

impl RabbitMq {
    /// Opens another connection should the broker say nothing on this one. Kept up by each publish
    /// that waits for its confirm.
    pub(super) async fn watch(&self, link: &Link) -> Infallible {
        if !self.settings.replaces {
            return pending().await;
        }
        while !link.is_left_behind() {
            tokio::time::sleep(SILENCE).await;
            if link.pulse.heard_within(SILENCE) {
                continue;
            }
            // One at a time, and none while the sink connects anyway.
            let Ok(mut left_behind) = self.opening.try_lock() else { continue };
            if !left_behind.has_room() {
                continue;
            }
            if link.answers(SILENCE).await {
                link.pulse.beat();
                continue;
            }
            let opening = tokio::time::timeout(OPENING, Link::open(&self.settings, &self.refusals));
            let Ok(Ok(other)) = opening.await else {
                // The broker takes no new ones either. Not at once again.
                tokio::time::sleep(OPENING).await;
                continue;
            };
            if link.pulse.heard_within(SILENCE) {
                continue;
            }
            if let Some(link) = self.link.replace(link, other) {
                // What is begun from here on goes over the other one.
                self.replaced_at.send_replace(Some(Instant::now()));
                link.leave_behind();
                left_behind.0.push(Arc::downgrade(&link));
                info!(
                    sink = %self.settings.name,
                    "the broker says nothing on the connection: another one is opened for \
                     what follows"
                );
            }
        }
        pending().await
    }
}
