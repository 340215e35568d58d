//! A sink that fails as a test orders: refused, confirmed but the answer lost, held back.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use postrider::sink::{Message, PublishError, PublishFailure, Sink, SinkDown};
use tokio::sync::{Notify, watch};

/// What a scripted publish does.
#[derive(Clone, Debug)]
pub enum Fault {
    /// The broker answers with this.
    Answer(PublishFailure),
    /// The broker has it, but its confirm is lost.
    DeliverThenLose,
    /// Waits until `TestSink::release` is called, then delivers.
    Hold,
    /// Answers with this, after this time.
    AnswerAfter(Duration, PublishFailure),
    /// Waits until `TestSink::release` is called, then answers with this.
    HoldThenAnswer(PublishFailure),
}

/// Records what was published, in order. Its clones share it, as several relays share one broker.
#[derive(Debug)]
pub struct TestSink {
    inner: Arc<Inner>,
    timeout: Duration,
    /// Of this connection alone.
    closed: AtomicBool,
    /// A publish on this connection has timed out: down until a probe is answered.
    stuck: watch::Sender<bool>,
    isolated: bool,
}

impl Default for TestSink {
    fn default() -> Self {
        // Longer than any test waits.
        let timeout = Duration::from_secs(120);
        Self::connected(Arc::default(), timeout, false)
    }
}

/// A payload that names its record.
#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Named {
    id: String,
}

/// Another connection to the same broker.
impl Clone for TestSink {
    fn clone(&self) -> Self {
        Self::connected(self.inner.clone(), self.timeout, self.isolated)
    }
}

#[derive(Debug, Default)]
struct Inner {
    arrived: Mutex<Vec<Message>>,
    faults: Mutex<HashMap<String, Vec<Fault>>>,
    under_way: Mutex<HashMap<String, usize>>,
    begun: Mutex<Vec<String>>,
    most_under_way: Mutex<HashMap<Option<String>, usize>>,
    changed: Notify,
    release: watch::Sender<bool>,
    down: watch::Sender<bool>,
    frozen: watch::Sender<bool>,
    probes: AtomicUsize,
    isolated: Mutex<Vec<String>>,
    isolated_now: AtomicUsize,
    most_isolated: AtomicUsize,
    sick: Mutex<Option<String>>,
}

impl TestSink {
    fn connected(inner: Arc<Inner>, timeout: Duration, isolated: bool) -> Self {
        let (closed, (stuck, _)) = (AtomicBool::new(false), watch::channel(false));
        Self { inner, timeout, closed, stuck, isolated }
    }

    /// The ids of the publishes that began on an isolated connection, in order.
    pub fn begun_isolated(&self) -> Vec<String> {
        self.inner.isolated.lock().unwrap().clone()
    }

    /// The most publishes on isolated connections that overlapped.
    pub fn most_isolated(&self) -> usize {
        self.inner.most_isolated.load(Ordering::SeqCst)
    }

    /// The same with a timeout for each publish.
    pub fn with_timeout(self, timeout: Duration) -> Self {
        Self { timeout, ..self }
    }

    /// The next publishes of the record with this id do this, one after the other.
    pub fn script(&self, id: &str, faults: impl IntoIterator<Item = Fault>) {
        self.inner.faults.lock().unwrap().entry(id.to_owned()).or_default().extend(faults);
    }

    /// The same for publishes to this destination alone; they precede those for any destination.
    pub fn script_at(&self, destination: &str, id: &str, faults: impl IntoIterator<Item = Fault>) {
        self.script(&at(destination, id), faults);
    }

    /// Releases everything that is held back, now and from now on.
    pub fn release(&self) {
        self.inner.release.send_replace(true);
    }

    /// Takes the sink down or up again.
    pub fn set_down(&self, down: bool) {
        self.inner.down.send_replace(down);
    }

    /// Freezes it, so that it answers nothing, or unfreezes it.
    pub fn set_frozen(&self, frozen: bool) {
        self.inner.frozen.send_replace(frozen);
    }

