//! RabbitMQ, by AMQP 0-9-1 through `lapin`.
//!
//! | module | what it does |
//! |---|---|
//! | `rendering` | a message as AMQP properties; refuses what the protocol can't carry |
//! | `link` | one connection: opened, watched, given up |
//! | `exchanges` | passive look-up on a channel of its own |
//! | `replacement` | another link in place of one on which the broker says nothing |
//! | `topology` | what an operator declared, made where it is absent |
//! | `publisher` | the one task that publishes on a link, and collects its confirms |
//! | `returns` | which message came back: `lapin`'s own pairing can't be relied on |
//! | `closure` | what a channel or connection closed by the broker means |
//! | `refusals` | which targets the broker has refused: they are not sent to for a while |
//! | `trial` | one message to a target that was forbidden, on a channel of its own |
//!
//! `lapin` can recover connections by itself. That is off: it would publish on a channel
//! whose confirms restart at 1, and the relay must know that the old ones are lost.

mod closure;
pub mod config;
mod exchanges;
mod left_behind;
mod link;
mod link_state;
mod publisher;
mod refusals;
mod rendering;
mod replacement;
mod returns;
mod topology;
mod trial;

use std::future::Future;
use std::sync::Arc;

use lapin::types::ShortString;
use lapin::uri::{AMQPScheme, AMQPUri};
use postrider_relay::sink::{Message, PublishError, PublishFailure, Sink, SinkDown};
use postrider_settings::Rules;
use postrider_settings::secret::read_file;
use tokio::sync::{Mutex, Semaphore, oneshot};
use tokio::time::Instant;

use crate::config::{ConnectionHelp, DefaultAddress, SinkConfig, SinkSettings};
use crate::pulse::Silent;
use crate::rabbitmq::config::Declare;
pub use crate::rabbitmq::config::{RabbitMqConfig, RabbitMqSettings};
use crate::rabbitmq::left_behind::LeftBehind;
use crate::rabbitmq::link::Link;
use crate::rabbitmq::link_state::LinkState;
use crate::rabbitmq::publisher::Request;
use crate::rabbitmq::refusals::{Leave, Refusals};
use crate::rabbitmq::rendering::Rendered;
use crate::slot::{Link as _, Slot};

/// Channels on which targets prove themselves at a time: a broker allows some thousand a connection.
const TRIALS: usize = 64;

const LEFT_BEHIND: &str = "the broker says nothing on the connection that the sink had";

/// A RabbitMQ broker, or cluster, behind one URI.
#[derive(Debug)]
pub struct RabbitMq {
    settings: RabbitMqSettings,
    /// Whether another connection may take the place of one on which the broker is silent. Not where a key
    /// has several unconfirmed messages: they keep their order on one connection.
    replaces: bool,
    /// The link in use; `None` before the first probe and after [`close`](Sink::close).
    link: Slot<Link>,
    /// Held while a link is being opened.
    opening: Mutex<()>,
    left_behind: std::sync::Mutex<LeftBehind>,
    refusals: Arc<Refusals>,
    /// Room for channels on which targets prove themselves.
    trials: Semaphore,
}

impl RabbitMq {
    /// A sink that connects at its first probe.
    ///
    /// # Errors
    ///
    /// A URI that is none of AMQP's, in words that don't repeat it.
    pub fn new(settings: RabbitMqSettings) -> Result<Self, String> {
        settings.own.parsed_uri()?;
        Ok(Self {
            replaces: settings.delivery.key_window == 1,
            settings,
            link: Slot::default(),
            opening: Mutex::default(),
            left_behind: std::sync::Mutex::default(),
            refusals: Arc::default(),
            trials: Semaphore::new(TRIALS),
        })
    }

    /// Whether there is such an exchange, by a passive look.
    ///
    /// # Errors
    ///
    /// [`PublishFailure::Retryable`] where it is missing, else it could not be asked for.
    pub async fn look_up(&self, exchange: &str) -> Result<(), PublishError> {
        let Some(link) = self.link.link() else { return Err(self.down(None)) };
        let exchange = rendering::short("exchange", exchange.to_owned())?;
        let exchanges = link.exchanges();
        match tokio::time::timeout(self.settings.delivery.timeout, exchanges.look_up(&exchange))
            .await
        {
            Ok(found) => found,
            Err(_) => {
                let why = format!("no answer within {:?}", self.settings.delivery.timeout);
                Err(PublishError::new(PublishFailure::SinkDown, why))
            }
        }
    }

    /// The link in use, if it can be published on.
    fn sound_link(&self) -> Result<Arc<Link>, PublishError> {
        match self.link.link() {
            Some(link) if link.state() == LinkState::Up => Ok(link),
            link => Err(self.down(link.as_deref())),
        }
    }

