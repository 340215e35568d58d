//! The lease: the right of this process to copy, and what interrupts its work.

use std::time::Instant;

use bson::{Bson, Timestamp};
use mongodb::Client;
use postrider_store::StoreError;
use tokio_util::sync::CancellationToken;

use crate::copy::{self, CopySession};
use crate::report::AdoptError;
use crate::state::{BridgeState, BridgeStore, LEASE};

/// Why the work ended before its end.
pub(crate) enum Interrupt {
    /// `stop` was cancelled.
    Stopped,
    /// Another process copies.
    NotOwner,
    /// The change stream cannot be resumed.
    Lost,
    /// An error.
    Failed(AdoptError),
}

/// The result of a part of the work.
pub(crate) type Step<T> = Result<T, Interrupt>;

impl From<AdoptError> for Interrupt {
    fn from(error: AdoptError) -> Self {
        Self::Failed(error)
    }
}

impl From<StoreError> for Interrupt {
    fn from(error: StoreError) -> Self {
        Self::Failed(error.into())
    }
}

/// The right to copy, with the session of this process.
pub(crate) struct BridgeLease<'a> {
    store: &'a BridgeStore,
    owner: &'a str,
    pub(crate) session: &'a mut CopySession,
    pub(crate) state: BridgeState,
    pub(crate) renewed_at: Instant,
}

impl<'a> BridgeLease<'a> {
    /// Acquires the right to copy, in the session of this process.
    ///
    /// An owner that was killed may have left a transaction open, and every write to the state would wait for its
    /// end: up to `transactionLifetimeLimitSeconds`.
    pub(crate) async fn acquire(
        client: &Client,
        store: &'a BridgeStore,
        owner: &'a str,
        session: &'a mut Option<CopySession>,
    ) -> Step<Self> {
        let session = match session {
            Some(session) => session,
            None => session.insert(CopySession::start(client).await?),
        };
        session.end_open(client).await;
        if let Some(expired) = store.expired_session(owner).await? {
            copy::end(client, &expired).await;
        }
        let mut state = store.acquire(owner, session.session.id()).await?;
        // (Only one that is absent is created: a standby process writes nothing.)
        if state.is_none() && !store.exists().await? {
            store.create().await?;
            state = store.acquire(owner, session.session.id()).await?;
        }
        let state = state.ok_or(Interrupt::NotOwner)?;
        Ok(Self { store, owner, session, state, renewed_at: Instant::now() })
    }

    /// Renews the lease when a third of it has passed, and then stores the resume token.
    pub(crate) async fn renew(&mut self, token: Option<&Bson>) -> Step<()> {
        if self.renewed_at.elapsed() < LEASE / 3 {
            return Ok(());
        }
        self.renew_now(token).await
    }

    /// Renews the lease, and stores the resume token.
    pub(crate) async fn renew_now(&mut self, token: Option<&Bson>) -> Step<()> {
        self.renewed_at = Instant::now();
        owned(self.store.renew(self.owner, self.state.epoch, token).await?)
    }

    /// Renews the lease while this work lasts.
    pub(crate) async fn during<T, E: Into<Interrupt>>(
        &mut self,
        stop: &CancellationToken,
        work: impl Future<Output = Result<T, E>>,
    ) -> Step<T> {
        let mut work = std::pin::pin!(work);
        loop {
            tokio::select! {
                done = &mut work => return done.map_err(Into::into),
                () = stop.cancelled() => return Err(Interrupt::Stopped),
                () = tokio::time::sleep(LEASE / 3) => self.renew(None).await?,
            }
        }
    }

    /// Stores the start of the change stream.
    pub(crate) async fn begin(&self, start: Timestamp) -> Step<()> {
        owned(self.store.begin(self.owner, self.state.epoch, start).await?)
    }

    /// Removes the resume token.
    pub(crate) async fn forget_resume_token(&mut self) -> Step<()> {
        (self.state.token, self.state.start) = (None, None);
        owned(self.store.forget_resume_token(self.owner, self.state.epoch).await?)
    }
}

fn owned(is_owner: bool) -> Step<()> {
    if is_owner { Ok(()) } else { Err(Interrupt::NotOwner) }
}
