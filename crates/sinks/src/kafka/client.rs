//! Wraps librdkafka's producer and its callbacks: each delivery report goes to the publish that waits for it.

use std::collections::HashMap;
use std::error::Error;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use postrider_relay::sink::SinkDown;
use rdkafka::ClientContext;
use rdkafka::client::OAuthToken;
use rdkafka::config::{ClientConfig, RDKafkaLogLevel};
use rdkafka::error::{KafkaError, KafkaResult, RDKafkaErrorCode};
use rdkafka::producer::{
    BaseRecord, DeliveryResult, Producer as _, ProducerContext, PurgeConfig, ThreadedProducer,
};
use rdkafka::statistics::Statistics;
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;
use tracing::{debug, warn};

use crate::kafka::live_clients::LiveClient;
use crate::kafka::remedy;
use crate::kafka::rendering::Rendered;
use crate::kafka::statistics::ProducerMetrics;
use crate::kafka::tokens::Tokens;

/// A topic for metadata requests that only check whether a broker answers, whatever the answer is. (Without a
/// topic a request is for all of them, however many.)
const ANY_TOPIC: &str = "__consumer_offsets";

/// The time limit of one metadata request, after which a failure of the client ends the wait.
const METADATA_TIMEOUT: Duration = Duration::from_millis(250);

/// How much later than its limit a call to librdkafka may return.
const BLOCKING_CALL_GRACE: Duration = Duration::from_secs(1);

pub(super) type DeliveryReport = oneshot::Receiver<KafkaResult<()>>;

/// Calls librdkafka, which blocks, on a thread for blocking calls. The call must end by itself within
/// `limit`.
///
/// # Errors
///
/// As [`blocking_until`].
pub(super) async fn blocking<T: Send + 'static>(
    limit: Duration,
    call: impl FnOnce() -> T + Send + 'static,
) -> Result<T, SinkDown> {
    let cause = || format!("librdkafka did not return within {limit:?}");
    blocking_until(Instant::now() + limit + BLOCKING_CALL_GRACE, cause, call).await
}

/// Like [`blocking`], with a deadline.
///
/// librdkafka waits by the host's clock: if that is set back meanwhile, the call takes as much
/// longer. A call that exceeds the deadline keeps its thread until it ends.
///
/// # Errors
///
/// The call has not ended, with `cause` as the text, or it panicked.
async fn blocking_until<T: Send + 'static>(
    until: Instant,
    cause: impl FnOnce() -> String,
    call: impl FnOnce() -> T + Send + 'static,
) -> Result<T, SinkDown> {
    match tokio::time::timeout_at(until, tokio::task::spawn_blocking(call)).await {
        Ok(Ok(returned)) => Ok(returned),
        Ok(Err(panic)) => Err(SinkDown::new(panic)),
        Err(_) => Err(SinkDown::new(cause())),
    }
}

/// What the producer's callbacks report.
#[derive(Debug)]
pub(super) struct Events {
    /// Notified when a connection has failed, or the producer has fatally.
    pub(super) failure: Notify,
    /// Notified when a record has left the queue.
    pub(super) queue_room: Notify,
    state: Mutex<State>,
    metrics: Option<ProducerMetrics>,
}

#[derive(Debug, Default)]
struct State {
    /// The latest error of a connection.
    connection_error: Option<String>,
    are_all_down: bool,
    /// How often the connections to each broker have ended, by the broker's number.
    disconnects: HashMap<i32, i64>,
}

impl Events {
    /// Forgets that all brokers were down: that they are is reported again.
    pub(super) fn reset_down(&self) {
        self.state.lock().are_all_down = false;
    }

    /// Returns how often connections to these brokers have ended, as of the latest statistics. (The log
    /// omits repetitions within 30 s.)
    pub(super) fn disconnects(&self, is_counted: impl Fn(i32) -> bool) -> i64 {
        let state = self.state.lock();
        let counts = state.disconnects.iter().filter(|(broker, _)| is_counted(**broker));
        counts.map(|(_, count)| count).sum()
    }