    /// Leaves messages with this routing key unconfirmed; `None` ends that.
    pub fn set_sick(&self, key: Option<&str>) {
        *self.inner.sick.lock().unwrap() = key.map(str::to_owned);
    }

    /// How many probes there have been.
    pub fn probes(&self) -> usize {
        self.inner.probes.load(Ordering::SeqCst)
    }

    /// What arrived so far.
    pub fn arrived(&self) -> Vec<Message> {
        self.inner.arrived.lock().unwrap().clone()
    }

    /// Ids of what arrived so far, each with the payload of its own record.
    pub fn ids(&self) -> Vec<String> {
        let arrived = self.arrived();
        for message in &arrived {
            // As `support::outbox::record` writes it.
            let payload = message.payload.as_deref().unwrap_or_default();
            if let Ok(Named { id }) = serde_json::from_slice(payload) {
                assert_eq!(id, message.id, "the payload of another record");
            }
        }
        arrived.into_iter().map(|message| message.id).collect()
    }

    /// Ids and payloads of what arrived so far.
    pub fn contents(&self) -> Vec<(String, String)> {
        let text =
            |payload: Option<Vec<u8>>| String::from_utf8(payload.unwrap_or_default()).unwrap();
        self.arrived().into_iter().map(|message| (message.id, text(message.payload))).collect()
    }

    /// The most publishes of one key that overlapped.
    pub fn most_under_way(&self, key: &str) -> usize {
        *self.inner.most_under_way.lock().unwrap().get(&Some(key.to_owned())).unwrap_or(&0)
    }

    /// How many publishes of this record have begun.
    pub fn tries(&self, id: &str) -> usize {
        self.begun().iter().filter(|begun| *begun == id).count()
    }

    /// The ids of all publishes, in the order in which they began.
    pub fn begun(&self) -> Vec<String> {
        self.inner.begun.lock().unwrap().clone()
    }

    /// Whether a publish of this record has begun and not ended.
    pub fn is_under_way(&self, id: &str) -> bool {
        *self.inner.under_way.lock().unwrap().get(id).unwrap_or(&0) > 0
    }

    /// Waits until `condition` holds for what arrived.
    pub async fn until(&self, what: &str, condition: impl Fn(&[Message]) -> bool) {
        let waiting = async {
            loop {
                let changed = self.inner.changed.notified();
                if condition(&self.inner.arrived.lock().unwrap()) {
                    return;
                }
                changed.await;
            }
        };
        if tokio::time::timeout(Duration::from_secs(60), waiting).await.is_err() {
            panic!("waited a minute for: {what}; arrived: {:?}", self.ids());
        }
    }

    async fn released(&self) {
        let mut released = self.inner.release.subscribe();
        released.wait_for(|released| *released).await.unwrap();
    }

    fn deliver(&self, message: &Message) {
        self.inner.arrived.lock().unwrap().push(message.clone());
        self.inner.changed.notify_waiters();
    }
}

impl TestSink {
    /// Why nothing can be published now.
    fn trouble(&self) -> Option<SinkDown> {
        let why = if *self.inner.down.borrow() {
            "the test has taken it down"
        } else if *self.stuck.borrow() {
            "it did not respond"
        } else if self.closed.load(Ordering::SeqCst) {
            "closed"
        } else {
            return None;
        };
        Some(SinkDown::new(why))
    }

