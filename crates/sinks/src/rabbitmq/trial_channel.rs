//! A channel for one message with a routing key that was forbidden, or was never tried.
//!
//! The permission may have been granted since. If it was not, the broker closes this channel, and no other
//! message is on it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use lapin::options::ConfirmSelectOptions;
use postrider_relay::sink::SinkDown;
use tokio::sync::{mpsc, watch};

use crate::rabbitmq::broker_error::{self, Refusal};
use crate::rabbitmq::control_connection::ControlConnection;
use crate::rabbitmq::exchanges::Exchanges;
use crate::rabbitmq::link_state::LinkState;
use crate::rabbitmq::metrics::RabbitMqMetrics;
use crate::rabbitmq::publisher::{self, Observer, Request};
use crate::rabbitmq::rendering::Target;

/// A channel for one message, on the control connection. It is closed when this is dropped.
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
    /// The control connection cannot be opened, or no channel on it.
    pub(super) async fn open(
        control: &ControlConnection,
        exchanges: Arc<Exchanges>,
        link: watch::Receiver<LinkState>,
        metrics: Arc<RabbitMqMetrics>,
    ) -> Result<Self, SinkDown> {
        let channel = control.open_channel().await?;
        let confirming = channel.confirm_select(ConfirmSelectOptions::default()).await;
        confirming.map_err(|error| SinkDown::new(broker_error::text(&error)))?;
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
    /// The link has a channel of its own.
    fn channel_lost(&self, _: SinkDown) {}

    fn target_refused(&self, target: &Target, refusal: Refusal) {
        self.exchanges.note_refusal(target, refusal);
        self.is_refused.store(true, Ordering::Release);
    }
}
