//! The isolated connections of a sink, for messages that may break their connection and for
//! messages that probe a destination which does not confirm.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use postrider_outbox::ids::SinkName;
use tokio::sync::OwnedMutexGuard;
use tracing::{info, warn};

use crate::sink::{Message, PublishError, PublishFailure, Sink, SinkDown};

/// The pause after a connection could not be opened.
const FAILED_PAUSE: Duration = Duration::from_millis(500);

/// How long a confirm shows that the connection is sound. After a crash records use it one after
/// the other, and a probe costs as much as a publish.
const SOUND_PERIOD: Duration = Duration::from_secs(1);

/// The isolated connections of one sink. Each connects when it is first needed.
#[derive(Debug)]
pub struct IsolatedConnections<S> {
    name: SinkName,
    /// For one message at a time.
    exclusive: S,
    room: Arc<tokio::sync::Mutex<()>>,
    /// When the latest message was confirmed on it, unless a failure followed.
    confirmed: Mutex<Option<Instant>>,
    /// For probes, each of which may take as long as a publish: no other record waits for them.
    shared: S,
    /// Whether no isolated connection can be opened although the main one is up.
    lacking: AtomicBool,
}

/// The right to use an isolated connection, until dropped.
#[derive(Debug)]
pub(crate) enum IsolatedSlot {
    Shared,
    Exclusive { _room: OwnedMutexGuard<()> },
}

impl IsolatedSlot {
    /// Returns whether nothing else is published on the connection meanwhile.
    pub(crate) fn is_exclusive(&self) -> bool {
        matches!(self, Self::Exclusive { .. })
    }
}

impl<S: Sink> IsolatedConnections<S> {
    /// Creates the isolated connections of the sink of this name.
    pub fn new(name: SinkName, sink: &S) -> Self {
        Self {
            name,
            exclusive: sink.isolated(),
            room: Arc::default(),
            confirmed: Mutex::default(),
            shared: sink.isolated(),
            lacking: AtomicBool::new(false),
        }
    }

    /// Waits for a slot. An exclusive slot comes with a connection that was found sound just now:
    /// the next record is not at fault for the loss of an idle connection.
    ///
    /// # Errors
    ///
    /// [`SinkDown`]: there is no connection.
    pub(crate) async fn enter(&self, exclusive: bool) -> Result<IsolatedSlot, SinkDown> {
        if !exclusive {
            return Ok(IsolatedSlot::Shared);
        }
        let slot = IsolatedSlot::Exclusive { _room: self.room.clone().lock_owned().await };
        if self.confirmed.lock().is_some_and(|confirmed| confirmed.elapsed() < SOUND_PERIOD) {
            return Ok(slot);
        }
        match self.exclusive.probe().await {
            Ok(()) => Ok(slot),
            Err(down) => {
                tokio::time::sleep(FAILED_PAUSE).await;
                Err(down)
            }
        }
    }

    /// Publishes, and connects first if needed. Returns when the message was sent.
    pub(crate) async fn publish(
        &self,
        slot: &IsolatedSlot,
        message: Message,
    ) -> (Instant, Result<(), PublishError>) {
        let sink = if slot.is_exclusive() { &self.exclusive } else { &self.shared };
        let mut handed_over = Instant::now();
        let mut result = sink.publish(message.clone()).await;
        if matches!(&result, Err(error) if error.failure == PublishFailure::SinkDown) {
            if let Err(down) = sink.probe().await {
                return (handed_over, Err(PublishError::new(PublishFailure::SinkDown, down)));
            }
            handed_over = Instant::now();
            result = sink.publish(message).await;
        }
        if matches!(&result, Err(error) if error.failure == PublishFailure::Unconfirmed) {
            // So that the next probe shows the destination's state, and not the client's.
            sink.renew().await;
        }
        if result.is_ok() && self.lacking.swap(false, Ordering::Relaxed) {
            info!(sink = %self.name, "opened an isolated connection again");
        }
        if slot.is_exclusive() {
            *self.confirmed.lock() = result.is_ok().then(Instant::now);
        }
        (handed_over, result)
    }

    /// Warns, once, that no isolated connection can be opened although the main one is up.
    pub(crate) fn lacks(&self, down: impl std::fmt::Display) {
        if !self.lacking.swap(true, Ordering::Relaxed) {
            warn!(
                sink = %self.name,
                cause = %down,
                "failed to open an isolated connection; quarantined records and probes \
                 of destinations wait for it; allow the user at least seven connections and 32 channels"
            );
        }
    }

    /// Closes the connections.
    pub(crate) async fn close(&self) {
        tokio::join!(self.exclusive.close(), self.shared.close());
    }
}
