//! Which exchanges exist.
//!
//! A publish to a missing exchange makes RabbitMQ close the channel under every innocent
//! neighbour. So each exchange is looked up first, passively, on a channel of its own. Whether a
//! publish to it is permitted cannot be asked: see [`Refusals`].

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard};

use lapin::options::ExchangeDeclareOptions;
use lapin::types::{FieldTable, ShortString};
use lapin::{Channel, Connection, ExchangeKind};

use crate::sink::rabbitmq::closure::{self, NOT_FOUND, Refusal, Scope};
use crate::sink::rabbitmq::refusals::{Refusals, charge};
use crate::sink::rabbitmq::rendering::Target;
use crate::sink::{PublishError, Verdict};

/// What is known of the exchanges on one connection.
#[derive(Debug)]
pub(super) struct Exchanges {
    there: Mutex<HashSet<ShortString>>,
    refusals: Arc<Refusals>,
    channel: tokio::sync::Mutex<Option<Channel>>,
}

/// The exchanges as one connection sees them.
#[derive(Debug)]
pub(super) struct LookUp<'a> {
    pub(super) exchanges: &'a Exchanges,
    pub(super) connection: &'a Connection,
}

impl LookUp<'_> {
    /// Makes sure that there is an exchange of this name.
    ///
    /// # Errors
    ///
    /// [`Verdict::Charge`] where there is none; [`Verdict::Down`] where the broker could not be
    /// asked.
    pub(super) async fn look_up(&self, name: &ShortString) -> Result<(), PublishError> {
        if let Some(known) = self.exchanges.recall(name) {
            return known;
        }
        let mut channel = self.exchanges.channel.lock().await;
        // Whoever had the channel before may have asked for the same.
        if let Some(known) = self.exchanges.recall(name) {
            return known;
        }
        let asked = self.ask(&mut channel, name).await;
        if let Err(error) = asked {
            // The broker has closed it.
            *channel = None;
            let Some((NOT_FOUND, words)) = closure::broker_said(&error) else {
                let detail = format!("an exchange could not be looked up: {error}");
                return Err(PublishError::new(Verdict::Down, detail));
            };
            let error = charge(&words);
            let target = Target { exchange: name.clone(), routing_key: ShortString::default() };
            let refusal = Refusal { scope: Scope::Exchange, forbidden: false, words };
            self.exchanges.note(&target, refusal);
            return Err(error);
        }
        self.exchanges.there().insert(name.clone());
        Ok(())
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
        Self { there: Mutex::default(), refusals, channel: tokio::sync::Mutex::default() }
    }

    /// Remembers that the broker refused this target.
    pub(super) fn note(&self, target: &Target, refusal: Refusal) {
        if refusal.scope == Scope::Exchange {
            self.there().remove(&target.exchange);
        }
        self.refusals.note(target, refusal);
    }

    pub(super) fn refusals(&self) -> Arc<Refusals> {
        self.refusals.clone()
    }

    fn recall(&self, name: &ShortString) -> Option<Result<(), PublishError>> {
        if let Some(missing) = self.refusals.missing(name) {
            return Some(Err(missing));
        }
        // The default exchange is always there, and can't be asked for.
        let there = name.as_str().is_empty() || self.there().contains(name);
        there.then_some(Ok(()))
    }

    fn there(&self) -> MutexGuard<'_, HashSet<ShortString>> {
        self.there.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}
