//! One message to a target that was forbidden, on a channel of its own.
//!
//! The permission may have been given since. If it was not, the broker closes this channel, and no
//! other message is on it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use lapin::Connection;
use lapin::options::ConfirmSelectOptions;
use postrider_relay::sink::SinkDown;
use tokio::sync::{mpsc, watch};

use crate::rabbitmq::closure::Refusal;
use crate::rabbitmq::exchanges::Exchanges;
use crate::rabbitmq::link_state::LinkState;
use crate::rabbitmq::publisher::{self, Owner, Request};
use crate::rabbitmq::rendering::Target;

/// A channel for one message. It is closed when this is dropped.
#[derive(Debug)]
pub(super) struct Trial {
    requests: mpsc::UnboundedSender<Request>,
    refused: Arc<AtomicBool>,
}

impl Trial {
    /// Opens the channel.
    ///
    /// # Errors
    ///
    /// The connection is lost, or has no channel left.
    pub(super) async fn open(
        connection: &Connection,
        exchanges: Arc<Exchanges>,
        link: watch::Receiver<LinkState>,
    ) -> lapin::Result<Self> {
        let channel = connection.create_channel().await?;
        channel.confirm_select(ConfirmSelectOptions::default()).await?;
        let (requests, queue) = mpsc::unbounded_channel();
        let refused = Arc::new(AtomicBool::new(false));
        let observer = Observer { exchanges, refused: refused.clone() };
        tokio::spawn(publisher::run(channel, queue, observer, link));
        Ok(Self { requests, refused })
    }

    /// Gives the message to the channel.
    pub(super) fn hand_over(&self, request: Request) -> Result<(), ()> {
        self.requests.send(request).map_err(|_| ())
    }

    /// Whether the broker refused the target again; known once the message is answered.
    pub(super) fn was_refused(&self) -> bool {
        self.refused.load(Ordering::Acquire)
    }
}

struct Observer {
    exchanges: Arc<Exchanges>,
    refused: Arc<AtomicBool>,
}

impl Owner for Observer {
    /// The link has other channels.
    fn channel_lost(&self, _: SinkDown) {}

    fn refused(&self, target: &Target, refusal: Refusal) {
        self.exchanges.note(target, refusal);
        self.refused.store(true, Ordering::Release);
    }
}
