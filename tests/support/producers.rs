//! Producers that keep inserting, whatever happens to the database.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bson::{Document, doc};
use mongodb::error::{
    Error, ErrorKind, TRANSIENT_TRANSACTION_ERROR, UNKNOWN_TRANSACTION_COMMIT_RESULT, WriteFailure,
};
use mongodb::options::ReadConcern;
use mongodb::{ClientSession, Collection};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::outbox::{TestOutbox, eventually, record};

/// Keys of one producer; each key has one producer, which inserts its records one
/// transaction after the other.
const KEYS_PER_PRODUCER: usize = 3;

/// The pause between two transactions of a producer: a load that two cores carry easily.
const PAUSE: Duration = Duration::from_millis(5);

/// Without it the driver would wait for a hanging server for as long as it hangs.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// Makes a record from its id and key.
pub type Make = Arc<dyn Fn(&str, &str) -> Document + Send + Sync>;

/// Makes the id of a record from its key, the number of its transaction, and its place in it.
pub type Name = Arc<dyn Fn(&str, u64, u64) -> String + Send + Sync>;

/// Ids in the order of insertion.
pub fn in_order(key: &str, transaction: u64, place: u64) -> String {
    format!("{key}/{transaction:06}.{place}")
}

/// Running producers.
pub struct Producers {
    stop: CancellationToken,
    tasks: JoinSet<()>,
    committed: Arc<Mutex<Vec<String>>>,
    transactions: Arc<AtomicU64>,
}

impl Producers {
    /// Starts `count` producers on the keys `p0k0`, `p0k1`, ….
    pub fn start(outbox: &TestOutbox, count: usize) -> Self {
        Self::making(outbox, count, PAUSE, Arc::new(record))
    }

    /// The same with another pause, and records that the test makes.
    pub fn making(outbox: &TestOutbox, count: usize, rest: Duration, make: Make) -> Self {
        Self::naming(outbox, count, rest, make, Arc::new(in_order))
    }

    /// The same with ids that the test chooses; they must be the same for the same place.
    pub fn naming(
        outbox: &TestOutbox,
        count: usize,
        rest: Duration,
        make: Make,
        name: Name,
    ) -> Self {
        let mut producers = Self {
            stop: CancellationToken::new(),
            tasks: JoinSet::new(),
            committed: Arc::default(),
            transactions: Arc::default(),
        };
        for number in 0..count {
            let producer = Producer {
                number,
                rest,
                make: make.clone(),
                name: name.clone(),
                client: outbox.client.clone(),
                records: outbox.records(),
                committed: producers.committed.clone(),
                transactions: producers.transactions.clone(),
            };
            producers.tasks.spawn(producer.run(producers.stop.clone()));
        }
        producers
    }

    /// The keys of `count` producers.
    pub fn keys(count: usize) -> impl Iterator<Item = String> {
        (0..count).flat_map(|number| (0..KEYS_PER_PRODUCER).map(move |key| key_of(number, key)))
    }

    /// Waits until they have committed this many more transactions.
    pub async fn until_more(&self, transactions: u64) {
        let goal = self.transactions.load(Ordering::Relaxed) + transactions;
        let reached = || async { self.transactions.load(Ordering::Relaxed) >= goal };
        eventually("producers to commit more", reached).await;
    }

    /// Ends each after its current transaction; returns the ids whose commit was acknowledged.
    pub async fn stop(mut self) -> Vec<String> {
        self.stop.cancel();
        while let Some(ended) = self.tasks.join_next().await {
            ended.unwrap();
        }
        std::mem::take(&mut *self.committed.lock().unwrap())
    }
}

fn key_of(number: usize, key: usize) -> String {
    format!("p{number}k{key}")
}

struct Producer {
    number: usize,
    rest: Duration,
    make: Make,
    name: Name,
    client: mongodb::Client,
    records: Collection<Document>,
    committed: Arc<Mutex<Vec<String>>>,
    transactions: Arc<AtomicU64>,
}

impl Producer {
    async fn run(self, stop: CancellationToken) {
        let mut session = self.client.start_session().await.unwrap();
        for n in 0_u64.. {
            if stop.is_cancelled() {
                return;
            }
            let key = key_of(self.number, usize::try_from(n).unwrap() % KEYS_PER_PRODUCER);
            let ids: Vec<String> = (0..n % 3 + 1).map(|i| (self.name)(&key, n, i)).collect();
            loop {
                let inserting = self.insert(&mut session, &key, &ids);
                match tokio::time::timeout(ANSWER_TIMEOUT, inserting).await {
                    Ok(Ok(())) => break,
                    Ok(Err(error)) => assert!(is_passing(&error), "a producer met {error}"),
                    Err(_) => {}
                }
                // A new session aborts the transaction of the old one.
                session = self.client.start_session().await.unwrap();
                tokio::time::sleep(self.rest).await;
            }
            self.committed.lock().unwrap().extend(ids);
            self.transactions.fetch_add(1, Ordering::Relaxed);
            tokio::time::sleep(self.rest).await;
        }
    }

    async fn insert(
        &self,
        session: &mut ClientSession,
        key: &str,
        ids: &[String],
    ) -> Result<(), Error> {
        session.start_transaction().await?;
        let inserted = self
            .records
            .insert_many(ids.iter().map(|id| (self.make)(id, key)))
            .session(&mut *session)
            .await;
        match inserted {
            // An earlier attempt has committed, and only its answer was lost; unless a rollback
            // still removes it.
            Err(error) if is_there(&error) => {
                // The server has aborted it already; this updates the session.
                let _ = session.abort_transaction().await;
                return if self.majority_has(ids).await? { Ok(()) } else { Err(error) };
            }
            other => other?,
        };
        loop {
            // Repeated for as long as the outcome is unknown.
            match session.commit_transaction().await {
                Err(error) if error.contains_label(UNKNOWN_TRANSACTION_COMMIT_RESULT) => {
                    tokio::time::sleep(self.rest).await;
                }
                other => return other,
            }
        }
    }

    async fn majority_has(&self, ids: &[String]) -> Result<bool, Error> {
        let count = self.records.count_documents(doc! { "_id": { "$in": ids } });
        Ok(count.read_concern(ReadConcern::majority()).await? == ids.len() as u64)
    }
}

/// Whether the same transaction may succeed later.
fn is_passing(error: &Error) -> bool {
    error.contains_label(TRANSIENT_TRANSACTION_ERROR)
        || is_there(error)
        || matches!(*error.kind, ErrorKind::ServerSelection { .. } | ErrorKind::Io(_))
}

fn is_there(error: &Error) -> bool {
    const DUPLICATE_KEY: i32 = 11000;
    match error.kind.as_ref() {
        ErrorKind::InsertMany(failure) => {
            let errors = failure.write_errors.iter().flatten();
            errors.into_iter().any(|error| error.code == DUPLICATE_KEY)
        }
        ErrorKind::Write(WriteFailure::WriteError(error)) => error.code == DUPLICATE_KEY,
        ErrorKind::Command(error) => error.code == DUPLICATE_KEY,
        _ => false,
    }
}
