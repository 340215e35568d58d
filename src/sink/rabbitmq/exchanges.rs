//! Which exchanges there are.
//!
//! A publish to a missing exchange makes RabbitMQ close the channel under every innocent
//! neighbour. So each exchange is looked up first, passively, on a channel of its own.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use lapin::options::ExchangeDeclareOptions;
use lapin::types::{FieldTable, ShortString};
use lapin::{Channel, Connection, ExchangeKind};

use crate::sink::rabbitmq::closure::{self, NOT_FOUND};
use crate::sink::{PublishError, Verdict};

/// How long a missing or forbidden exchange is not asked for again: short beside the
/// first backoff, long enough that a thousand records for it cost one closed channel.
const REMEMBERED: Duration = Duration::from_secs(1);

/// What is known of the exchanges on one connection.
#[derive(Debug, Default)]
pub(super) struct Exchanges {
    known: Mutex<HashMap<ShortString, Known>>,
    channel: tokio::sync::Mutex<Option<Channel>>,
}

#[derive(Clone, Debug)]
enum Known {
    There,
    /// Not to be published to, in the broker's words.
    Closed(Instant, String),
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
    /// [`Verdict::Charge`] where there is none; [`Verdict::Down`] where the broker could not be asked.
    pub(super) async fn look_up(&self, name: &ShortString) -> Result<(), PublishError> {
        // The default exchange is always there, and can't be asked for.
        if name.as_str().is_empty() {
            return Ok(());
        }
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
            self.exchanges.close(name, &words);
            return Err(charge(&words));
        }
        self.exchanges.known().insert(name.clone(), Known::There);
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
    /// The broker refused a publish to it, in these words.
    pub(super) fn close(&self, name: &ShortString, words: &str) {
        let known = Known::Closed(Instant::now() + REMEMBERED, words.to_owned());
        self.known().insert(name.clone(), known);
    }

    fn recall(&self, name: &ShortString) -> Option<Result<(), PublishError>> {
        match self.known().get(name)? {
            Known::There => Some(Ok(())),
            Known::Closed(until, words) if Instant::now() < *until => Some(Err(charge(words))),
            Known::Closed(..) => None,
        }
    }

    fn known(&self) -> MutexGuard<'_, HashMap<ShortString, Known>> {
        self.known.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

fn charge(words: &str) -> PublishError {
    PublishError::new(Verdict::Charge, format!("the broker said: {words}"))
}
