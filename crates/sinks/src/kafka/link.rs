//! The producers in use: opened, watched, retired. Lost ones are never revived; the next probe creates others.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bson::DateTime;
use parking_lot::Mutex;
use postrider_relay::sink::{PublishError, PublishFailure, SinkDown};
use postrider_store::dates::rfc3339;
use rdkafka::config::ClientConfig;
use rdkafka::error::KafkaError;
use rdkafka::types::RDKafkaErrorCode;
use tokio::sync::OnceCell;
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;
use tracing::{debug, warn};

use crate::active_link;
use crate::availability::Availability;
use crate::kafka::batching::Batching;
use crate::kafka::client::{Client, DeliveryReport, FatalError, blocking};
use crate::kafka::config::KafkaSettings;
use crate::kafka::delivery_report;
use crate::kafka::partitions::Partitions;
use crate::kafka::properties;
use crate::kafka::rendering::Rendered;
use crate::kafka::statistics::KafkaMetrics;
use crate::kafka::tokens::Tokens;
use crate::kafka::topics::{self, Topics};
use crate::liveness::{Liveness, Unresponsive};

/// How long a broker may take to answer after a connection was lost. Brokers close idle connections, and
/// another one is open within milliseconds.
const RECONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// How long the reports of a purged producer may take.
const PURGE_TIMEOUT: Duration = Duration::from_secs(1);

/// The pause before a full queue is tried again without a report: a report precedes the room in the queue by
/// a moment, and no other one follows the last.
const FULL_QUEUE_PAUSE: Duration = Duration::from_millis(5);

/// `statistics.interval.ms` of an isolated producer, for the ends of its connections.
const ISOLATED_STATISTICS_INTERVAL: &str = "200";

/// The pause before a batching producer that could not be created is tried again.
const RETRY_PAUSE: Duration = Duration::from_secs(30);

#[derive(Debug)]
struct Producer {
    client: Arc<Client>,
    liveness: Liveness,
}

impl Producer {
    fn new(client: Arc<Client>) -> Self {
        Self { client, liveness: Liveness::new() }
    }
}

/// The producers of a link: if one is lost, all are retired.
#[derive(Debug)]
struct Producers {
    /// Sends each record at once.
    immediate: Producer,
    /// Lets records wait for others. It is created when many lanes have records.
    batching: OnceLock<Producer>,
    availability: Availability,
}

impl Producers {
    /// Refuses further records, and ends those in the queues.
    fn retire(&self, cause: SinkDown) {
        if self.availability.set_down(cause) {
            self.immediate.client.purge();
            if let Some(batching) = self.batching.get() {
                batching.client.purge();
            }
        }
    }

    /// Retires the producers when a connection of this one has failed and no broker answers on another.
    /// (librdkafka counts as down only the brokers that it had a reason to connect to.)
    async fn watch(&self, client: Arc<Client>) {
        loop {
            client.events.failure.notified().await;
            client.events.reset_down();
            if let Err(cause) = wait_for_answer(client.clone(), RECONNECT_TIMEOUT).await {
                return self.retire(cause);
            }
        }
    }
}

/// The producers in use, with their topics.
#[derive(Debug)]
pub(super) struct Link {
    settings: KafkaSettings,
    /// `None` for an isolated sink.
    metrics: Option<Arc<KafkaMetrics>>,
    producers: Arc<Producers>,
    /// Whether the batching producer exists, or is being created.
    is_batching_requested: Arc<AtomicBool>,
    /// Sends one record per batch. It is created when it is first needed.
    single_record: OnceCell<Producer>,
    topics: Topics,
    partitions: Arc<Partitions>,
    /// Held by a record that waits for room in the queue, so that the records of a key keep their order.
    queue_entrance: tokio::sync::Mutex<()>,
    /// The tasks that watch the producers.
    watches: Mutex<Vec<AbortOnDropHandle<()>>>,
    is_replaced: AtomicBool,
}

impl active_link::Link for Link {
    async fn lost(&self) -> SinkDown {
        self.producers.availability.lost().await
    }

    async fn is_usable(&self, limit: Duration) -> Result<bool, SinkDown> {
        if self.check().is_err() {
            return Ok(false);
        }
        let client = &self.producers.immediate.client;
        client.events.reset_down();
        Ok(wait_for_answer(client.clone(), limit).await.is_ok())
    }