    /// The link in use, once it knows the exchange. Until then nothing is handed over.
    async fn link_to(
        &self,
        exchange: &ShortString,
        until: Instant,
    ) -> Result<Arc<Link>, PublishError> {
        loop {
            let link = self.sound_link()?;
            let exchanges = link.exchanges();
            let looking_up = exchanges.look_up(exchange);
            match self.prepare(&link, "the exchange's look-up", looking_up, until).await {
                Ok(found) => found?,
                // Less than a fair time is left for another one.
                Err(error)
                    if link.is_left_behind()
                        && until < Instant::now() + self.settings.delivery.timeout / 2 =>
                {
                    return Err(PublishError { failure: PublishFailure::Abandoned, ..error });
                }
                Err(_) if link.is_left_behind() => continue,
                Err(error) => return Err(error),
            }
            return Ok(link);
        }
    }

    async fn deliver(
        &self,
        link: &Link,
        rendered: Rendered,
        until: Instant,
    ) -> Result<(), PublishError> {
        match self.refusals.leave(&rendered.target) {
            Leave::Granted => {
                let hand_over = |request| link.hand_over(request);
                self.publish_on(link, hand_over, rendered, until).await
            }
            Leave::OnTrial => self.try_out(link, rendered, until).await,
            Leave::Refused(error) => Err(error),
            Leave::Unproven(trial) => self.prove(&trial, link, rendered, until).await,
        }
    }

    /// Publishes a message to a target of which it is not known whether it is permitted: the first
    /// one on a channel of its own, those that came meanwhile behind it, in their order.
    async fn prove(
        &self,
        trial: &Mutex<()>,
        link: &Link,
        rendered: Rendered,
        until: Instant,
    ) -> Result<(), PublishError> {
        let target = &rendered.target;
        let waiting = async {
            let trial = trial.lock().await;
            match self.refusals.leave(target) {
                Leave::Refused(error) => Err(error),
                Leave::Granted => Ok((trial, None)),
                // The semaphore is never closed.
                Leave::Unproven(_) | Leave::OnTrial => {
                    Ok((trial, self.trials.acquire().await.ok()))
                }
            }
        };
        let (trial, room) = tokio::select! {
            allowed = waiting => allowed?,
            down = link.lost() => return Err(PublishError::new(PublishFailure::SinkDown, down)),
            () = link.left_behind() => return Err(PublishError::new(PublishFailure::SinkDown, LEFT_BEHIND)),
            () = tokio::time::sleep_until(until) => {
                let why = "the messages that try its destination first are not confirmed";
                return Err(PublishError::new(PublishFailure::Unconfirmed, why));
            }
        };
        // Less than a fair time is left: a link that does not answer within it is not at fault.
        if until < Instant::now() + self.settings.delivery.timeout / 2 {
            let why = "the messages that tried its destination first took too long";
            return Err(PublishError::new(PublishFailure::Unconfirmed, why));
        }
        if room.is_some() {
            let mut trying = std::pin::pin!(self.try_out(link, rendered, until));
            tokio::select! {
                biased;
                tried = &mut trying => return tried,
                // Another link can try it.
                () = link.left_behind() => drop(trial),
            }
            return trying.await;
        }
        let hand_over = |request| {
            let handed_over = link.hand_over(request);
            drop(trial);
            handed_over
        };
        self.publish_on(link, hand_over, rendered, until).await
    }

    /// Publishes a message to a target that was forbidden.
    async fn try_out(
        &self,
        link: &Link,
        rendered: Rendered,
        until: Instant,
    ) -> Result<(), PublishError> {
        let trial = self.prepare(link, "a new channel", link.trial(), until).await?;
        let trial = trial.map_err(|error| PublishError::new(PublishFailure::SinkDown, error))?;
        let target = rendered.target.clone();
        let hand_over = |request| trial.hand_over(request);
        let result = self.publish_on(link, hand_over, rendered, until).await;
        let unanswered = [
            PublishFailure::Indeterminate,
            PublishFailure::ConnectionEnded,
            PublishFailure::Unconfirmed,
            PublishFailure::SinkDown,
        ];
        let answered = !result.as_ref().is_err_and(|error| unanswered.contains(&error.failure));
        if answered && !trial.was_refused() {
            self.refusals.permit(&target);
        }
        result
    }

