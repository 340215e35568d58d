//! Which exchanges there are.
//!
//! A publish to a missing exchange makes RabbitMQ close the channel under every innocent
//! neighbour. So each exchange is looked up first, passively, on a channel of its own. A
//! forbidden one can't be told that way: it costs its neighbours the channel, once in a while.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use lapin::options::ExchangeDeclareOptions;
use lapin::types::{FieldTable, ShortString};
use lapin::{Channel, Connection, ExchangeKind};

use crate::sink::rabbitmq::closure::{self, ACCESS_REFUSED, NOT_FOUND};
use crate::sink::{PublishError, Verdict};

/// How long a missing exchange is not asked for again: short beside the first backoff,
/// long enough that a thousand records for it cost one closed channel.
const MISSING_FOR: Duration = Duration::from_secs(1);

/// How long nothing is published to a forbidden exchange, each attempt being paid for by
/// others. So long a permission that was given since goes unnoticed.
const FORBIDDEN_FOR: Duration = Duration::from_secs(30);

/// The exchanges that the broker has refused, of one sink: they outlive its connections,
/// since a refusal may have ended one.
#[derive(Debug, Default)]
pub(super) struct Refused(Mutex<HashMap<ShortString, Refusal>>);

#[derive(Clone, Debug)]
struct Refusal {
    until: Instant,
    /// The broker's.
    words: String,
}

/// What is known of the exchanges on one connection.
#[derive(Debug)]
pub(super) struct Exchanges {
    there: Mutex<HashSet<ShortString>>,
    refused: Arc<Refused>,
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
    /// [`Verdict::Charge`] where there is none, or it was forbidden a moment ago;
    /// [`Verdict::Down`] where the broker could not be asked.
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
            self.exchanges.close(name, NOT_FOUND, &words);
            return Err(charge(&words));
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
    pub(super) fn new(refused: Arc<Refused>) -> Self {
        Self { there: Mutex::default(), refused, channel: tokio::sync::Mutex::default() }
    }

    /// The broker refused a publish to it, for this reason and in these words.
    pub(super) fn close(&self, name: &ShortString, code: u16, words: &str) {
        let pause = if code == ACCESS_REFUSED { FORBIDDEN_FOR } else { MISSING_FOR };
        let refusal = Refusal { until: Instant::now() + pause, words: words.to_owned() };
        self.there().remove(name);
        self.refused.lock().insert(name.clone(), refusal);
    }

    fn recall(&self, name: &ShortString) -> Option<Result<(), PublishError>> {
        if let Some(refusal) = self.refused.recall(name) {
            return Some(Err(charge(&refusal.words)));
        }
        // The default exchange is always there, and can't be asked for.
        let there = name.as_str().is_empty() || self.there().contains(name);
        there.then_some(Ok(()))
    }

    fn there(&self) -> MutexGuard<'_, HashSet<ShortString>> {
        self.there.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl Refused {
    fn recall(&self, name: &ShortString) -> Option<Refusal> {
        let mut refused = self.lock();
        let refusal = refused.get(name)?.clone();
        if Instant::now() < refusal.until {
            return Some(refusal);
        }
        refused.remove(name);
        None
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<ShortString, Refusal>> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

fn charge(words: &str) -> PublishError {
    PublishError::new(Verdict::Charge, format!("the broker said: {words}"))
}
