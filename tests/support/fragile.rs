//! A sink with one connection for all publishes, which some records break.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use postrider::sink::{Message, PublishError, PublishFailure, Sink, SinkDown};
use tokio::sync::watch;

/// A publish that is in flight when the connection breaks does not learn its outcome.
#[derive(Clone, Default)]
pub struct FragileSink {
    inner: Arc<Inner>,
    connection: Arc<Connection>,
}

/// One connection: its number increases when it breaks.
#[derive(Default)]
struct Connection {
    number: watch::Sender<u64>,
    under_way: Mutex<HashSet<String>>,
}

#[derive(Default)]
struct Inner {
    poison: Mutex<HashSet<String>>,
    neighbours: Mutex<HashMap<String, Vec<HashSet<String>>>>,
    arrived: Mutex<Vec<String>>,
}

impl FragileSink {
    /// A sink whose connection breaks when one of these is published.
    pub fn poisoned(ids: &[&str]) -> Self {
        let sink = Self::default();
        sink.inner.poison.lock().unwrap().extend(ids.iter().map(|id| (*id).to_owned()));
        sink
    }

    /// The records that were in flight on the same connection during each publish of this record.
    pub fn neighbours(&self, id: &str) -> Vec<HashSet<String>> {
        self.inner.neighbours.lock().unwrap().get(id).cloned().unwrap_or_default()
    }

    /// What arrived, in order.
    pub fn ids(&self) -> Vec<String> {
        self.inner.arrived.lock().unwrap().clone()
    }

    fn begin(&self, id: &str) {
        let mut under_way = self.connection.under_way.lock().unwrap();
        let mut neighbours = self.inner.neighbours.lock().unwrap();
        for other in under_way.iter() {
            neighbours.get_mut(other).unwrap().last_mut().unwrap().insert(id.to_owned());
        }
        neighbours.entry(id.to_owned()).or_default().push(under_way.clone());
        under_way.insert(id.to_owned());
    }
}

impl Sink for FragileSink {
    async fn publish(&self, message: Message) -> Result<(), PublishError> {
        let mut connection = self.connection.number.subscribe();
        connection.mark_unchanged();
        self.begin(&message.id);
        // Long enough that other publishes overlap.
        let confirm = Duration::from_millis(30);
        let is_poison = self.inner.poison.lock().unwrap().contains(&message.id);
        let broken = if is_poison {
            tokio::time::sleep(confirm / 3).await;
            true
        } else {
            tokio::time::timeout(confirm, connection.changed()).await.is_ok()
        };
        self.connection.under_way.lock().unwrap().remove(&message.id);
        if is_poison {
            self.connection.number.send_modify(|number| *number += 1);
        }
        if broken {
            return Err(PublishError::new(PublishFailure::Indeterminate, "the connection broke"));
        }
        self.inner.arrived.lock().unwrap().push(message.id);
        Ok(())
    }

    async fn probe(&self) -> Result<(), SinkDown> {
        Ok(())
    }

    async fn lost(&self) -> SinkDown {
        std::future::pending().await
    }

    async fn close(&self) {}

    fn isolated(&self) -> Self {
        Self { inner: self.inner.clone(), connection: Arc::default() }
    }
}
