//! The state of the handlers.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use axum::http::request::Parts;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;

use crate::context::Context;
use crate::events::EventStore;
use crate::events::feed::Feed;
use crate::events::query::QueryService;
use crate::events::subscriptions::Subscriptions;
use crate::http::answers::Answers;
use crate::http::auth::{RefusedLogins, Tokens};
use crate::http::config::ApiConfig;
use crate::http::problem::Problem;
use crate::ops::origin::{check_host, check_origin};
use crate::outbox::collections::Collections;
use crate::partition::fleet::Fleet;
use crate::wakeup::Wakeup;

/// The state of every handler.
pub type Api = Arc<ApiState>;

/// The settings, and the services after MongoDB has been reached.
pub struct ApiState {
    /// The configured tokens.
    pub(super) tokens: Tokens,
    /// Requests without a known token.
    pub(super) refused_logins: RefusedLogins,
    /// `api.allow_unauthenticated`: something else guards the API, under any host name.
    allow_unauthenticated: bool,
    /// The largest body.
    pub(super) max_body: usize,
    /// `api.wow_routes`.
    pub(super) wow_routes: bool,
    /// The longest time until an answer begins.
    pub(super) timeout: Duration,
    /// A permit for each concurrent request.
    pub(super) permits: Semaphore,
    /// Cancelled when the API stops accepting requests.
    pub(super) stop: CancellationToken,
    /// What answers may hold.
    pub(super) answers: Arc<Answers>,
    /// A permit for each client that waits for events of the feed.
    readers: Arc<Semaphore>,
    services: OnceLock<Services>,
}

/// The parts of Postrider that the calls use.
#[derive(Clone)]
pub struct Services {
    /// The outbox.
    pub collections: Collections,
    /// The instances and their partitions.
    pub fleet: Fleet,
    /// The event store, where this process hosts one.
    pub events: Option<EventStore>,
    /// Reads that no append must wait for.
    pub reading: Reading,
    /// Wakes the relay of this process for records that are enqueued here.
    pub wake: Option<Wakeup>,
}

/// Reads by a pool of connections of their own: no number of them delays an append.
#[derive(Clone)]
pub struct Reading {
    /// The outbox.
    pub collections: Collections,
    /// The databases of the event store.
    pub context: Context,
    /// Queries of the event store.
    pub queries: QueryService,
    /// The feed, where it is enabled.
    pub feed: Option<Feed>,
}

impl ApiState {
    pub(super) fn new(
        config: &ApiConfig,
        tokens: Tokens,
        max_readers: usize,
        stop: CancellationToken,
    ) -> Self {
        Self {
            tokens,
            refused_logins: RefusedLogins::default(),
            allow_unauthenticated: config.allow_unauthenticated,
            max_body: config.max_body,
            wow_routes: config.wow_routes,
            timeout: config.timeout,
            permits: Semaphore::new(config.max_concurrent),
            stop,
            answers: Arc::new(Answers::new(config.max_concurrent)),
            readers: Arc::new(Semaphore::new(max_readers)),
            services: OnceLock::new(),
        }
    }

    /// Refuses a request that a web page of another site may have made. With tokens none is refused here:
    /// no browser adds one by itself.
    pub(super) fn admit(&self, request: &Parts) -> Result<(), Problem> {
        if !self.tokens.is_empty() {
            return Ok(());
        }
        if !self.allow_unauthenticated {
            check_host(request)?;
        }
        Ok(check_origin(request)?)
    }

    /// Opens the API: MongoDB has been reached.
    pub fn open(&self, services: Services) {
        // Called once per process.
        let _ = self.services.set(services);
    }

    /// The event store, once MongoDB has been reached.
    pub fn events(&self) -> Option<&EventStore> {
        self.services.get()?.events.as_ref()
    }

    /// The services.
    ///
    /// # Errors
    ///
    /// MongoDB has not been reached yet.
    pub(super) fn services(&self) -> Result<&Services, Problem> {
        self.services.get().ok_or_else(|| Problem::unavailable("not connected to MongoDB yet"))
    }

    /// The queries of the event store.
    ///
    /// # Errors
    ///
    /// As [`event_store`](Self::event_store).
    pub(super) fn queries(&self) -> Result<&QueryService, Problem> {
        Ok(&self.reading()?.queries)
    }

    /// Reads for answers that clients may take slowly.
    ///
    /// # Errors
    ///
    /// As [`event_store`](Self::event_store).
    pub(super) fn reading(&self) -> Result<&Reading, Problem> {
        self.event_store()?;
        Ok(&self.services()?.reading)
    }

    /// The outbox, for reads.
    ///
    /// # Errors
    ///
    /// MongoDB has not been reached yet.
    pub(super) fn records(&self) -> Result<&Collections, Problem> {
        Ok(&self.services()?.reading.collections)
    }

    /// The feed.
    ///
    /// # Errors
    ///
    /// MongoDB has not been reached yet, or the feed is not enabled.
    pub(super) fn feed(&self) -> Result<&Feed, Problem> {
        let missing = "feed.enabled = false: events have no positions";
        self.services()?.reading.feed.as_ref().ok_or_else(|| Problem::not_found(missing))
    }

    /// A permit to wait for events of the feed.
    ///
    /// # Errors
    ///
    /// `feed.max_readers` clients wait already.
    pub(super) fn reader_permit(&self) -> Result<OwnedSemaphorePermit, Problem> {
        self.readers.clone().try_acquire_owned().map_err(|_| {
            Problem::overloaded("more clients wait for events than feed.max_readers; retry later")
        })
    }

    /// The subscriptions to the feed. They read its events as all readers do.
    ///
    /// # Errors
    ///
    /// As [`event_store`](Self::event_store), or this instance has no feed.
    pub(super) fn subscriptions(&self) -> Result<Subscriptions, Problem> {
        self.subscriptions_of(self.event_store()?.context())
    }

    /// The subscriptions to the feed, for reads.
    ///
    /// # Errors
    ///
    /// As [`subscriptions`](Self::subscriptions).
    pub(super) fn subscriptions_to_read(&self) -> Result<Subscriptions, Problem> {
        self.subscriptions_of(&self.reading()?.context)
    }

    fn subscriptions_of(&self, context: &Context) -> Result<Subscriptions, Problem> {
        let missing = "feed.enabled = false: this instance has no feed and no subscriptions";
        let feed = self.reading()?.feed.clone().ok_or_else(|| Problem::not_found(missing))?;
        Ok(Subscriptions::new(context, feed))
    }

    /// The event store.
    ///
    /// # Errors
    ///
    /// MongoDB has not been reached yet, or this instance hosts no events.
    pub(super) fn event_store(&self) -> Result<&EventStore, Problem> {
        self.services()?.events.as_ref().ok_or_else(|| {
            let detail =
                "events.enabled = false: this instance hosts no events, snapshots or prepare keys";
            Problem::not_found(detail)
        })
    }
}
