//! Wraps librdkafka's producer and its callbacks: each delivery report goes to the publish that waits for it.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use postrider_relay::sink::SinkDown;
use rdkafka::ClientContext;
use rdkafka::config::{ClientConfig, RDKafkaLogLevel};
use rdkafka::error::{KafkaError, KafkaResult, RDKafkaErrorCode};
use rdkafka::producer::{
    BaseRecord, DeliveryResult, Producer as _, ProducerContext, PurgeConfig, ThreadedProducer,
};
use rdkafka::statistics::Statistics;
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;
use tracing::{debug, warn};

use crate::kafka::alive::Alive;
use crate::kafka::remedy;
use crate::kafka::rendering::Rendered;
use crate::kafka::statistics::ProducerMetrics;

/// A topic that every cluster may have, to ask a broker about: an answer shows that it answers,
/// whatever it says. (Without a topic the question is for all of them, however many.)
const ANY_TOPIC: &str = "__consumer_offsets";

/// How long one question waits before the reasons against waiting are looked at.
const SLICE: Duration = Duration::from_millis(250);

/// How much later than it was told to librdkafka may come back from a wait.
const LATE: Duration = Duration::from_secs(1);

pub(super) type Report = oneshot::Receiver<KafkaResult<()>>;

/// Calls librdkafka, which blocks, on a thread for such calls, and waits for the call to end: for
/// `limit`, within which it must end by itself, and a little longer.
///
/// # Errors
///
/// As [`blocking_until`].
pub(super) async fn blocking<T: Send + 'static>(
    limit: Duration,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, SinkDown> {
    let why = || format!("librdkafka did not come back within {limit:?}");
    blocking_until(Instant::now() + limit + LATE, why, work).await
}

/// The same until a moment.
///
/// librdkafka waits by the host's clock: if that is set back meanwhile, the call takes as much
/// longer. A call that is given up keeps its thread until it ends.
///
/// # Errors
///
/// The call has not ended, for which `why` gives the words, or it panicked.
async fn blocking_until<T: Send + 'static>(
    until: Instant,
    why: impl FnOnce() -> String,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, SinkDown> {
    match tokio::time::timeout_at(until, tokio::task::spawn_blocking(work)).await {
        Ok(Ok(done)) => Ok(done),
        Ok(Err(panic)) => Err(SinkDown::new(panic)),
        Err(_) => Err(SinkDown::new(why())),
    }
}

/// What the producer's callbacks leave behind.
#[derive(Debug)]
pub(super) struct Events {
    /// A connection has failed, or the producer has for good.
    pub(super) trouble: Notify,
    /// Something has left the queue.
    pub(super) room: Notify,
    state: Mutex<State>,
    metrics: Option<ProducerMetrics>,
}

#[derive(Debug, Default)]
struct State {
    /// The latest words about a connection that failed.
    words: Option<String>,
    all_down: bool,
    /// How often the connections to each broker have ended, by its number.
    disconnects: HashMap<i32, i64>,
}

impl Events {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Whatever was lost before says nothing about now.
    pub(super) fn forget_losses(&self) {
        self.state().all_down = false;
    }

    /// How often connections to these brokers have ended, as of the latest statistics. (The log does
    /// not say it: librdkafka leaves out what repeats itself within 30 s.)
    pub(super) fn disconnects(&self, of: impl Fn(i32) -> bool) -> i64 {
        let state = self.state();
        state.disconnects.iter().filter(|(broker, _)| of(**broker)).map(|(_, count)| count).sum()
    }

    /// The latest words about what goes wrong, with the remedy where it is known.
    fn why(&self) -> SinkDown {
        match &self.state().words {
            Some(words) => SinkDown::new(words).with_remedy(remedy::of(words)),
            None => SinkDown::new("no broker answers"),
        }
    }
}

impl ClientContext for Callbacks {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        debug!(?level, facility, message, "librdkafka");
        match facility {
            "CONFWARN" => warn!(message, "librdkafka"),
            // The end of a connection it tells nowhere else.
            "FAIL" => {
                // Behind the name of librdkafka's thread.
                let words = message.split_once("]: ").map_or(message, |(_, words)| words);
                self.0.state().words = Some(words.to_owned());
                self.0.trouble.notify_one();
            }
            // What it says else of connections is told once, as the sink's state.
            _ => {}
        }
    }

    fn error(&self, error: KafkaError, reason: &str) {
        let events = &self.0;
        let code = error.rdkafka_error_code();
        {
            let mut state = events.state();
            match code {
                Some(RDKafkaErrorCode::AllBrokersDown) => state.all_down = true,
                _ => state.words = Some(reason.to_owned()),
            }
        }
        events.trouble.notify_one();
    }

    fn stats(&self, statistics: Statistics) {
        let brokers = statistics.brokers.values();
        let disconnects = brokers.map(|broker| (broker.nodeid, broker.disconnects.unwrap_or(0)));
        self.0.state().disconnects = disconnects.collect();
        if let Some(metrics) = &self.0.metrics {
            metrics.take(&statistics);
        }
    }
}

