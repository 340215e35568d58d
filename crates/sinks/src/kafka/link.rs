//! The producers in use: opened, watched, given up. Lost ones are never revived; the next probe makes
//! others.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use postrider_relay::sink::{PublishError, PublishFailure, SinkDown};
use rdkafka::error::KafkaError;
use rdkafka::types::RDKafkaErrorCode;
use tokio::sync::{OnceCell, watch};
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;
use tracing::debug;

use crate::kafka::client::{Client, Fatal, Report, blocking};
use crate::kafka::config::KafkaSettings;
use crate::kafka::gathering::Gathering;
use crate::kafka::partitions::Partitions;
use crate::kafka::properties;
use crate::kafka::rendering::Rendered;
use crate::kafka::report;
use crate::kafka::statistics::KafkaMetrics;
use crate::kafka::topics::Topics;
use crate::pulse::{Pulse, Silent};
use crate::slot::{self, Link as _};

/// How long a producer that has lost a connection may take to be answered on one before it is
/// given up: a broker closes what is idle, and another connection is there within milliseconds.
const DOUBT: Duration = Duration::from_secs(1);

/// How long the reports of a producer that was given up are waited for.
const PURGED: Duration = Duration::from_secs(1);

/// How long until a full queue is tried again though nothing was reported: a report comes a
/// moment before its room is free, and the last one of all has none behind it.
const ROOM: Duration = Duration::from_millis(5);

/// How often the statistics of an isolated producer are read, for the ends of its connections.
const STATISTICS: &str = "200";

/// Pause before a gathering producer that could not be made is tried again.
const RETRY_PAUSE: Duration = Duration::from_secs(30);

/// A producer, and when it was last heard from.
#[derive(Debug)]
struct Producer {
    client: Arc<Client>,
    pulse: Pulse,
}

impl Producer {
    fn new(client: Arc<Client>) -> Self {
        Self { client, pulse: Pulse::new() }
    }
}

/// The producers of a link that share its fate.
#[derive(Debug)]
struct Producers {
    /// Sends each record at once.
    prompt: Producer,
    /// Lets records wait for others; made when there are many.
    gathering: OnceLock<Producer>,
}

impl Producers {
    /// Gives up everything that is not confirmed.
    fn purge(&self) {
        self.prompt.client.purge();
        if let Some(gathering) = self.gathering.get() {
            gathering.client.purge();
        }
    }
}

/// The producers in use, and what is known of their topics.
#[derive(Debug)]
pub(super) struct Link {
    settings: KafkaSettings,
    /// `None` for an isolated sink.
    metrics: Option<Arc<KafkaMetrics>>,
    producers: Arc<Producers>,
    /// Whether the gathering producer is made, or is being made.
    is_gathering_asked: Arc<AtomicBool>,
    /// Sends one record a batch, made when it is first needed.
    single: OnceCell<Producer>,
    topics: Topics,
    partitions: Arc<Partitions>,
    /// Held by a record that waits for room in the queue: records of one key enter it in their order.
    entrance: tokio::sync::Mutex<()>,
    down: watch::Sender<Option<SinkDown>>,
    /// What watches over the producers.
    watches: Mutex<Vec<AbortOnDropHandle<()>>>,
}

impl slot::Link for Link {
    async fn lost(&self) -> SinkDown {
        let mut down = self.down.subscribe();
        let lost = down.wait_for(Option::is_some).await;
        // The sender lives as long as this link.
        let lost = lost.ok().and_then(|down| down.clone());
        lost.unwrap_or_else(|| SinkDown::new("closed"))
    }
}

impl Link {
    /// Makes a producer and waits until a broker answers it, within the sink's timeout.
    ///
    /// # Errors
    ///
    /// [`SinkDown`]: no broker, a wrong password, a certificate that is not trusted; topics that
    /// can't be made.
    pub(super) async fn open(
        settings: &KafkaSettings,
        metrics: Option<Arc<KafkaMetrics>>,
        partitions: Arc<Partitions>,
    ) -> Result<Self, SinkDown> {
        let mut config = properties::client_config(settings);
        let until = Instant::now() + settings.delivery.timeout;
        if metrics.is_none() {
            config.set("statistics.interval.ms", STATISTICS);
        }
        let figures = metrics.as_ref().map(KafkaMetrics::producer);
        let client = Arc::new(Client::make(config.clone(), figures, until).await?);
        // Having the first answer it asks to be a producer; by the second it mostly knows whether
        // it may.
        for _ in 0..2 {
            until_answered(client.clone(), settings.delivery.timeout).await.map_err(|down| {
                down.preceded_by(format!("cannot reach {}: ", settings.own.bootstrap()))
            })?;
        }
        Topics::declare(settings, &config, &client).await?;
        let (down, _) = watch::channel(None);
        let topics = Topics::new(client.clone(), partitions.clone());
        let prompt = Producer::new(client.clone());
        let producers = Arc::new(Producers { prompt, gathering: OnceLock::new() });
        let watch = tokio::spawn(watch_over(client, producers.clone(), down.clone()));
        Ok(Self {
            settings: settings.clone(),
            metrics,
            producers,
            is_gathering_asked: Arc::default(),
            topics,
            partitions,
            single: OnceCell::new(),
            entrance: tokio::sync::Mutex::default(),
            down,
            watches: Mutex::new(vec![AbortOnDropHandle::new(watch)]),
        })
    }