    /// Returns the latest error of a connection, with the remedy if it is known.
    fn connection_error(&self) -> SinkDown {
        match &self.state.lock().connection_error {
            Some(error) => SinkDown::new(remedy::words(error)).with_remedy(remedy::find(error)),
            None => SinkDown::new("no broker responds"),
        }
    }
}

/// Receives the producer's callbacks, which it calls on a thread of its own.
pub(super) struct Callbacks {
    events: Arc<Events>,
    tokens: Tokens,
}

impl ClientContext for Callbacks {
    const ENABLE_REFRESH_OAUTH_TOKEN: bool = true;

    fn generate_oauth_token(&self, config: Option<&str>) -> Result<OAuthToken, Box<dyn Error>> {
        self.tokens.generate_oauth_token(config)
    }

    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        debug!(?level, facility, message, "librdkafka");
        match facility {
            "CONFWARN" => warn!(message, "librdkafka"),
            // The only report of a connection that ended.
            "FAIL" => {
                // Without the name of librdkafka's thread.
                let error = message.split_once("]: ").map_or(message, |(_, error)| error);
                self.events.state.lock().connection_error = Some(error.to_owned());
                self.events.failure.notify_one();
            }
            // Other states of connections are logged once, as the state of the sink.
            _ => {}
        }
    }

    fn error(&self, error: KafkaError, reason: &str) {
        {
            let mut state = self.events.state.lock();
            match error.rdkafka_error_code() {
                Some(RDKafkaErrorCode::AllBrokersDown) => state.are_all_down = true,
                _ => state.connection_error = Some(reason.to_owned()),
            }
        }
        self.events.failure.notify_one();
    }

    fn stats(&self, statistics: Statistics) {
        let brokers = statistics.brokers.values();
        let disconnects = brokers.map(|broker| (broker.nodeid, broker.disconnects.unwrap_or(0)));
        self.events.state.lock().disconnects = disconnects.collect();
        if let Some(metrics) = &self.events.metrics {
            metrics.update(&statistics);
        }
    }
}

impl ProducerContext for Callbacks {
    type DeliveryOpaque = Box<oneshot::Sender<KafkaResult<()>>>;

    fn delivery(&self, result: &DeliveryResult<'_>, reply: Self::DeliveryOpaque) {
        let report = match result {
            Ok(_) => Ok(()),
            // The record was in flight when its topic was deleted. Records that wait in the queue get the
            // second code then. (The end of the producer causes the first one too, but no publish waits for
            // it.)
            Err((KafkaError::MessageProduction(RDKafkaErrorCode::BrokerDestroy), _)) => {
                Err(KafkaError::MessageProduction(RDKafkaErrorCode::UnknownPartition))
            }
            Err((error, _)) => Err(error.clone()),
        };
        // The publish may have timed out.
        let _ = reply.send(report);
        self.events.queue_room.notify_waiters();
    }
}

/// An error after which a producer accepts nothing any more.
#[derive(Debug)]
pub(super) struct FatalError {
    pub(super) code: RDKafkaErrorCode,
    reason: String,
}

impl From<&FatalError> for SinkDown {
    fn from(FatalError { code, reason }: &FatalError) -> Self {
        let is_unauthorized = *code == RDKafkaErrorCode::ClusterAuthorizationFailed;
        let remedy = "grant the user Write on a topic, or IdempotentWrite on the cluster";
        SinkDown::new(format!("its producer failed permanently: {reason}"))
            .with_remedy(if is_unauthorized { remedy } else { "" })
    }
}

/// One producer.
pub(super) struct Client {
    /// The fields of a tuple are dropped in their order. `None` only in `drop`.
    producer: Option<(ThreadedProducer<Callbacks>, LiveClient)>,
    pub(super) events: Arc<Events>,
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("events", &self.events).finish_non_exhaustive()
    }
}

