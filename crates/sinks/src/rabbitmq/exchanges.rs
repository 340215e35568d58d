//! Which exchanges exist.
//!
//! A publish to a missing exchange makes RabbitMQ close the channel under every innocent
//! neighbour. So each exchange is looked up first, passively, on a channel of its own. Whether a
//! publish to it is permitted cannot be asked: see [`Refusals`].
//!
//! Newer brokers refuse the look-up to users without any right but that to write. (RabbitMQ 4.2.6
//! and later; before, every user could.) For them the publish itself is the look-up: an exchange
//! that it finds missing closes the channel once, and is tried on a channel of its own from then on,
//! like a forbidden one.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};

use lapin::options::ExchangeDeclareOptions;
use lapin::types::{FieldTable, ShortString};
use lapin::{Channel, Connection, ExchangeKind};
use postrider_relay::sink::{PublishError, PublishFailure};

use crate::rabbitmq::closure::{self, ACCESS_REFUSED, NOT_FOUND, Refusal, Scope};
use crate::rabbitmq::refusals::{Refusals, charge};
use crate::rabbitmq::rendering::Target;

/// What is known of the exchanges on one connection.
#[derive(Debug)]
pub(super) struct Exchanges {
    /// Those that may be published to.
    known: Mutex<HashMap<ShortString, Known>>,
    refusals: Arc<Refusals>,
    channel: tokio::sync::Mutex<Option<Channel>>,
}

/// Why an exchange may be published to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Known {
    There,
    /// The broker does not let us look.
    Hidden,
}

/// The exchanges as one connection sees them.
#[derive(Debug)]
pub(super) struct LookUp<'a> {
    pub(super) exchanges: &'a Exchanges,
    pub(super) connection: &'a Connection,
}

impl LookUp<'_> {
    /// Makes sure that there is an exchange of this name, as far as the broker tells.
    ///
    /// # Errors
    ///
    /// [`PublishFailure::Retryable`] where there is none; [`PublishFailure::SinkDown`] where the broker could not be
    /// asked.
    pub(super) async fn look_up(&self, name: &ShortString) -> Result<(), PublishError> {
        if let Some(known) = self.exchanges.recall(name) {
            return known;
        }
        let mut channel = self.exchanges.channel.lock().await;
        // The previous holder of the channel may have looked up the same exchange.
        if let Some(known) = self.exchanges.recall(name) {
            return known;
        }
        let Err(error) = self.ask(&mut channel, name).await else {
            self.exchanges.known().insert(name.clone(), Known::There);
            return Ok(());
        };
        // The broker has closed it.
        *channel = None;
        match closure::broker_said(&error) {
            Some((ACCESS_REFUSED, _)) => {
                self.exchanges.known().insert(name.clone(), Known::Hidden);
                Ok(())
            }
            Some((NOT_FOUND, words)) => {
                let error = charge(&words);
                let target = Target { exchange: name.clone(), routing_key: ShortString::default() };
                let refusal = Refusal { scope: Scope::Exchange, forbidden: false, words };
                self.exchanges.note(&target, refusal);
                Err(error)
            }
            _ => {
                let detail = format!("an exchange could not be looked up: {error}");
                Err(PublishError::new(PublishFailure::SinkDown, detail))
            }
        }
    }

    /// Whether [`look_up`](Self::look_up) answers at once, without asking the broker.
    pub(super) fn knows(&self, name: &ShortString) -> bool {
        self.exchanges.recall(name).is_some()
    }

    async fn ask(&self, slot: &mut Option<Channel>, name: &ShortString) -> lapin::Result<()> {
        let channel = match slot {
            Some(channel) => channel,
            None => slot.insert(self.connection.create_channel().await?),
        };
        let options = ExchangeDeclareOptions { passive: true, ..Default::default() };
        // The kind is not compared when the declaration is passive.
        let kind = ExchangeKind::Direct;
        channel.exchange_declare(name.clone(), kind, options, FieldTable::default()).await
    }
}

impl Exchanges {
    /// Of a new connection: nothing is known to be there.
    pub(super) fn new(refusals: Arc<Refusals>) -> Self {
        Self { known: Mutex::default(), refusals, channel: tokio::sync::Mutex::default() }
    }

    /// Remembers that the broker refused this target.
    pub(super) fn note(&self, target: &Target, mut refusal: Refusal) {
        if refusal.scope == Scope::Exchange {
            let mut known = self.known();
            match known.get(&target.exchange) {
                // It cannot be looked up again: a message has to try it.
                Some(Known::Hidden) => refusal.forbidden = true,
                Some(Known::There) => _ = known.remove(&target.exchange),
                None => {}
            }
        }
        self.refusals.note(target, refusal);
    }

    fn recall(&self, name: &ShortString) -> Option<Result<(), PublishError>> {
        if let Some(missing) = self.refusals.missing(name) {
            return Some(Err(missing));
        }
        // The default exchange is always there, and can't be asked for.
        let known = name.as_str().is_empty() || self.known().contains_key(name);
        known.then_some(Ok(()))
    }

    fn known(&self) -> MutexGuard<'_, HashMap<ShortString, Known>> {
        self.known.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}