    /// Whether it is that of an isolated sink.
    fn is_isolated(&self) -> bool {
        self.metrics.is_none()
    }

    /// Why nothing may be published on it, if so.
    pub(super) fn trouble(&self) -> Option<SinkDown> {
        self.down.borrow().clone()
    }

    /// Whether a broker answers.
    ///
    /// # Errors
    ///
    /// Why none does.
    pub(super) async fn answers(&self) -> Result<(), SinkDown> {
        let client = &self.producers.prompt.client;
        client.events.forget_losses();
        until_answered(client.clone(), self.settings.delivery.timeout).await
    }

    /// No further publish; those under way end now.
    pub(super) fn retire(&self, why: SinkDown) {
        retire(&self.down, &self.producers, why);
    }

    /// Publishes one record and waits for its confirm, at most until then. `gathering` is given where
    /// it may wait for others first.
    ///
    /// # Errors
    ///
    /// As [`Sink::publish`](postrider_relay::sink::Sink::publish) says.
    pub(super) async fn publish(
        &self,
        record: &Rendered,
        gathering: Option<&Gathering>,
        until: Instant,
    ) -> Result<(), PublishError> {
        tokio::select! {
            there = self.topics.look_up(&record.topic, until) => there?,
            down = self.lost() => return Err(PublishError::new(PublishFailure::SinkDown, down)),
        }
        let prompt = &self.producers.prompt;
        let producer = gathering.and_then(|_| self.gathering()).unwrap_or(prompt);
        let mut result = self.send(producer, record, until).await?;
        if let Err(error) = &result
            && report::may_mean_a_neighbour(error)
        {
            if let Some(gathering) = gathering {
                gathering.rest();
            }
            // Alone in its batch it can only be itself that the broker means.
            result = self.send(self.single(until).await?, record, until).await?;
        }
        result.map_err(|error| {
            if report::doubts_topic(&error) {
                self.topics.forget(&record.topic);
            }
            let judged = report::judge(&error, &record.topic);
            let fatal = self.fatal();
            if let Some(fatal) = &fatal {
                self.retire(fatal.down());
            }
            match (judged.failure, self.trouble()) {
                // That it was purged says less than why.
                (PublishFailure::Indeterminate, Some(down)) => {
                    let failure = fatal.map(|fatal| report::of_fatal(fatal.code));
                    PublishError::new(failure.unwrap_or(PublishFailure::Indeterminate), down)
                }
                _ => judged,
            }
        })
    }

    /// What has ended one of its producers for good.
    fn fatal(&self) -> Option<Fatal> {
        let Producers { prompt, gathering } = &*self.producers;
        let of_gathering = || gathering.get()?.client.fatal();
        let of_single = || self.single.get()?.client.fatal();
        prompt.client.fatal().or_else(of_gathering).or_else(of_single)
    }

    /// Hands over, and waits for the broker's report; the outer error says that there was none.
    async fn send(
        &self,
        producer: &Producer,
        record: &Rendered,
        until: Instant,
    ) -> Result<Result<(), KafkaError>, PublishError> {
        let Producer { client, pulse } = producer;
        let disconnects = || {
            let leads = |broker| self.partitions.leads(broker, &record.topic, &record.key);
            if self.is_isolated() { client.events.disconnects(leads) } else { 0 }
        };
        let disconnects_before = disconnects();
        let never_sent = |why: &str| PublishError::new(PublishFailure::SinkDown, why);
        let entered = tokio::select! {
            biased;
            // What entered now would be in no purge.
            down = self.lost() => return Err(never_sent(&down.detail)),
            entered = tokio::time::timeout_at(until, self.enter(client, record)) => entered,
        };
        let report = match entered {
            Ok(Ok(report)) => report,
            // The producer's own word, before anything is sent: no neighbour is meant.
            Ok(Err(KafkaError::MessageProduction(RDKafkaErrorCode::MessageSizeTooLarge))) => {
                let limit = properties::largest(&self.settings);
                let detail =
                    format!("with key and headers it is above message.max.bytes, which is {limit}");
                return Err(PublishError::new(PublishFailure::TooLarge, detail));
            }
            Ok(Err(error)) => return Ok(Err(error)),
            Err(_) => return Err(never_sent("the producer's queue stayed full")),
        };
        postrider_store::failpoint::hit("sink::after_handover");
        let given_up = async {
            let down = self.lost().await;
            // A confirm that is on its way to us counts; the purge reports the rest.
            tokio::time::sleep(PURGED).await;
            down
        };
        let report = async {
            match report.await {
                // The time of this record is up. That says nothing about other topics.
                Ok(Err(error)) if report::is_timeout(&error) => std::future::pending().await,
                other => other,
            }
        };
        let outcome = async {
            tokio::select! {
                biased;
                report = report => match report {
                    Ok(result) => Ok(result),
                    Err(_) => Err(unknown("the producer was given up before the confirm")),
                },
                down = given_up => Err(unknown(&down.detail)),
            }
        };
        let limit = self.settings.delivery.timeout;
        let question = async {
            let asked = until_answered(client.clone(), limit).await;
            asked.is_ok()
        };
        let why = format!("no confirm within {limit:?}");
        match pulse.answer(outcome, limit, until, question).await {
            Ok(outcome) => {
                if matches!(outcome, Ok(Ok(()))) {
                    pulse.beat();
                }
                outcome
            }
            Err(Silent::Destination) => {
                // It may have got more partitions.
                self.topics.forget(&record.topic);
                if disconnects() > disconnects_before {
                    // The record may have taken it down, and the next ones, on which librdkafka
                    // sent it again.
                    return Err(unknown("the connection ended before the confirm"));
                }
                Err(PublishError::new(PublishFailure::Unconfirmed, why))
            }
            Err(Silent::Broker) => {
                self.retire(SinkDown::new(&why));
                Err(unknown(&why))
            }
        }
    }