impl Client {
    /// Creates a producer, which connects by itself, on a thread for blocking calls: librdkafka waits
    /// for its own threads, and for a minute if the host's clock is set back meanwhile.
    ///
    /// # Errors
    ///
    /// Settings that librdkafka refuses.
    pub(super) async fn create(
        config: ClientConfig,
        tokens: Tokens,
        metrics: Option<ProducerMetrics>,
        until: Instant,
    ) -> Result<Self, SinkDown> {
        let cause = || "librdkafka created no producer in time".to_owned();
        let creating = blocking_until(until, cause, move || {
            postrider_store::failpoint::hit("sink::make");
            Self::new(&config, tokens, metrics)
        });
        creating.await?.map_err(SinkDown::new)
    }

    fn new(
        config: &ClientConfig,
        tokens: Tokens,
        metrics: Option<ProducerMetrics>,
    ) -> KafkaResult<Self> {
        let events = Arc::new(Events {
            failure: Notify::new(),
            queue_room: Notify::new(),
            state: Mutex::default(),
            metrics,
        });
        let live_client = LiveClient::new();
        let producer = config.create_with_context(Callbacks { events: events.clone(), tokens })?;
        Ok(Self { producer: Some((producer, live_client)), events })
    }

    pub(super) fn producer(&self) -> &ThreadedProducer<Callbacks> {
        // It is taken only in `drop`.
        #[allow(clippy::unwrap_used)]
        let (producer, _) = self.producer.as_ref().unwrap();
        producer
    }

    /// Adds a record to the producer's queue.
    ///
    /// # Errors
    ///
    /// The queue is full, or the record is too large.
    pub(super) fn send(&self, record: &Rendered) -> Result<DeliveryReport, KafkaError> {
        let (reply, report) = oneshot::channel();
        let base = BaseRecord {
            topic: &record.topic,
            partition: None,
            payload: record.payload.as_deref(),
            key: Some(record.key.as_str()),
            timestamp: record.timestamp,
            headers: Some(record.headers.clone()),
            delivery_opaque: Box::new(reply),
        };
        self.producer().send(base).map(|()| report).map_err(|(error, _)| error)
    }

    /// Blocks until some broker answers, for `limit` at most. Ends early if all brokers are down.
    ///
    /// # Errors
    ///
    /// Why none answers.
    pub(super) fn wait_for_answer(&self, limit: Duration) -> Result<(), SinkDown> {
        let begin = std::time::Instant::now();
        loop {
            let left = limit.saturating_sub(begin.elapsed());
            let client = self.producer().client();
            let answer = client.fetch_metadata(Some(ANY_TOPIC), left.min(METADATA_TIMEOUT));
            if let Some(fatal) = self.fatal_error() {
                return Err(SinkDown::from(&fatal));
            }
            if answer.is_ok() {
                return Ok(());
            }
            if self.events.state.lock().are_all_down {
                return Err(self.events.connection_error());
            }
            if begin.elapsed() >= limit {
                let down = self.events.connection_error();
                return Err(down.preceded_by(format!("no response within {limit:?}: ")));
            }
        }
    }

    /// Returns the fatal error of the producer, if it has one.
    pub(super) fn fatal_error(&self) -> Option<FatalError> {
        let (code, reason) = self.producer().client().fatal_error()?;
        Some(FatalError { code, reason })
    }

    /// Drops every record that is not confirmed, so that each is reported now.
    pub(super) fn purge(&self) {
        self.producer().purge(PurgeConfig::default().queue().inflight().non_blocking());
    }
}

/// Runs on a thread of its own: the producer joins its threads, which takes up to a second.
impl Drop for Client {
    fn drop(&mut self) {
        let producer = self.producer.take();
        std::thread::spawn(move || drop(producer));
    }
}
