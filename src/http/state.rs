//! What the handlers share.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use crate::config::resolve::ApiPlan;
use crate::events::EventStore;
use crate::http::auth::Tokens;
use crate::http::problem::Problem;
use crate::outbox::collections::Collections;
use crate::partition::fleet::Fleet;
use crate::relay::wake::Wake;

/// The state of every handler.
pub type Shared = Arc<State>;

/// What there is from the start, and what comes once MongoDB is reached.
pub struct State {
    /// Who may do what.
    pub(super) tokens: Tokens,
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
    pub wake: Option<Wake>,
}

impl State {
    pub(super) fn new(plan: &ApiPlan, stop: CancellationToken) -> Self {
        Self {
            tokens: plan.tokens.clone(),
            max_body: plan.max_body,
            timeout: plan.timeout,
            places: Arc::new(Semaphore::new(plan.max_concurrent)),
            stop,
            services: OnceLock::new(),
        }
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
