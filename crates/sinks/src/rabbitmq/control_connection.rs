//! The connection for what may close a channel: look-ups, declarations, and trials of single messages.
//!
//! `lapin` (4.12) keeps the error with which the broker closed a channel, and reports it again for the next
//! channel of the same number, which never opens. So no number is used twice here: when each one was used, another
//! connection takes the place of this one, which ends with its last channel. On the connections that publish,
//! each channel stays open as long as the connection.

use std::sync::Arc;
use std::time::Duration;

use lapin::options::{
    BasicPublishOptions, BasicQosOptions, ConfirmSelectOptions, QueueDeclareOptions,
};
use lapin::types::{AMQPValue, FieldTable, ShortString};
use lapin::{BasicProperties, Channel, ConnectionStatus};
#[cfg(doc)]
use postrider_relay::sink::PublishFailure;
use postrider_relay::sink::{PublishError, SinkDown};
use postrider_store::failpoint;
use tokio::sync::{Mutex, MutexGuard, Semaphore};

use crate::rabbitmq::broker_error::{self, ACCESS_REFUSED, NOT_FOUND, PRECONDITION_FAILED};
use crate::rabbitmq::config::RabbitMqSettings;
use crate::rabbitmq::connection::Connection;
use crate::rabbitmq::refused_targets::refused;

/// How often the control connection is checked while a look-up waits.
const CHECK_INTERVAL: Duration = Duration::from_millis(250);

/// A header for exchanges of the type `x-recent-history`.
const NO_STORE: &str = "x-recent-history-no-store";

/// The limit of trial channels at a time: a broker may limit the channels of a user.
const MAX_TRIAL_CHANNELS: usize = 16;

/// One connection of a sink, next to those that publish. It is opened when it is needed.
#[derive(Debug)]
pub(super) struct ControlConnection {
    settings: RabbitMqSettings,
    /// Absent while a channel is being opened: a caller that gives up leaves none behind.
    current: Mutex<Option<Current>>,
    /// An open channel in transaction mode without an unanswered request. Absent while there is a request on it:
    /// the answer to one whose caller gave up must not count for the next one.
    idle_channel: Mutex<Option<Channel>>,
    /// The state of the latest connection, also while a channel is being opened.
    status: parking_lot::Mutex<Option<ConnectionStatus>>,
    /// For each trial.
    pub(super) trial_permits: Semaphore,
}

#[derive(Debug)]
struct Current {
    connection: Connection,
    unused_channels: u16,
}

impl ControlConnection {
    /// Creates one that is not connected yet.
    pub(super) fn new(settings: RabbitMqSettings) -> Arc<Self> {
        let (current, idle_channel) = (Mutex::default(), Mutex::default());
        let trial_permits = Semaphore::new(MAX_TRIAL_CHANNELS);
        let status = parking_lot::Mutex::default();
        Arc::new(Self { settings, current, idle_channel, status, trial_permits })
    }

    /// Makes sure that look-ups are answered, by another connection if necessary.
    ///
    /// # Errors
    ///
    /// The broker does not answer, has blocked the connection, or permits no connection or channel.
    pub(super) async fn probe(&self) -> Result<(), SinkDown> {
        let limit = self.settings.delivery.timeout;
        let probing = async {
            let mut idle_channel = self.idle_channel.lock().await;
            let channel = match idle_channel.take() {
                Some(channel) if answers(&channel, limit / 4).await => channel,
                Some(_) => {
                    self.discard();
                    self.open_look_up_channel().await?
                }
                // The broker has closed it, with a reply.
                None => self.open_look_up_channel().await?,
            };
            *idle_channel = Some(channel);
            Ok(())
        };
        tokio::time::timeout(limit, self.unless_blocked(probing)).await.unwrap_or_else(|_| {
            self.discard();
            let down = SinkDown::new(format!("no response within {limit:?}"));
            Err(down.preceded_by(broker_error::cannot_connect(&self.settings.own)))
        })
    }

