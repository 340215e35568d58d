//! RabbitMQ, by AMQP 0-9-1 through `lapin`.
//!
//! | module | what it does |
//! |---|---|
//! | `rendering` | a message as AMQP properties; refuses what the protocol can't carry |
//! | `link` | one connection: opened, watched, given up |
//! | `exchanges` | passive look-up on a channel of its own |
//! | `topology` | what an operator declared, made where it is absent |
//! | `publisher` | the one task that publishes on a link, and collects its confirms |
//! | `returns` | which message came back: `lapin`'s own pairing can't be relied on |
//! | `closure` | what a channel or connection closed by the broker means |
//!
//! `lapin` can recover connections by itself. That is off: it would publish on a channel
//! whose confirms begin anew, and the relay must know that the old ones are lost.

mod closure;
mod exchanges;
mod link;
mod publisher;
mod rendering;
mod returns;
mod topology;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Mutex, oneshot};
use tokio::time::Instant;

use crate::config::secret::SecretUri;
use crate::config::tree::Declare;
use crate::ids::SinkName;
use crate::sink::cloud_events::CloudEvents;
use crate::sink::rabbitmq::exchanges::Refused;
use crate::sink::rabbitmq::link::{Link, State};
use crate::sink::rabbitmq::publisher::Request;
use crate::sink::slot::Slot;
use crate::sink::{Message, PublishError, Sink, SinkDown, Verdict};

/// What an operator decides about a RabbitMQ sink.
#[derive(Clone, Debug)]
pub struct RabbitMqSettings {
    /// The sink's name; brokers show it among their connections.
    pub name: SinkName,
    /// `amqp://user:password@host:5672/vhost`, or `amqps`, verified against the system's
    /// certificates or those in `SSL_CERT_FILE`.
    pub uri: SecretUri,
    /// Whether a message that no queue takes is a failure.
    pub mandatory: bool,
    /// Limit of one publish, and of one connection attempt.
    pub timeout: Duration,
    /// Exchanges, queues and bindings to make where they are absent.
    pub declare: Declare,
    /// Whether and how messages are CloudEvents.
    pub cloud_events: Option<CloudEvents>,
}

impl RabbitMqSettings {
    /// The defaults of the configuration.
    pub fn new(name: &str, uri: &str) -> Self {
        Self {
            name: name.into(),
            uri: uri.into(),
            mandatory: true,
            timeout: Duration::from_secs(10),
            declare: Declare::default(),
            cloud_events: None,
        }
    }
}

/// A RabbitMQ broker, or cluster, behind one URI.
#[derive(Debug)]
pub struct RabbitMq {
    settings: RabbitMqSettings,
    /// The link in use; `None` before the first probe and after [`close`](Sink::close).
    link: Slot<Link>,
    /// Held while a link is being opened.
    opening: Mutex<()>,
    refused: Arc<Refused>,
}

impl RabbitMq {
    /// A sink that connects at its first probe.
    ///
    /// # Errors
    ///
    /// A URI that is none of AMQP's, in words that don't repeat it.
    pub fn new(settings: RabbitMqSettings) -> Result<Self, String> {
        link::check_uri(&settings.uri)?;
        Ok(Self {
            settings,
            link: Slot::default(),
            opening: Mutex::new(()),
            refused: Arc::default(),
        })
    }

    /// Whether there is such an exchange, by a passive look.
    ///
    /// # Errors
    ///
    /// [`Verdict::Charge`] where it is missing, else it could not be asked for.
    pub async fn look_up(&self, exchange: &str) -> Result<(), PublishError> {
        let Some(link) = self.link.link() else { return Err(self.down(None)) };
        let exchange = rendering::short("exchange", exchange.to_owned())?;
        let exchanges = link.exchanges();
        match tokio::time::timeout(self.settings.timeout, exchanges.look_up(&exchange)).await {
            Ok(found) => found,
            Err(_) => {
                let why = format!("no answer within {:?}", self.settings.timeout);
                Err(PublishError::new(Verdict::Down, why))
            }
        }
    }

    async fn deliver(
        &self,
        message: Message,
        link: &Link,
        until: Instant,
    ) -> Result<(), PublishError> {
        let rendered =
            rendering::render(message, self.settings.cloud_events.as_ref(), link.frame_max())?;
        let exchanges = link.exchanges();
        let looking_up = exchanges.look_up(&rendered.exchange);
        match tokio::time::timeout_at(until, looking_up).await {
            Ok(found) => found?,
            Err(_) => {
                let limit = self.settings.timeout;
                let why = format!("the exchange's look-up was not answered within {limit:?}");
                link.retire(SinkDown::new(&why));
                return Err(PublishError::new(Verdict::Down, why));
            }
        }
        let (reply, answer) = oneshot::channel();
        let request = Request { rendered, mandatory: self.settings.mandatory, reply };
        if link.hand_over(request).is_err() {
            // The link looks sound still, and nothing will go over it again.
            link.retire(SinkDown::new("its publisher has ended"));
            return Err(self.down(Some(link)));
        }
        let answer = async {
            tokio::select! {
                biased;
                answer = answer => answer,
                // The broker reads nothing for now, or has read it and will answer. Neither
                // is the record's fault, nor a lost connection.
                down = link.blocked() => Ok(Err(PublishError::new(Verdict::Down, down))),
            }
        };
        match tokio::time::timeout_at(until, answer).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) => {
                let why = "the connection ended before the confirm";
                Err(PublishError::new(Verdict::Unknown, why))
            }
            Err(_) => {
                let why = format!("no confirm within {:?}", self.settings.timeout);
                // A channel that owes a confirm is not used again: what it may still
                // answer belongs to a publish that nobody waits for.
                link.retire(SinkDown::new(&why));
                Err(PublishError::new(Verdict::Unknown, why))
            }
        }
    }

    fn down(&self, link: Option<&Link>) -> PublishError {
        let why = match link.map(Link::state) {
            Some(State::Down(down) | State::Blocked(down)) => down.detail,
            Some(State::Up) | None => "not connected".to_owned(),
        };
        PublishError::new(Verdict::Down, why)
    }
}

impl Sink for RabbitMq {
    async fn publish(&self, message: Message) -> Result<(), PublishError> {
        let until = Instant::now() + self.settings.timeout;
        let Some(link) = self.link.link() else { return Err(self.down(None)) };
        if link.state() != State::Up {
            return Err(self.down(Some(&link)));
        }
        self.deliver(message, &link, until).await
    }

    async fn probe(&self) -> Result<(), SinkDown> {
        let _opening = self.opening.lock().await;
        if let Some(link) = self.link.link() {
            match link.state() {
                State::Up if link.answers(self.settings.timeout).await => return Ok(()),
                // The same connection goes on once the broker lets it.
                State::Blocked(down) => return Err(down),
                State::Up | State::Down(_) => {
                    self.link.take();
                }
            }
        }
        let link = Link::open(&self.settings, &self.refused).await?;
        self.link.put(link);
        Ok(())
    }

    async fn lost(&self) -> SinkDown {
        self.link.lost().await
    }

    async fn close(&self) {
        let link = self.link.take();
        if let Some(link) = link {
            link.close(self.settings.timeout).await;
        }
    }
}
