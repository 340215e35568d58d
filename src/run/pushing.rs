//! The push subscriptions of an instance.

use std::time::Instant;

use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use crate::context::Context;
use crate::events::feed::Feed;
use crate::events::subscriptions::Pusher;
use crate::outbox::collections::Collections;
use crate::wakeup::Wakeup;

/// The pusher, if this instance has a feed. It ends at the stop of the process, before the relay is drained.
pub(super) struct Pushing {
    stop: CancellationToken,
    task: Option<AbortOnDropHandle<()>>,
}

impl Pushing {
    pub(super) fn start(
        context: &Context,
        feed: Option<&Feed>,
        outbox: &Collections,
        wake: &Wakeup,
        stop: &CancellationToken,
    ) -> Self {
        let stop = stop.child_token();
        let task = feed.map(|feed| {
            let pusher = Pusher::new(context, feed.clone(), outbox.clone(), Some(wake.clone()));
            AbortOnDropHandle::new(tokio::spawn(pusher.run(stop.clone())))
        });
        Self { stop, task }
    }

    /// Resolves when it has ended by a panic; never without one.
    pub(super) async fn ended(&mut self) {
        if let Some(task) = &mut self.task {
            let _ = task.await;
            self.task = None;
            if !self.stop.is_cancelled() {
                return;
            }
        }
        std::future::pending().await
    }

    /// Waits until it has given up what it owns, so that another process can take its place at once.
    pub(super) async fn ended_by(&mut self, deadline: Instant) {
        self.stop.cancel();
        if let Some(task) = &mut self.task {
            // (Without an answer of MongoDB its leases end later.)
            let _ = tokio::time::timeout_at(deadline.into(), task).await;
        }
    }
}
