//! One of the processes that can assign positions.

use bson::Document;
use mongodb::ClientSession;
use postrider_store::StoreError;
use postrider_store::text::chain;
use postrider_store::transaction::kill_session;
use tokio::sync::watch;
use tracing::debug;
use uuid::Uuid;

use crate::context::Context;
use crate::feed::highest::highest_position;
use crate::feed::metrics::FeedMetrics;
use crate::feed::recent::Recent;
use crate::feed::state::{FeedState, StateStore};
use crate::feed::status::StatusReport;
use crate::transaction::session;

/// The head of the feed, as far as this process knows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct KnownHead {
    pub(super) feed: String,
    pub(super) head: i64,
    /// Whether this process assigns the positions, so that it knows every change at once.
    pub(super) is_own: bool,
}

/// A process that can own the feed: what it is called, and what it reports.
pub(super) struct Process {
    pub(super) context: Context,
    pub(super) head: watch::Sender<KnownHead>,
    /// Identifies this process to the others.
    pub(super) owner: String,
    pub(super) store: StateStore,
    pub(super) metrics: FeedMetrics,
    pub(super) status: StatusReport,
}

impl Process {
    pub(super) fn new(context: Context, head: watch::Sender<KnownHead>) -> Self {
        let store = StateStore::new(&context);
        let owner = Uuid::new_v4().to_string();
        let (metrics, status) = (FeedMetrics::new(), StatusReport::new());
        Self { context, head, owner, store, metrics, status }
    }

    /// Takes the right to assign positions, in the session of this process.
    ///
    /// A former owner that was killed or is suspended may have left a transaction open, and every write
    /// to the state would wait for its end: up to `transactionLifetimeLimitSeconds`.
    pub(super) async fn take_over(
        &self,
        kept: &mut Option<ClientSession>,
    ) -> Result<Option<(FeedState, Recent)>, StoreError> {
        if let Some(silent) = self.store.silent_session(&self.owner).await?
            && let Err(error) = kill_session(self.context.client(), &silent).await
        {
            debug!(error = chain(&error), "failed to end the transaction of a former owner");
        }
        let session = match kept {
            Some(session) => session,
            None => kept.insert(session(&self.context).await?),
        };
        self.own(session.id()).await
    }

    /// Takes or renews the right to assign positions. Creates the feed if there is none.
    pub(super) async fn own(
        &self,
        session: &Document,
    ) -> Result<Option<(FeedState, Recent)>, StoreError> {
        if let Some(state) = self.store.own(&self.owner, session).await? {
            return Ok(Some(state));
        }
        if self.store.load().await?.is_some() {
            return Ok(None);
        }
        // Positions without a head are from a feed whose document was lost.
        let (head, names) = highest_position(&self.context).await?;
        self.store.create(head, &names).await?;
        self.store.own(&self.owner, session).await
    }
}