    /// Waits for something that the broker must do before a message can be handed over.
    async fn prepare<T>(
        &self,
        link: &Link,
        what: &str,
        work: impl Future<Output = T>,
        until: Instant,
    ) -> Result<T, PublishError> {
        tokio::select! {
            biased;
            done = work => Ok(done),
            down = link.lost() => Err(PublishError::new(PublishFailure::SinkDown, down)),
            // Nothing was handed over.
            () = link.left_behind() => Err(PublishError::new(PublishFailure::SinkDown, LEFT_BEHIND)),
            () = tokio::time::sleep_until(until) => {
                let why = format!("{what} was not answered within {:?}", self.settings.delivery.timeout);
                link.retire(SinkDown::new(&why));
                Err(PublishError::new(PublishFailure::SinkDown, why))
            }
        }
    }

    /// Publishes a message on one of the link's channels.
    async fn publish_on(
        &self,
        link: &Link,
        hand_over: impl FnOnce(Request) -> Result<(), ()>,
        rendered: Rendered,
        until: Instant,
    ) -> Result<(), PublishError> {
        let _counted = link.count_payload(rendered.payload.len());
        let (reply, answer) = oneshot::channel();
        let request = Request { rendered, mandatory: self.settings.own.mandatory, reply };
        if hand_over(request).is_err() {
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
                down = link.blocked() => Ok(Err(PublishError::new(PublishFailure::SinkDown, down))),
            }
        };
        let handed_over = Instant::now();
        let limit = self.settings.delivery.timeout;
        let answer = link.pulse.answer(answer, limit, until, link.answers(limit));
        let answer = tokio::select! {
            biased;
            answer = answer => answer,
            never = self.watch(link) => match never {},
        };
        let silent = match answer {
            Ok(Ok(answer)) => {
                let is_word = |error: &PublishError| error.failure == PublishFailure::Retryable;
                if answer.as_ref().err().is_none_or(is_word) {
                    link.pulse.beat_for(handed_over);
                }
                return answer;
            }
            Ok(Err(_)) => {
                let why = "the connection ended before the confirm";
                return Err(PublishError::new(PublishFailure::Indeterminate, why));
            }
            Err(silent) => silent,
        };
        let why = format!("no confirm within {limit:?}");
        match silent {
            Silent::Destination => Err(PublishError::new(PublishFailure::Unconfirmed, why)),
            Silent::Broker => {
                // Each message has its own time on a link that nothing follows on.
                if !link.is_left_behind() {
                    link.retire(SinkDown::new(&why));
                }
                // The broker confirmed others for a while. (What one queue owes may make RabbitMQ
                // read no more from the whole connection.)
                let failure = match link.pulse.heard_long_after(handed_over) {
                    true => PublishFailure::Unconfirmed,
                    false => PublishFailure::Indeterminate,
                };
                Err(PublishError::new(failure, why))
            }
        }
    }

    fn down(&self, link: Option<&Link>) -> PublishError {
        let why = match link.map(Link::state) {
            Some(LinkState::Down(down) | LinkState::Blocked(down)) => down.detail,
            Some(LinkState::Up) | None => "not connected".to_owned(),
        };
        PublishError::new(PublishFailure::SinkDown, why)
    }
}

impl SinkConfig for RabbitMqConfig {
    type Sink = RabbitMq;

    const DESTINATION: Option<&'static str> = Some("exchange");

    const CONNECTION_HELP: ConnectionHelp = ConnectionHelp {
        keys: "uri",
        remedy: "start the broker, or change host, port or scheme (amqp, amqps for TLS) of the URI",
    };

    fn validate(settings: &SinkSettings<Self>, rules: &mut Rules) {
        let own = &settings.own;
        rules.within("declare", |rules| own.validate_declarations(rules));
        let Some(uri) = &own.uri else {
            rules.wrong("uri", "is not set; write it as amqp://user:password@host:5672/vhost");
            return;
        };
        if let Err(error) = uri.check(str::parse::<AMQPUri>) {
            rules.wrong("uri", format!("is not an AMQP URI: {error}"));
            return;
        }
        if own.username.is_some() {
            let detail = "uri names a user too; keep one of the two";
            rules.require(!uri.expose().contains('@'), "username", detail);
        }
        if let Some(file) = &own.password_file {
            rules.require(own.username.is_some(), "username", "is not set, and password_file is");
            if let Err(detail) = read_file(file) {
                rules.wrong("password_file", detail);
            }
        }
        if let Some(tls) = &own.tls {
            rules.within("tls", |rules| tls.validate(rules));
            let scheme = uri.expose().parse::<AMQPUri>().map(|uri| uri.scheme);
            let detail = "needs a URI that begins with amqps://, which is TLS";
            rules.require(scheme == Ok(AMQPScheme::AMQPS), "tls", detail);
        }
    }

