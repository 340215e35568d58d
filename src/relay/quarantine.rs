//! Quarantine: a sink's second connection, for messages that may take their connection down.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use tokio::sync::{OwnedRwLockReadGuard, OwnedRwLockWriteGuard, RwLock};

use crate::sink::{Message, PublishError, Sink, SinkDown, Verdict};

/// The pause after a connection could not be opened.
const FAILED_PAUSE: Duration = Duration::from_millis(500);

/// How long a confirm shows that the connection is sound. One record after the other goes this way
/// after a crash, and a probe costs as much as a publish.
const SOUND: Duration = Duration::from_secs(1);

/// The isolated connection of one sink. It connects when it is first needed.
#[derive(Debug)]
pub struct Quarantine<S> {
    sink: S,
    room: Arc<RwLock<()>>,
    /// When the latest message was confirmed on it, unless something failed since.
    confirmed: Mutex<Option<Instant>>,
}

/// A place on the isolated connection, until dropped.
#[derive(Debug)]
pub(crate) enum Place {
    Shared { _room: OwnedRwLockReadGuard<()> },
    Exclusive { _room: OwnedRwLockWriteGuard<()> },
}

impl Place {
    /// Whether nothing else is published on the connection meanwhile.
    pub(crate) fn is_exclusive(&self) -> bool {
        matches!(self, Self::Exclusive { .. })
    }
}

impl<S: Sink> Quarantine<S> {
    /// `sink` is an isolated one.
    pub fn new(sink: S) -> Self {
        Self { sink, room: Arc::default(), confirmed: Mutex::default() }
    }

    /// Waits for a place. An exclusive one comes with a connection that was found sound just now:
    /// the loss of an idle connection is not the fault of the record that comes next.
    ///
    /// # Errors
    ///
    /// [`SinkDown`]: there is no connection.
    pub(crate) async fn enter(&self, exclusive: bool) -> Result<Place, SinkDown> {
        let room = self.room.clone();
        if !exclusive {
            return Ok(Place::Shared { _room: room.read_owned().await });
        }
        let place = Place::Exclusive { _room: room.write_owned().await };
        if self.confirmed().is_some_and(|confirmed| confirmed.elapsed() < SOUND) {
            return Ok(place);
        }
        match self.sink.probe().await {
            Ok(()) => Ok(place),
            Err(down) => {
                tokio::time::sleep(FAILED_PAUSE).await;
                Err(down)
            }
        }
    }

    /// Publishes, connecting first if needed. Answers when the message was handed over.
    pub(crate) async fn publish(
        &self,
        _place: &Place,
        message: Message,
    ) -> (Instant, Result<(), PublishError>) {
        let mut handed_over = Instant::now();
        let mut result = self.sink.publish(message.clone()).await;
        if matches!(&result, Err(error) if error.verdict == Verdict::Down) {
            if let Err(down) = self.sink.probe().await {
                return (handed_over, Err(PublishError::new(Verdict::Down, down)));
            }
            handed_over = Instant::now();
            result = self.sink.publish(message).await;
        }
        *self.confirmed() = result.is_ok().then(Instant::now);
        (handed_over, result)
    }

    fn confirmed(&self) -> MutexGuard<'_, Option<Instant>> {
        self.confirmed.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Closes the connection.
    pub(crate) async fn close(&self) {
        self.sink.close().await;
    }
}
