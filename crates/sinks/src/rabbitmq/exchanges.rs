//! The exchanges that can be published to, as seen on one link.
//!
//! A publish to a missing exchange makes RabbitMQ close the channel of all messages. So each exchange is looked
//! up first, by a passive declaration on the [`ControlConnection`]. Whether a publish to it is permitted cannot be
//! looked up: see [`RefusedTargets`].
//!
//! Newer brokers (RabbitMQ 4.2.6 and later) refuse the look-up to users that only have the right to write. For
//! them the publish itself is the look-up: an exchange that it finds missing closes the channel once, and is
//! then tried on a channel of its own, like a forbidden one.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use lapin::types::ShortString;
use parking_lot::Mutex;
use postrider_relay::sink::{PublishError, PublishFailure};

use crate::rabbitmq::broker_error::{self, ACCESS_REFUSED, NOT_FOUND, Refusal, Scope};
use crate::rabbitmq::control_connection::ControlConnection;
use crate::rabbitmq::refused_targets::{RefusedTargets, refused};
use crate::rabbitmq::rendering::Target;

/// The known exchanges of one link.
#[derive(Debug)]
pub(super) struct Exchanges {
    known: Mutex<HashMap<ShortString, Visibility>>,
    refused: Arc<RefusedTargets>,
}

/// Why an exchange may be published to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Visibility {
    Exists,
    /// The broker refuses the look-up.
    Hidden,
}

impl Exchanges {
    /// Creates the state of a new link: no exchange is known.
    pub(super) fn new(refused: Arc<RefusedTargets>) -> Self {
        Self { known: Mutex::default(), refused }
    }

    /// Makes sure that an exchange of this name exists, as far as the broker allows a look-up.
    ///
    /// # Errors
    ///
    /// [`PublishFailure::Retryable`] if there is none; [`PublishFailure::SinkDown`] if the look-up fails.
    pub(super) async fn look_up(
        &self,
        control: &ControlConnection,
        name: &ShortString,
    ) -> Result<(), PublishError> {
        if let Some(known) = self.recall(name) {
            return known;
        }
        let look_up = control.begin_look_up().await;
        // The previous one may have been that of the same exchange.
        if let Some(known) = self.recall(name) {
            return known;
        }
        let cannot_look_up = |cause: &dyn fmt::Display| {
            let detail = format!("cannot look up an exchange: {cause}");
            Err(PublishError::new(PublishFailure::SinkDown, detail))
        };
        match look_up.run(name).await {
            Ok(Ok(())) => {
                self.known.lock().insert(name.clone(), Visibility::Exists);
                Ok(())
            }
            Ok(Err((ACCESS_REFUSED, _))) => {
                self.known.lock().insert(name.clone(), Visibility::Hidden);
                Ok(())
            }
            Ok(Err((NOT_FOUND, reply_text))) => {
                let error = refused(&reply_text);
                let target = Target { exchange: name.clone(), routing_key: ShortString::default() };
                let refusal = Refusal { scope: Scope::Exchange, is_forbidden: false, reply_text };
                self.note_refusal(&target, refusal);
                Err(error)
            }
            Ok(Err((_, reply_text))) => cannot_look_up(&broker_error::quoted(&reply_text)),
            Err(down) => cannot_look_up(&down),
        }
    }

    /// Returns whether [`look_up`](Self::look_up) would answer without a request.
    pub(super) fn knows(&self, name: &ShortString) -> bool {
        self.recall(name).is_some()
    }

    /// Notes that the broker refused this target.
    pub(super) fn note_refusal(&self, target: &Target, mut refusal: Refusal) {
        if refusal.scope == Scope::Exchange {
            let mut known = self.known.lock();
            match known.get(&target.exchange) {
                // It cannot be looked up again: a message must try it.
                Some(Visibility::Hidden) => refusal.is_forbidden = true,
                Some(Visibility::Exists) => _ = known.remove(&target.exchange),
                None => {}
            }
        }
        self.refused.note(target, refusal);
    }

    fn recall(&self, name: &ShortString) -> Option<Result<(), PublishError>> {
        if let Some(missing) = self.refused.missing(name) {
            return Some(Err(missing));
        }
        // The default exchange always exists, and cannot be looked up.
        let is_known = name.as_str().is_empty() || self.known.lock().contains_key(name);
        is_known.then_some(Ok(()))
    }
}