    /// Waits until no other look-up is under way.
    pub(super) async fn begin_look_up(&self) -> LookUp<'_> {
        LookUp { control: self, idle_channel: self.idle_channel.lock().await }
    }

    /// Makes sure that a queue exists, as far as the broker allows a look-up.
    ///
    /// # Errors
    ///
    /// [`PublishFailure::Retryable`] if there is none; [`PublishFailure::SinkDown`] if the look-up fails.
    pub(super) async fn look_up_queue(&self, queue: ShortString) -> Result<(), PublishError> {
        let channel = self.open_channel().await?;
        let options = QueueDeclareOptions { passive: true, ..Default::default() };
        let looked_up = channel.queue_declare(queue, options, FieldTable::default()).await;
        let Err(error) = looked_up else { return Ok(()) };
        match broker_error::reply(&error) {
            Some((ACCESS_REFUSED, _)) => Ok(()),
            Some((NOT_FOUND, reply_text)) => Err(refused(&reply_text)),
            _ => Err(SinkDown::new(broker_error::text(&error)).into()),
        }
    }

    /// Opens a channel that no other request uses.
    ///
    /// # Errors
    ///
    /// The connection cannot be opened, or no channel on it.
    pub(super) async fn open_channel(&self) -> Result<Channel, SinkDown> {
        let mut place = self.current.lock().await;
        let is_usable = |current: &Current| {
            current.unused_channels > 0 && current.connection.inner().status().connected()
        };
        let mut current = match place.take() {
            Some(current) if is_usable(&current) => current,
            // (Its future is large, and part of that of each publish.)
            _ => Box::pin(self.connect()).await?,
        };
        current.unused_channels -= 1;
        let channel = current.connection.open_channel().await;
        let channel = channel.map_err(|error| self.failed(&error))?;
        *place = Some(current);
        Ok(channel)
    }

    async fn open_look_up_channel(&self) -> Result<Channel, SinkDown> {
        let channel = self.open_channel().await?;
        channel.tx_select().await.map_err(|error| self.failed(&error))?;
        Ok(channel)
    }

    /// Asks whether messages to an exchange are accepted by one that the broker always refuses: its expiration is not a
    /// number, which the broker checks after exchange and permission. `lapin` reports the reply as the message's confirm,
    /// whenever it arrives. (Not the first way to ask, since the broker logs an error and closes a channel each time.)
    async fn provoke_reply(&self, exchange: &ShortString) -> Result<LookedUp, SinkDown> {
        let channel = self.open_channel().await?;
        let refusing = async {
            channel.confirm_select(ConfirmSelectOptions::default()).await?;
            let properties = BasicProperties::default().with_expiration("none".into());
            let options = BasicPublishOptions::default();
            let routing_key = ShortString::default();
            let publish =
                channel.basic_publish(exchange.clone(), routing_key, options, &[], properties);
            publish.await?.await
        };
        let Err(error) = refusing.await else { return Ok(LookedUp::Accepted) };
        match broker_error::reply(&error) {
            Some((PRECONDITION_FAILED, _)) => Ok(LookedUp::Accepted),
            Some((code, reply_text)) => Ok(LookedUp::Refused { code, reply_text }),
            None => Err(SinkDown::new(broker_error::text(&error))),
        }
    }

    /// Waits for the result of a request until the broker blocks the connection.
    async fn unless_blocked<T>(
        &self,
        request: impl Future<Output = Result<T, SinkDown>>,
    ) -> Result<T, SinkDown> {
        let blocked = async {
            let is_blocked = |status: &ConnectionStatus| status.connected() && status.blocked();
            while !self.status.lock().as_ref().is_some_and(is_blocked) {
                tokio::time::sleep(CHECK_INTERVAL).await;
            }
        };
        tokio::select! {
            biased;
            () = blocked => Err(SinkDown::new("the broker has blocked the connection")),
            result = request => result,
        }
    }

    /// Looks up on another connection from now on.
    pub(super) fn renew(&self) {
        // A look-up that holds the lock has taken the channel.
        if let Ok(mut idle_channel) = self.idle_channel.try_lock() {
            idle_channel.take();
        }
        self.discard();
    }

    /// Opens channels on another connection from now on. This one ends with its last channel.
    fn discard(&self) {
        // A caller that holds the lock has taken it.
        if let Ok(mut current) = self.current.try_lock() {
            current.take();
        }
    }

    /// Closes the connection gracefully.
    pub(super) async fn close(&self, limit: Duration) {
        let closing = async {
            self.idle_channel.lock().await.take();
            let current = self.current.lock().await.take();
            if let Some(Current { connection, .. }) = current {
                let _ = connection.inner().close(200, "OK".into()).await;
            }
        };
        // A broker that does not answer sees the end of the connection in any case.
        let _ = tokio::time::timeout(limit, closing).await;
    }

    async fn connect(&self) -> Result<Current, SinkDown> {
        let name = format!("postrider {} (control)", self.settings.name);
        let connection = Connection::open(&self.settings, &name).await;
        let connection = connection.map_err(|error| self.failed(&error))?;
        *self.status.lock() = Some(connection.inner().status().clone());
        let unused_channels = connection.channel_max();
        Ok(Current { connection, unused_channels })
    }

    fn failed(&self, error: &lapin::Error) -> SinkDown {
        broker_error::connect_error(error, &self.settings.own)
    }
}