/// Called by the producer's own thread.
pub(super) struct Callbacks(Arc<Events>);

impl ProducerContext for Callbacks {
    type DeliveryOpaque = Box<oneshot::Sender<KafkaResult<()>>>;

    fn delivery(&self, result: &DeliveryResult<'_>, reply: Self::DeliveryOpaque) {
        let report = match result {
            Ok(_) => Ok(()),
            Err((error, _)) => Err(error.clone()),
        };
        // Whoever waited may have given up.
        let _ = reply.send(report);
        self.0.room.notify_waiters();
    }
}

/// An error after which a producer takes nothing any more.
#[derive(Debug)]
pub(super) struct Fatal {
    pub(super) code: RDKafkaErrorCode,
    words: String,
}

impl Fatal {
    pub(super) fn down(&self) -> SinkDown {
        let Self { code, words } = self;
        let remedy = match code {
            RDKafkaErrorCode::ClusterAuthorizationFailed => {
                "the user is to have the right to write to a topic, or IdempotentWrite on the \
                 cluster"
            }
            _ => "",
        };
        SinkDown::new(format!("its producer failed for good: {words}")).with_remedy(remedy)
    }
}

/// One producer.
pub(super) struct Client {
    /// Taken only when dropped.
    producer: Option<(ThreadedProducer<Callbacks>, Alive)>,
    pub(super) events: Arc<Events>,
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("events", &self.events).finish_non_exhaustive()
    }
}

impl Client {
    /// Makes a producer, which connects by itself, on a thread of its own: librdkafka waits there for
    /// its threads, and for a minute where the host's clock is set back meanwhile.
    ///
    /// # Errors
    ///
    /// Settings that librdkafka doesn't take.
    pub(super) async fn make(
        config: ClientConfig,
        metrics: Option<ProducerMetrics>,
        until: Instant,
    ) -> Result<Self, SinkDown> {
        let why = || "librdkafka made no producer in time".to_owned();
        let making = blocking_until(until, why, move || {
            postrider_store::failpoint::hit("sink::make");
            Self::new(&config, metrics)
        });
        making.await?.map_err(SinkDown::new)
    }

    fn new(config: &ClientConfig, metrics: Option<ProducerMetrics>) -> KafkaResult<Self> {
        let events = Arc::new(Events {
            trouble: Notify::new(),
            room: Notify::new(),
            state: Mutex::default(),
            metrics,
        });
        let alive = Alive::new();
        let producer = config.create_with_context(Callbacks(events.clone()))?;
        Ok(Self { producer: Some((producer, alive)), events })
    }

    pub(super) fn producer(&self) -> &ThreadedProducer<Callbacks> {
        // Nobody holds it any more when it is taken.
        #[allow(clippy::unwrap_used)]
        let (producer, _) = self.producer.as_ref().unwrap();
        producer
    }

    /// Puts a record into the producer's queue.
    ///
    /// # Errors
    ///
    /// Why it was not put there: no room, too large.
    pub(super) fn send(&self, record: &Rendered) -> Result<Report, KafkaError> {
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
        match self.producer().send(base) {
            Ok(()) => Ok(report),
            Err((error, _)) => Err(error),
        }
    }

    /// Waits, blocking, until some broker answers: at most `limit`, and no longer than there is hope.
    ///
    /// # Errors
    ///
    /// Why none answers.
    pub(super) fn until_answered(&self, limit: Duration) -> Result<(), SinkDown> {
        let begin = std::time::Instant::now();
        loop {
            let left = limit.saturating_sub(begin.elapsed());
            let asked = self.producer().client().fetch_metadata(Some(ANY_TOPIC), left.min(SLICE));
            if let Some(fatal) = self.fatal() {
                return Err(fatal.down());
            }
            if asked.is_ok() {
                return Ok(());
            }
            if self.events.state().all_down {
                return Err(self.events.why());
            }
            if begin.elapsed() >= limit {
                return Err(self.events.why().preceded_by(format!("no answer within {limit:?}: ")));
            }
        }
    }

    /// What has ended the producer for good, if anything has.
    pub(super) fn fatal(&self) -> Option<Fatal> {
        let (code, words) = self.producer().client().fatal_error()?;
        Some(Fatal { code, words })
    }

    /// Gives up everything that is not confirmed, so that each record is reported now.
    pub(super) fn purge(&self) {
        self.producer().purge(PurgeConfig::default().queue().inflight().non_blocking());
    }
}

/// On a thread of its own: the producer joins its threads, which takes up to a second.
impl Drop for Client {
    fn drop(&mut self) {
        if let Some((producer, alive)) = self.producer.take() {
            std::thread::spawn(move || {
                drop(producer);
                drop(alive);
            });
        }
    }
}
