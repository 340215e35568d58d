//! The link that a sink publishes on: none before its first probe and after its close.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use postrider_relay::sink::SinkDown;
use tokio::sync::{Mutex, watch};
use tokio::time::Instant;

/// How long the publishes on a retired link may take to end. They end at once, unless the machine is
/// busy.
const RETIREMENT_TIMEOUT: Duration = Duration::from_secs(2);

/// What a sink publishes on until it is lost: a connection, a producer, a writer.
pub(super) trait Link {
    /// Resolves when it can no longer be published on.
    fn lost(&self) -> impl Future<Output = SinkDown> + Send;

    /// Returns whether it still works; the broker may take `limit` to answer.
    ///
    /// # Errors
    ///
    /// Why it must be kept although it cannot be used now.
    fn is_usable(&self, limit: Duration) -> impl Future<Output = Result<bool, SinkDown>> + Send;

    /// Ends its publishes, and refuses further ones.
    fn retire(&self, cause: SinkDown);
}

/// The place of the link in use.
#[derive(Debug)]
pub(super) struct ActiveLink<L> {
    link: watch::Sender<Option<Arc<L>>>,
    /// Held while a link is being opened.
    pub(super) opening: Mutex<()>,
}

impl<L> Default for ActiveLink<L> {
    fn default() -> Self {
        Self { link: watch::channel(None).0, opening: Mutex::default() }
    }
}

impl<L: Link> ActiveLink<L> {
    pub(super) fn get(&self) -> Option<Arc<L>> {
        self.link.borrow().clone()
    }

    pub(super) fn take(&self) -> Option<Arc<L>> {
        self.link.send_replace(None)
    }

    /// Replaces a link by another one, and returns it; `None` if it is no longer the link in use.
    #[cfg(any(feature = "kafka", feature = "rabbitmq"))]
    pub(super) fn replace(&self, link: &L, other: L) -> Option<Arc<L>> {
        let mut replaced = None;
        self.link.send_if_modified(|active| {
            if active.as_deref().is_some_and(|active| std::ptr::eq(active, link)) {
                replaced = active.replace(Arc::new(other));
            }
            replaced.is_some()
        });
        replaced
    }

    /// Keeps the link in use if it is usable, and opens another one otherwise.
    ///
    /// # Errors
    ///
    /// Why there is no usable link.
    pub(super) async fn probe(
        &self,
        limit: Duration,
        open: impl Future<Output = Result<L, SinkDown>>,
    ) -> Result<(), SinkDown> {
        let _opening = self.opening.lock().await;
        if let Some(link) = self.get() {
            if link.is_usable(limit).await? {
                return Ok(());
            }
            self.take();
            link.retire(SinkDown::new("it did not respond to a probe"));
            // A publish that ended later would report the loss of a link that is not in use any more.
            let until = Instant::now() + RETIREMENT_TIMEOUT;
            while Arc::strong_count(&link) > 1 && Instant::now() < until {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        }
        self.link.send_replace(Some(Arc::new(open.await?)));
        Ok(())
    }

    /// Resolves when the link in use, or a later one, is lost.
    pub(super) async fn lost(&self) -> SinkDown {
        let mut links = self.link.subscribe();
        loop {
            let link = links.borrow_and_update().clone();
            match link {
                None => {
                    // The sender lives in `self`.
                    let _ = links.changed().await;
                }
                Some(link) => tokio::select! {
                    down = link.lost() => return down,
                    _ = links.changed() => {}
                },
            }
        }
    }
}