/// What a look-up found out about an exchange.
#[derive(Debug)]
pub(super) enum LookedUp {
    /// Messages to it are accepted.
    Accepted,
    /// The broker refused the message, with this reply.
    Refused { code: u16, reply_text: String },
}

/// The right to one look-up: one at a time, so that records for a missing exchange close one channel.
pub(super) struct LookUp<'a> {
    control: &'a ControlConnection,
    idle_channel: MutexGuard<'a, Option<Channel>>,
}

impl LookUp<'_> {
    /// Asks whether messages to an exchange are accepted: the broker checks exchange and permission when one is
    /// published in a transaction, and queues it at the commit, which never comes. (An exchange that stores messages
    /// when it routes them gets a header against that.)
    ///
    /// # Errors
    ///
    /// The connection cannot be opened, or no channel on it, or the broker has blocked it.
    pub(super) async fn run(mut self, exchange: &ShortString) -> Result<LookedUp, SinkDown> {
        let control = self.control;
        // (In a box, since it is part of the future of each publish.)
        let asking = Box::pin(async {
            let idle = self.idle_channel.take().filter(|channel| channel.status().connected());
            let channel = match idle {
                Some(channel) => channel,
                None => control.open_look_up_channel().await?,
            };
            let Err(error) = self.ask(channel, exchange).await else {
                return Ok(LookedUp::Accepted);
            };
            match broker_error::reply(&error) {
                Some((code, reply_text)) => Ok(LookedUp::Refused { code, reply_text }),
                // The connection has ended since the last look-up, or the reply came too early.
                None => control.provoke_reply(exchange).await,
            }
        });
        control.unless_blocked(asking).await
    }

    async fn ask(&mut self, channel: Channel, exchange: &ShortString) -> lapin::Result<()> {
        let mut headers = FieldTable::default();
        headers.insert(NO_STORE.into(), AMQPValue::Boolean(true));
        let options = BasicPublishOptions::default();
        let properties = BasicProperties::default().with_headers(headers);
        // Which routing keys a topic permission covers, their messages find out.
        let routing_key = ShortString::default();
        channel.basic_publish(exchange.clone(), routing_key, options, &[], properties).await?;
        failpoint::hit("rabbitmq::look_up_sent");
        // On a channel that the broker has closed by now, `lapin` reports its state and not the broker's reply. (A
        // request that is sent together with the message would overtake it: `lapin` sends messages last.)
        channel.tx_rollback().await?;
        // After an error the broker has closed it.
        *self.idle_channel = Some(channel);
        Ok(())
    }
}

/// Returns whether the broker answers on a channel.
pub(super) async fn answers(channel: &Channel, limit: Duration) -> bool {
    // Without consumers it has no effect.
    let request = channel.basic_qos(0, BasicQosOptions::default());
    matches!(tokio::time::timeout(limit, request).await, Ok(Ok(())))
}
