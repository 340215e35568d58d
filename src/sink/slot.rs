//! The link that a sink has in use: none before its first probe and after its close.

use std::future::Future;
use std::sync::Arc;

use tokio::sync::watch;

use crate::sink::SinkDown;

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

    pub(super) fn take(&self) -> Option<Arc<L>> {
        self.0.send_replace(None)
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