    /// Puts a record into a producer's queue, and waits while that is full.
    async fn enter(&self, client: &Client, record: &Rendered) -> Result<Report, KafkaError> {
        let _entrance = self.entrance.lock().await;
        loop {
            let room = client.events.room.notified();
            match client.send(record) {
                Err(KafkaError::MessageProduction(RDKafkaErrorCode::QueueFull)) => {
                    let _ = tokio::time::timeout(ROOM, room).await;
                }
                other => return other,
            }
        }
    }

    /// The producer that lets records wait for others. The first call makes it, and `None` until it is
    /// connected: no record waits for that.
    fn gathering(&self) -> Option<&Producer> {
        if let Some(gathering) = self.producers.gathering.get() {
            return Some(gathering);
        }
        if !self.is_gathering_asked.swap(true, Ordering::Relaxed) {
            let (settings, metrics) = (self.settings.clone(), self.metrics.clone());
            let (producers, down) = (self.producers.clone(), self.down.clone());
            let is_asked = self.is_gathering_asked.clone();
            let making = tokio::spawn(async move {
                let config = properties::gathering_config(&settings);
                let figures = metrics.as_ref().map(KafkaMetrics::producer);
                let until = Instant::now() + settings.delivery.timeout;
                let made = async {
                    let client = Arc::new(Client::make(config, figures, until).await?);
                    until_answered(client.clone(), settings.delivery.timeout).await?;
                    Ok::<_, SinkDown>(client)
                };
                match made.await {
                    Ok(client) => {
                        let _ = producers.gathering.set(Producer::new(client.clone()));
                        watch_over(client, producers, down).await;
                    }
                    // The other producer sends them, one by one.
                    Err(why) => {
                        debug!(why = why.detail, "cannot gather records for Kafka");
                        tokio::time::sleep(RETRY_PAUSE).await;
                        is_asked.store(false, Ordering::Relaxed);
                    }
                }
            });
            let mut watches = self.watches.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            watches.retain(|watch| !watch.is_finished());
            watches.push(AbortOnDropHandle::new(making));
        }
        None
    }

    /// The producer that sends one record a batch.
    async fn single(&self, until: Instant) -> Result<&Producer, PublishError> {
        let making = async || {
            let mut config = properties::client_config(&self.settings);
            config.set("batch.num.messages", "1");
            Ok::<_, SinkDown>(Producer::new(Arc::new(Client::make(config, None, until).await?)))
        };
        let single = self.single.get_or_try_init(making).await;
        single.map_err(|down| PublishError::new(PublishFailure::SinkDown, down))
    }
}

/// Gives the link up when a connection of this producer has failed and no broker answers on another.
/// (That all are down librdkafka says only of those that it had a reason to connect to.)
async fn watch_over(
    client: Arc<Client>,
    producers: Arc<Producers>,
    down: watch::Sender<Option<SinkDown>>,
) {
    loop {
        client.events.trouble.notified().await;
        client.events.forget_losses();
        if let Err(why) = until_answered(client.clone(), DOUBT).await {
            return retire(&down, &producers, why);
        }
    }
}

async fn until_answered(client: Arc<Client>, limit: Duration) -> Result<(), SinkDown> {
    blocking(limit, move || client.until_answered(limit)).await?
}

fn retire(down: &watch::Sender<Option<SinkDown>>, producers: &Producers, why: SinkDown) {
    let was_up = down.send_if_modified(|down| {
        let was_up = down.is_none();
        down.get_or_insert(why);
        was_up
    });
    if was_up {
        producers.purge();
    }
}

fn unknown(why: &str) -> PublishError {
    PublishError::new(PublishFailure::Indeterminate, why)
}