    async fn take(&self, message: &Message) -> Result<(), PublishError> {
        let is_sick = {
            let sick = self.inner.sick.lock().unwrap();
            sick.is_some() && *sick == message.address.key
        };
        if is_sick {
            tokio::time::sleep(Duration::from_millis(50)).await;
            return Err(PublishError::new(PublishFailure::Unconfirmed, "no confirm in time"));
        }
        let fault = {
            let mut faults = self.inner.faults.lock().unwrap();
            let names = [at(&message.address.destination, &message.id), message.id.clone()];
            let name = names.iter().find(|name| faults.get(*name).is_some_and(|of| !of.is_empty()));
            name.and_then(|name| faults.get_mut(name)).map(|list| list.remove(0))
        };
        match fault {
            Some(Fault::Answer(verdict)) => {
                return Err(PublishError::new(verdict, format!("scripted {verdict:?}")));
            }
            Some(Fault::DeliverThenLose) => {
                self.deliver(message);
                return Err(PublishError::new(
                    PublishFailure::Indeterminate,
                    "the confirm was lost",
                ));
            }
            Some(Fault::Hold) => self.released().await,
            Some(Fault::AnswerAfter(delay, verdict)) => {
                tokio::time::sleep(delay).await;
                return Err(PublishError::new(verdict, format!("scripted {verdict:?}")));
            }
            Some(Fault::HoldThenAnswer(verdict)) => {
                self.released().await;
                return Err(PublishError::new(verdict, format!("scripted {verdict:?}")));
            }
            // Lets other tasks run in between, as a broker would.
            None => tokio::task::yield_now().await,
        }
        let mut frozen = self.inner.frozen.subscribe();
        frozen.wait_for(|frozen| !frozen).await.unwrap();
        self.deliver(message);
        Ok(())
    }
}

impl Sink for TestSink {
    async fn publish(&self, message: Message) -> Result<(), PublishError> {
        if let Some(down) = self.trouble() {
            return Err(PublishError::new(PublishFailure::SinkDown, down));
        }
        let _guard = UnderWay::begin(&self.inner, &message);
        if self.isolated {
            self.inner.isolated.lock().unwrap().push(message.id.clone());
            let now = self.inner.isolated_now.fetch_add(1, Ordering::SeqCst) + 1;
            self.inner.most_isolated.fetch_max(now, Ordering::SeqCst);
        }
        let answer = tokio::time::timeout(self.timeout, self.take(&message)).await;
        self.inner.isolated_now.fetch_sub(usize::from(self.isolated), Ordering::SeqCst);
        answer.unwrap_or_else(|_| {
            self.stuck.send_replace(true);
            Err(PublishError::new(PublishFailure::Indeterminate, "no answer"))
        })
    }

    async fn probe(&self) -> Result<(), SinkDown> {
        self.inner.probes.fetch_add(1, Ordering::SeqCst);
        if !*self.inner.frozen.borrow() {
            self.stuck.send_replace(false);
            self.closed.store(false, Ordering::SeqCst);
        }
        self.trouble().map_or(Ok(()), Err)
    }

    async fn lost(&self) -> SinkDown {
        let (mut down, mut stuck) = (self.inner.down.subscribe(), self.stuck.subscribe());
        tokio::select! {
            _ = down.wait_for(|down| *down) => {}
            _ = stuck.wait_for(|stuck| *stuck) => {}
        }
        self.trouble().unwrap_or_else(|| SinkDown::new("it was away"))
    }

    async fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
    }

    fn isolated(&self) -> Self {
        Self::connected(self.inner.clone(), self.timeout, true)
    }
}

/// The key of a record's faults at a destination; no id has a line break.
fn at(destination: &str, id: &str) -> String {
    format!("{destination}\n{id}")
}

struct UnderWay<'a> {
    inner: &'a Inner,
    id: String,
    key: Option<String>,
}

impl<'a> UnderWay<'a> {
    fn begin(inner: &'a Inner, message: &Message) -> Self {
        let guard = Self { inner, id: message.id.clone(), key: message.key.clone() };
        *inner.under_way.lock().unwrap().entry(guard.id.clone()).or_default() += 1;
        inner.begun.lock().unwrap().push(guard.id.clone());
        if let Some(key) = &guard.key {
            let name = format!("key {key}");
            let mut counts = inner.under_way.lock().unwrap();
            let count = counts.entry(name).or_default();
            *count += 1;
            let mut most = inner.most_under_way.lock().unwrap();
            let most = most.entry(guard.key.clone()).or_default();
            *most = (*most).max(*count);
        }
        guard
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        let mut counts = self.inner.under_way.lock().unwrap();
        if let Some(count) = counts.get_mut(&self.id) {
            *count -= 1;
        }
        if let Some(key) = &self.key
            && let Some(count) = counts.get_mut(&format!("key {key}"))
        {
            *count -= 1;
        }
    }
}
