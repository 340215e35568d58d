//! What the handlers share.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use axum::http::request::Parts;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use crate::config::resolve::ApiPlan;
use crate::events::EventStore;
use crate::http::auth::Tokens;
use crate::http::problem::Problem;
use crate::ops::origin::{check_host, check_origin};
use crate::outbox::collections::Collections;
use crate::partition::fleet::Fleet;
use crate::wakeup::Wakeup;

/// The state of every handler.
pub type Shared = Arc<State>;

/// What there is from the start, and what comes once MongoDB is reached.
pub struct State {
    /// Who may do what.
    pub(super) tokens: Tokens,
    /// `api.allow_unauthenticated`: something else guards it, under names that are not known here.
    allow_unauthenticated: bool,
    /// The largest body.
    pub(super) max_body: usize,
    /// What a request may take.
    pub(super) timeout: Duration,
    /// A place for each request that is worked on.
    pub(super) places: Arc<Semaphore>,
    /// Cancelled when nothing new is begun any more.
    pub(super) stop: CancellationToken,
    services: OnceLock<Services>,
}

/// What the calls work on.
#[derive(Clone)]
pub struct Services {
    /// The outbox.
    pub collections: Collections,
    /// Who runs, and who owns what.
    pub fleet: Fleet,
    /// The event store, where this process hosts it.
    pub events: Option<EventStore>,
    /// The relay in this process, which looks at once at what was enqueued here.
    pub wake: Option<Wakeup>,
}

impl State {
    pub(super) fn new(plan: &ApiPlan, stop: CancellationToken) -> Self {
        Self {
            tokens: plan.tokens.clone(),
            allow_unauthenticated: plan.allow_unauthenticated,
            max_body: plan.max_body,
            timeout: plan.timeout,
            places: Arc::new(Semaphore::new(plan.max_concurrent)),
            stop,
            services: OnceLock::new(),
        }
    }

    /// Refuses a request that a web page of another site may have made. A token vouches for itself: no
    /// browser adds it.
    pub(super) fn admit(&self, request: &Parts) -> Result<(), Problem> {
        if !self.tokens.is_empty() {
            return Ok(());
        }
        if !self.allow_unauthenticated {
            check_host(request)?;
        }
        Ok(check_origin(request)?)
    }

    /// From now on calls are answered; MongoDB has been reached.
    pub fn open(&self, services: Services) {
        // It is called once a process.
        let _ = self.services.set(services);
    }

    /// The event store, once it is there.
    pub fn events(&self) -> Option<&EventStore> {
        self.services.get()?.events.as_ref()
    }

    /// What the calls work on, as soon as it is there.
    pub(super) fn services(&self) -> Result<&Services, Problem> {
        self.services.get().ok_or_else(|| Problem::unavailable("MongoDB was not reached yet"))
    }
}