    /// A warning for each routing key that matches itself alone at a topic exchange: `*` is a word in AMQP,
    /// not a glob.
    fn warnings(&self) -> Vec<String> {
        let is_topic = |name: &str| {
            self.declare.exchanges.iter().any(|it| it.name == name && it.kind == "topic")
        };
        let at_topics = self.declare.bindings.iter().filter(|bound| is_topic(&bound.exchange));
        let literal = at_topics.map(|bound| &bound.routing_key).filter(|key| resembles_glob(key));
        let warnings = literal.map(|key| {
            format!(
                "declare.bindings: the routing key {key:?} matches nothing but itself: at a topic \
                 exchange * is a whole word between dots, and # any number of them"
            )
        });
        warnings.collect()
    }

    fn address(&self) -> DefaultAddress {
        let source = self.cloudevents.then(|| self.cloudevents_source.clone());
        DefaultAddress {
            destination: self.exchange.clone(),
            key: Some(self.routing_key.clone()),
            source,
        }
    }

    fn declared(&self) -> Vec<&str> {
        self.declare.exchanges.iter().map(|exchange| exchange.name.as_str()).collect()
    }

    fn without_declarations(self) -> Self {
        Self { declare: Declare::default(), ..self }
    }

    fn build(settings: SinkSettings<Self>) -> Result<RabbitMq, String> {
        RabbitMq::new(settings)
    }

    async fn look_up(sink: &RabbitMq, exchange: &str) -> Result<(), PublishError> {
        sink.look_up(exchange).await
    }
}

/// Whether `*` or `#` is part of a longer word.
fn resembles_glob(routing_key: &str) -> bool {
    routing_key.split('.').any(|word| word.len() > 1 && word.contains(['*', '#']))
}

impl Sink for RabbitMq {
    async fn publish(&self, message: Message) -> Result<(), PublishError> {
        let until = Instant::now() + self.settings.delivery.timeout;
        let frame_max = self.sound_link()?.frame_max();
        let own = &self.settings.own;
        let event_prefix = own.cloudevents.then_some(own.cloudevents_prefix.as_str());
        let rendered = rendering::render(message, event_prefix, frame_max)?;
        let link = self.link_to(&rendered.target.exchange, until).await?;
        let result = self.deliver(&link, rendered, until).await;
        result.map_err(|error| {
            // The loss of that connection is not the loss of the sink, which has another.
            let is_left = match error.failure {
                PublishFailure::Retryable | PublishFailure::TooLarge | PublishFailure::Rejected => {
                    false
                }
                _ => link.is_left_behind(),
            };
            let failure = if is_left { PublishFailure::Abandoned } else { error.failure };
            PublishError { failure, ..error }
        })
    }

    async fn probe(&self) -> Result<(), SinkDown> {
        let _opening = self.opening.lock().await;
        if let Some(link) = self.link.link() {
            match link.state() {
                LinkState::Up if link.answers(self.settings.delivery.timeout).await => {
                    return Ok(());
                }
                // The same connection goes on once the broker lets it.
                LinkState::Blocked(down) => return Err(down),
                LinkState::Up | LinkState::Down(_) => {
                    self.link.take();
                    link.retire(SinkDown::new("it did not answer a probe"));
                    self.link.emptied(link).await;
                }
            }
        }
        let link = Link::open(&self.settings, &self.refusals).await?;
        self.link.put(link);
        Ok(())
    }

    async fn lost(&self) -> SinkDown {
        self.link.lost().await
    }

    async fn close(&self) {
        let (left_behind, link) = {
            let left_behind = self.left_behind();
            (left_behind.links(), self.link.take())
        };
        left_behind.iter().for_each(|link| link.retire(SinkDown::new("closed")));
        if let Some(link) = link {
            link.close(self.settings.delivery.timeout).await;
        }
    }

    fn is_ready(&self, message: &Message) -> bool {
        let Ok(target) = rendering::target(message.address.clone()) else { return false };
        // A look-up of its exchange would come first.
        let is_known = |link: Arc<Link>| link.exchanges().knows(&target.exchange);
        self.link.link().is_some_and(is_known) && self.refusals.knows_none_of(&target)
    }

    fn replaced_at(&self) -> Option<std::time::Instant> {
        self.left_behind().silent_at
    }

    fn isolated(&self) -> Self {
        let own = self.settings.own.clone().without_declarations();
        Self {
            settings: RabbitMqSettings { own, ..self.settings.clone() },
            replaces: false,
            link: Slot::default(),
            opening: Mutex::default(),
            left_behind: std::sync::Mutex::default(),
            refusals: self.refusals.clone(),
            trials: Semaphore::new(TRIALS),
        }
    }
}
