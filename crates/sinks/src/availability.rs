//! Whether a sink, or one of its links, can be published on.

use postrider_relay::sink::SinkDown;
use tokio::sync::watch;

/// Up, or down for a cause. Clones share their state.
#[derive(Clone, Debug)]
pub(super) struct Availability(watch::Sender<Option<SinkDown>>);

impl Default for Availability {
    fn default() -> Self {
        Self(watch::channel(None).0)
    }
}

impl Availability {
    /// Checks that it is up.
    ///
    /// # Errors
    ///
    /// Why it is down.
    pub(super) fn check(&self) -> Result<(), SinkDown> {
        self.0.borrow().clone().map_or(Ok(()), Err)
    }

    pub(super) fn set_up(&self) {
        self.0.send_replace(None);
    }

    /// Takes it down; a first cause stays. Returns whether it was up.
    pub(super) fn set_down(&self, cause: SinkDown) -> bool {
        self.0.send_if_modified(|down| {
            let was_up = down.is_none();
            down.get_or_insert(cause);
            was_up
        })
    }

    /// Resolves when it is down.
    pub(super) async fn lost(&self) -> SinkDown {
        let mut state = self.0.subscribe();
        let down = state.wait_for(Option::is_some).await;
        // The sender lives in `self`.
        down.ok().and_then(|down| down.clone()).unwrap_or_else(|| SinkDown::new("closed"))
    }
}
