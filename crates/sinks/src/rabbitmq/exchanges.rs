//! The exchanges that can be published to, as seen on one link.
//!
//! RabbitMQ closes the channel of a publish to an exchange that is missing, internal or closed to the user, and with it
//! the link of all messages. So the first message to an exchange is looked up before, on the
//! [`ControlConnection`]. An exchange that a later message finds missing or closed to the user closes the link once.

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;

use lapin::types::ShortString;
use parking_lot::Mutex;
use postrider_relay::sink::{PublishError, PublishFailure};

use crate::rabbitmq::broker_error::{self, ACCESS_REFUSED, NOT_FOUND, Refusal, Scope};
use crate::rabbitmq::control_connection::{ControlConnection, LookedUp};
use crate::rabbitmq::refused_targets::{ExchangeRefusal, RefusedTargets, refused};
use crate::rabbitmq::rendering::Target;

/// The known exchanges of one link.
#[derive(Debug)]
pub(super) struct Exchanges {
    known: Mutex<HashSet<ShortString>>,
    refused: Arc<RefusedTargets>,
}

impl Exchanges {
    /// Creates the state of a new link: no exchange is known.
    pub(super) fn new(refused: Arc<RefusedTargets>) -> Self {
        Self { known: Mutex::default(), refused }
    }

    /// Makes sure that the broker accepts messages for an exchange of this name.
    ///
    /// # Errors
    ///
    /// [`PublishFailure::Retryable`] if it does not; [`PublishFailure::SinkDown`] if the look-up fails.
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
            Ok(LookedUp::Accepted) => self.refused.permit_exchange(name),
            Ok(LookedUp::Refused { code: code @ (ACCESS_REFUSED | NOT_FOUND), reply_text }) => {
                let target = Target { exchange: name.clone(), routing_key: ShortString::default() };
                let refusal = broker_error::refusal(code, &reply_text, &target);
                if refusal.scope == Scope::Exchange {
                    self.note_refusal(&target, refusal);
                    return Err(refused(&reply_text));
                }
                self.refused.permit_exchange(name);
            }
            Ok(LookedUp::Refused { reply_text, .. }) => {
                return cannot_look_up(&broker_error::quoted(&reply_text));
            }
            Err(down) => return cannot_look_up(&down),
        }
        self.known.lock().insert(name.clone());
        Ok(())
    }

    /// Returns whether [`look_up`](Self::look_up) would answer without a request.
    pub(super) fn knows(&self, name: &ShortString) -> bool {
        self.recall(name).is_some()
    }

    /// Notes that the broker refused this target.
    pub(super) fn note_refusal(&self, target: &Target, refusal: Refusal) {
        if refusal.scope == Scope::Exchange {
            self.known.lock().remove(&target.exchange);
        }
        self.refused.note(target, refusal);
    }

    fn recall(&self, name: &ShortString) -> Option<Result<(), PublishError>> {
        match self.refused.exchange(name) {
            Some(ExchangeRefusal::Recent(error)) => return Some(Err(error)),
            // Another link may have found it since.
            Some(ExchangeRefusal::Past) => return None,
            None => {}
        }
        // The default exchange always exists.
        let is_known = name.as_str().is_empty() || self.known.lock().contains(name);
        is_known.then_some(Ok(()))
    }
}