    fn retire(&self, cause: SinkDown) {
        self.producers.retire(cause);
    }
}

impl Link {
    /// Creates a producer and waits until a broker answers, within the sink's timeout. Creates the declared
    /// topics.
    ///
    /// # Errors
    ///
    /// [`SinkDown`]: no broker, a wrong password, an untrusted certificate, a declared topic that cannot be
    /// created.
    pub(super) async fn open(
        settings: &KafkaSettings,
        metrics: Option<Arc<KafkaMetrics>>,
        partitions: Arc<Partitions>,
    ) -> Result<Self, SinkDown> {
        let mut config = properties::client_config(settings);
        if metrics.is_none() {
            config.set("statistics.interval.ms", ISOLATED_STATISTICS_INTERVAL);
        }
        let limit = settings.delivery.timeout;
        let tokens = settings.own.tokens();
        let client = create_client(config.clone(), tokens, metrics.as_ref(), limit).await?;
        // After the first answer the producer requests its id. The second one mostly shows whether it may
        // write.
        for _ in 0..2 {
            wait_for_answer(client.clone(), limit).await.map_err(|down| {
                down.preceded_by(format!("cannot reach {}: ", settings.own.bootstrap()))
            })?;
        }
        topics::declare(settings, &config, &client).await?;
        let topics = Topics::new(client.clone(), partitions.clone());
        let producers = Arc::new(Producers {
            immediate: Producer::new(client.clone()),
            batching: OnceLock::new(),
            availability: Availability::default(),
        });
        let watched = producers.clone();
        let watch = tokio::spawn(async move { watched.watch(client).await });
        Ok(Self {
            settings: settings.clone(),
            metrics,
            producers,
            is_batching_requested: Arc::default(),
            topics,
            partitions,
            single_record: OnceCell::new(),
            queue_entrance: tokio::sync::Mutex::default(),
            watches: Mutex::new(vec![AbortOnDropHandle::new(watch)]),
            is_replaced: AtomicBool::new(false),
        })
    }

