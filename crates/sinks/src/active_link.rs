//! The link that a sink has in use: none before its first probe and after its close.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use postrider_relay::sink::SinkDown;
use tokio::sync::watch;
use tokio::time::Instant;

/// How long the publishes on a link that was given up may take to end. They end at once, unless the
/// machine is busy.
const EMPTIED: Duration = Duration::from_secs(2);

/// What a sink publishes on until it is lost.
pub(super) trait Link {
    /// Resolves when it can no longer be published on.
    fn lost(&self) -> impl Future<Output = SinkDown> + Send;
}

/// A place for one link.
#[derive(Debug)]
pub(super) struct Slot<L>(watch::Sender<Option<Arc<L>>>);

impl<L> Default for Slot<L> {
    fn default() -> Self {
        Self(watch::channel(None).0)
    }
}

impl<L: Link> Slot<L> {
    pub(super) fn link(&self) -> Option<Arc<L>> {
        self.0.borrow().clone()
    }

    pub(super) fn put(&self, link: L) {
        self.0.send_replace(Some(Arc::new(link)));
    }

    /// Puts another link in place of this one, and answers it; `None` where it is not in use any
    /// more.
    pub(super) fn replace(&self, link: &L, other: L) -> Option<Arc<L>> {
        let mut replaced = None;
        self.0.send_if_modified(|in_use| {
            if in_use.as_deref().is_some_and(|in_use| std::ptr::eq(in_use, link)) {
                replaced = in_use.replace(Arc::new(other));
            }
            replaced.is_some()
        });
        replaced
    }

    pub(super) fn take(&self) -> Option<Arc<L>> {
        self.0.send_replace(None)
    }

    /// Waits until no publish uses a link any more that was taken out and given up. A publish that
    /// ended later would report the loss of a connection that is not in use any more.
    pub(super) async fn emptied(&self, link: Arc<L>) {
        let until = Instant::now() + EMPTIED;
        while Arc::strong_count(&link) > 1 && Instant::now() < until {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    /// Resolves when the link in use, or one that comes later, is lost.
    pub(super) async fn lost(&self) -> SinkDown {
        let mut links = self.0.subscribe();
        loop {
            let link = links.borrow_and_update().clone();
            match link {
                None => {
                    // The sender lives as long as this slot.
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
