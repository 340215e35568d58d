//! A channel for one message to a target that was forbidden.
//!
//! The permission may have been granted since. If it was not, the broker closes this channel, and no other
//! message is on it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use lapin::Connection;
use lapin::options::ConfirmSelectOptions;
use postrider_relay::sink::SinkDown;
use tokio::sync::{mpsc, watch};

use crate::rabbitmq::broker_error::Refusal;
use crate::rabbitmq::exchanges::Exchanges;
use crate::rabbitmq::link_state::LinkState;
use crate::rabbitmq::metrics::RabbitMqMetrics;
use crate::rabbitmq::publisher::{self, Observer, Request};
use crate::rabbitmq::rendering::Target;

/// A channel for one message. It is closed when this is dropped.
#[derive(Debug)]
pub(super) struct TrialChannel {
    pub(super) requests: mpsc::UnboundedSender<Request>,
    is_refused: Arc<AtomicBool>,
}

impl TrialChannel {
    /// Opens the channel.
    ///
    /// # Errors
    ///
    /// The connection is lost, or has no channel left.
    pub(super) async fn open(
        connection: &Connection,
        exchanges: Arc<Exchanges>,
        link: watch::Receiver<LinkState>,
        metrics: Arc<RabbitMqMetrics>,
    ) -> lapin::Result<Self> {
        let channel = connection.create_channel().await?;
        channel.confirm_select(ConfirmSelectOptions::default()).await?;
        let (requests, queue) = mpsc::unbounded_channel();
        let is_refused = Arc::new(AtomicBool::new(false));
        let observer = TrialObserver { exchanges, is_refused: is_refused.clone() };
        tokio::spawn(publisher::run(channel, queue, observer, link, metrics));
        Ok(Self { requests, is_refused })
    }

    /// Returns whether the broker refused the target again. Known once the message is answered.
    pub(super) fn is_refused(&self) -> bool {
        self.is_refused.load(Ordering::Acquire)
    }
}

struct TrialObserver {
    exchanges: Arc<Exchanges>,
    is_refused: Arc<AtomicBool>,
}

impl Observer for TrialObserver {
    /// The link has other channels.
    fn channel_lost(&self, _: SinkDown) {}

    fn target_refused(&self, target: &Target, refusal: Refusal) {
        self.exchanges.note_refusal(target, refusal);
        self.is_refused.store(true, Ordering::Release);
    }
}