    /// Notes that another link is in use. This one ends when the last of its records has its outcome.
    pub(super) fn mark_replaced(&self) {
        self.is_replaced.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_replaced(&self) -> bool {
        self.is_replaced.load(Ordering::Relaxed)
    }

    /// Returns whether a record for this topic is sent without a look-up first.
    pub(super) fn knows(&self, topic: &str) -> bool {
        self.topics.knows(topic)
    }

    /// Checks that it can be published on.
    ///
    /// # Errors
    ///
    /// Why it cannot.
    pub(super) fn check(&self) -> Result<(), SinkDown> {
        self.producers.availability.check()
    }

    /// Publishes one record and waits until `until` for its confirm. `batching` is given if the record may
    /// wait for others.
    ///
    /// # Errors
    ///
    /// As [`Sink::publish`](postrider_relay::sink::Sink::publish).
    pub(super) async fn publish(
        &self,
        mut record: Rendered,
        batching: Option<&Batching>,
        until: Instant,
    ) -> Result<(), PublishError> {
        tokio::select! {
            exists = self.topics.look_up(&record.topic, until) => exists?,
            down = self.producers.availability.lost() => return Err(down.into()),
        }
        let immediate = &self.producers.immediate;
        let producer = batching.and_then(|_| self.batching()).unwrap_or(immediate);
        let mut result = self.send(producer, &record, until).await?;
        if let Err(error) = &result
            && delivery_report::may_concern_other_record(error)
        {
            if let Some(batching) = batching {
                batching.pause();
            }
            // Alone in its batch the record is the cause of any refusal.
            let single_record = self.single_record(until).await?;
            result = self.send(single_record, &record, until).await?;
            if let Err(error) = &result
                && delivery_report::refuses_time(error)
                && let Some(time) = record.timestamp.take()
            {
                // Each topic has its own limits of the past and of the future.
                self.warn_of_time(&record, time);
                result = self.send(single_record, &record, until).await?;
            }
        }
        result.map_err(|error| self.publish_error(&error, &record.topic))
    }
    /// Warns that a topic refuses the time of a record, which is published with the time of publishing.
    fn warn_of_time(&self, record: &Rendered, time: i64) {
        let time = DateTime::from_millis(time);
        let time = rfc3339(time).unwrap_or_else(|| time.timestamp_millis().to_string());
        warn!(
            sink = %self.settings.name, record.id = record.id(), topic = record.topic, createdAt = time,
            "topic does not accept createdAt of a record (or seq, if it has none); published it with the \
             time of publishing; correct the clock of its producer, or the topic's \
             message.timestamp.before.max.ms and message.timestamp.after.max.ms"
        );
    }

    /// Returns what a negative report means, and draws its consequences for the link.
    fn publish_error(&self, error: &KafkaError, topic: &str) -> PublishError {
        if delivery_report::invalidates_topic(error) {
            self.topics.forget(topic);
        }
        let publish_error = delivery_report::publish_error(error, topic);
        let fatal = self.fatal_error();
        if let Some(fatal) = &fatal {
            self.producers.retire(SinkDown::from(fatal));
        }
        match (publish_error.failure, self.check()) {
            // The cause of the purge says more than the report of it.
            (PublishFailure::Indeterminate, Err(down)) => {
                let failure = fatal.map(|fatal| delivery_report::fatal_failure(fatal.code));
                PublishError::new(failure.unwrap_or(PublishFailure::Indeterminate), down)
            }
            _ => publish_error,
        }
    }

    /// Returns the fatal error of one of its producers.
    fn fatal_error(&self) -> Option<FatalError> {
        let Producers { immediate, batching, .. } = &*self.producers;
        let producers = [Some(immediate), batching.get(), self.single_record.get()];
        producers.into_iter().flatten().find_map(|producer| producer.client.fatal_error())
    }

    /// Sends a record, and waits for the broker's report. The outer error means that there is none.
    async fn send(
        &self,
        producer: &Producer,
        record: &Rendered,
        until: Instant,
    ) -> Result<Result<(), KafkaError>, PublishError> {
        let Producer { client, liveness } = producer;
        let is_isolated = self.metrics.is_none();
        let disconnects = || {
            let leads = |broker| self.partitions.leads(broker, &record.topic, &record.key);
            if is_isolated { client.events.disconnects(leads) } else { 0 }
        };
        let disconnects_before = disconnects();
        let enqueued = tokio::select! {
            biased;
            // A purge would miss a record that enters the queue after it.
            down = self.producers.availability.lost() => return Err(down.into()),
            enqueued = tokio::time::timeout_at(until, self.enqueue(client, record)) => enqueued,
        };
        let report = match enqueued {
            Ok(Ok(report)) => report,
            // The producer refuses this record itself, before it is sent.
            Ok(Err(KafkaError::MessageProduction(RDKafkaErrorCode::MessageSizeTooLarge))) => {
                let limit = properties::max_message_bytes(&self.settings);
                let detail = format!(
                    "with key and headers it is larger than message.max.bytes, which is {limit}"
                );
                return Err(PublishError::new(PublishFailure::TooLarge, detail));
            }
            Ok(Err(error)) => return Ok(Err(error)),
            Err(_) => {
                let detail = "the producer's queue stayed full";
                return Err(PublishError::new(PublishFailure::SinkDown, detail));
            }
        };
        postrider_store::failpoint::hit("sink::after_handover");
        let limit = self.settings.delivery.timeout;
        let ping = async { wait_for_answer(client.clone(), limit).await.is_ok() };
        match liveness.confirm(self.confirm(report), limit, until, ping).await {
            Ok(confirm) => {
                if matches!(confirm, Ok(Ok(()))) {
                    liveness.note_reply();
                }
                confirm
            }
            Err(Unresponsive::Destination) => {
                // The number of partitions may have changed.
                self.topics.forget(&record.topic);
                if disconnects() > disconnects_before {
                    // The record may have closed the connection, and the next ones, on which librdkafka
                    // sent it again.
                    return Err(indeterminate("the connection was closed before the confirm"));
                }
                let detail = format!("no confirm within {limit:?}");
                Err(PublishError::new(PublishFailure::Unconfirmed, detail))
            }
            Err(Unresponsive::Broker) => {
                let detail = format!("no confirm within {limit:?}");
                self.producers.retire(SinkDown::new(&detail));
                Err(indeterminate(&detail))
            }
        }
    }

    /// Adds a record to a producer's queue, and waits while that is full.
    async fn enqueue(
        &self,
        client: &Client,
        record: &Rendered,
    ) -> Result<DeliveryReport, KafkaError> {
        let _entrance = self.queue_entrance.lock().await;
        loop {
            let room = client.events.queue_room.notified();
            match client.send(record) {
                Err(KafkaError::MessageProduction(RDKafkaErrorCode::QueueFull)) => {
                    let _ = tokio::time::timeout(FULL_QUEUE_PAUSE, room).await;
                }
                other => return other,
            }
        }
    }

    /// Waits for the report of a record in the queue. Without a limit: the caller has one.
    async fn confirm(
        &self,
        report: DeliveryReport,
    ) -> Result<Result<(), KafkaError>, PublishError> {
        let report = async {
            match report.await {
                // The record's time is up, which the caller notices too. It says nothing about other
                // topics.
                Ok(Err(error)) if delivery_report::is_timeout(&error) => {
                    std::future::pending().await
                }
                other => other,
            }
        };
        let retired = async {
            let down = self.producers.availability.lost().await;
            // A confirm that is on its way counts, and the purge reports the rest.
            tokio::time::sleep(PURGE_TIMEOUT).await;
            down
        };
        tokio::select! {
            biased;
            report = report => report
                .map_err(|_| indeterminate("the producer was retired before the confirm")),
            down = retired => Err(indeterminate(&down.detail)),
        }
    }

    /// Returns the batching producer. The first call starts to create it, and returns `None` like those
    /// until it is connected: no record waits for that.
    fn batching(&self) -> Option<&Producer> {
        if let Some(batching) = self.producers.batching.get() {
            return Some(batching);
        }
        if !self.is_batching_requested.swap(true, Ordering::Relaxed) {
            let (settings, metrics) = (self.settings.clone(), self.metrics.clone());
            let producers = self.producers.clone();
            let is_requested = self.is_batching_requested.clone();
            let watch = tokio::spawn(async move {
                let config = properties::batching_config(&settings);
                let limit = settings.delivery.timeout;
                let creating = async {
                    let tokens = settings.own.tokens();
                    let client = create_client(config, tokens, metrics.as_ref(), limit).await?;
                    wait_for_answer(client.clone(), limit).await?;
                    Ok::<_, SinkDown>(client)
                };
                match creating.await {
                    Ok(client) => {
                        let _ = producers.batching.set(Producer::new(client.clone()));
                        producers.watch(client).await;
                    }
                    // The other producer sends the records, one by one.
                    Err(down) => {
                        debug!(cause = down.detail, "cannot batch records for Kafka");
                        tokio::time::sleep(RETRY_PAUSE).await;
                        is_requested.store(false, Ordering::Relaxed);
                    }
                }
            });
            let mut watches = self.watches.lock();
            watches.retain(|watch| !watch.is_finished());
            watches.push(AbortOnDropHandle::new(watch));
        }
        None
    }

    /// Returns the producer that sends one record per batch.
    async fn single_record(&self, until: Instant) -> Result<&Producer, SinkDown> {
        let create = async || {
            let mut config = properties::client_config(&self.settings);
            config.set("batch.num.messages", "1");
            let tokens = self.settings.own.tokens();
            let client = Client::create(config, tokens, None, until).await?;
            Ok::<_, SinkDown>(Producer::new(Arc::new(client)))
        };
        self.single_record.get_or_try_init(create).await
    }
}

async fn create_client(
    config: ClientConfig,
    tokens: Tokens,
    metrics: Option<&Arc<KafkaMetrics>>,
    limit: Duration,
) -> Result<Arc<Client>, SinkDown> {
    let metrics = metrics.map(KafkaMetrics::producer);
    Ok(Arc::new(Client::create(config, tokens, metrics, Instant::now() + limit).await?))
}

/// Waits until some broker answers.
async fn wait_for_answer(client: Arc<Client>, limit: Duration) -> Result<(), SinkDown> {
    blocking(limit, move || client.wait_for_answer(limit)).await?
}

fn indeterminate(detail: &str) -> PublishError {
    PublishError::new(PublishFailure::Indeterminate, detail)
}
