//! Histories: bridges die at fail points and are killed, MongoDB elects and rolls back, transactions commit late, the
//! old relay is stopped half-way. Each document is copied once, in the order of the commits.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use bson::{Bson, DateTime, Document, doc};
use futures_util::TryStreamExt;
use mongodb::Collection;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::presets::namastack;
use crate::support::outbox::{TestOutbox, eventually};
use crate::support::process::{Postrider, Signal};
use crate::support::replica_set::ReplicaSet;
use crate::util::TestSource;

/// How long faults happen.
const DURATION: Duration = Duration::from_secs(12);

const WRITERS: usize = 3;

struct History {
    set: ReplicaSet,
    source: TestSource,
    stop: CancellationToken,
    writers: JoinSet<u64>,
}

impl History {
    /// Begins to write after a bridge has opened its change stream: all that counts is in there.
    async fn begin(members: usize) -> (Self, Postrider) {
        let set = ReplicaSet::of(members).await;
        set.end_transactions_soon().await;
        let outbox = TestOutbox::at(&set.uri()).await;
        let more = ["adopt.handler=orders".to_owned(), format!("mongo.uri={}", set.uri())];
        let more: Vec<&str> = more.iter().map(String::as_str).collect();
        let source = TestSource::of(outbox, "namastack", &more);
        source.insert(vec![namastack("done", "done", "COMPLETED", 0)]).await;
        let mut history =
            Self { set, source, stop: CancellationToken::new(), writers: JoinSet::new() };
        let first = history.source.receiving(&[]).await;
        for writer in 0..WRITERS {
            let late = writer == 0;
            let (documents, stop) = (history.source.documents(), history.stop.clone());
            history.writers.spawn(write(documents, writer, late, stop));
        }
        (history, first)
    }

    fn start(&self, fail_points: &str) -> Postrider {
        self.source.start(&["--old-relay-stopped"], fail_points)
    }

    /// Ends the faults; compares the records with the documents.
    async fn judge(mut self) {
        self.stop.cancel();
        let mut acknowledged = 0;
        while let Some(count) = self.writers.join_next().await {
            acknowledged += count.unwrap();
        }
        let mut last = self.start("");
        let documents = self.source.documents();
        let uncopied = async || {
            documents.count_documents(doc! { "status": "NEW" }).await.is_ok_and(|count| count == 0)
        };
        eventually("all copies", uncopied).await;
        let ended = last.stop().await;
        assert_eq!(ended.code, Some(0), "{ended}");

        let written = documents.find(doc! { "_id": { "$ne": "done" } }).await.unwrap();
        let written: Vec<Document> = written.try_collect().await.unwrap();
        let records = self.source.records().await;
        let count = u64::try_from(written.len()).unwrap();
        assert!(count >= acknowledged, "{count} of {acknowledged} acknowledged");
        assert!(acknowledged > 30, "only {acknowledged}");
        let ids = |list: &[Document]| -> BTreeSet<String> {
            list.iter().map(|one| one.get_str("_id").unwrap().to_owned()).collect()
        };
        assert_eq!(ids(&records), ids(&written));
        assert_eq!(records.len(), written.len(), "copied twice");
        let mut of_keys: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for record in &records {
            let key = record.get_str("key").unwrap();
            of_keys.entry(key).or_default().push(record.get_str("_id").unwrap());
        }
        for (key, ids) in of_keys {
            assert!(ids.is_sorted(), "{key}: {ids:?}");
        }
    }
}

/// Writes the documents of a key, each after the commit of the one before. Their own time falls, so that a scan would
/// copy them backwards. Returns how many were acknowledged.
async fn write(
    documents: Collection<Document>,
    writer: usize,
    late: bool,
    stop: CancellationToken,
) -> u64 {
    for number in 0.. {
        if stop.is_cancelled() {
            return u64::try_from(number).unwrap();
        }
        let id = format!("{writer}-{number:06}");
        let document = namastack(&id, &format!("k{writer}"), "NEW", -number);
        while !is_written(&documents, &document, late).await {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    unreachable!()
}

async fn is_written(documents: &Collection<Document>, document: &Document, late: bool) -> bool {
    let client = documents.client();
    let written: mongodb::error::Result<()> = async {
        let mut session = client.start_session().await?;
        let majority = postrider::store::connect::majority();
        session.start_transaction().write_concern(majority).await?;
        documents.insert_one(document).session(&mut session).await?;
        if late {
            tokio::time::sleep(Duration::from_millis(rand::random_range(0..500))).await;
        }
        session.commit_transaction().await
    }
    .await;
    // One whose answer was lost may be there.
    written.is_ok()
        || documents
            .count_documents(doc! { "_id": document.get("_id").unwrap() })
            .read_concern(mongodb::options::ReadConcern::linearizable())
            .await
            .is_ok_and(|count| count == 1)
}

fn fail_point(rng: &mut StdRng) -> String {
    let place = ["before_commit", "after_commit"][rng.random_range(0..2)];
    format!("adopt::{place}={}*off->return", rng.random_range(0..20))
}

/// Two processes die at fail points, again and again.
#[fixture::test(long)]
async fn killed_bridges_copy_each_document_once_in_the_order_of_commits() {
    let mut rng = StdRng::seed_from_u64(1);
    let (history, first) = History::begin(1).await;
    drop(first);
    let mut running = [0, 1].map(|_| history.start(&fail_point(&mut rng)));
    let mut deaths = 0;
    let began = Instant::now();

    while began.elapsed() < DURATION || deaths < 4 {
        assert!(began.elapsed() < Duration::from_secs(180), "{deaths} deaths");
        for process in &mut running {
            if process.has_ended() {
                let ended = process.until_ended(Duration::from_secs(10)).await;
                assert_eq!(ended.code, None, "{ended}");
                deaths += 1;
                *process = history.start(&fail_point(&mut rng));
            }
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    drop(running);

    history.judge().await;
}

/// Elections and rollbacks: a copy that is rolled back is so with the mark of its document.
#[fixture::test(long)]
async fn rollback_of_mongodb_leaves_each_document_copied_once() {
    let mut rng = StdRng::seed_from_u64(3);
    let (mut history, mut running) = History::begin(3).await;

    for round in 0..3 {
        tokio::time::sleep(Duration::from_millis(rng.random_range(500..2_000))).await;
        if round == 1 {
            history.set.step_down().await;
            running.signal(Signal::KILL);
            running = history.start("");
        } else {
            let lasts = Duration::from_millis(rng.random_range(300..1_500));
            history.set.roll_back(&history.source.outbox.database, lasts).await;
        }
    }
    drop(running);

    history.judge().await;
}

/// The old relay has sent a message, and is stopped before it could mark it.
#[fixture::test(long)]
async fn old_relay_that_is_stopped_half_way_leaves_the_rest() {
    let source = TestSource::new("namastack", &["adopt.handler=orders"]).await;
    let document = |n: i64| namastack(&format!("{n:03}"), &format!("k{}", n % 3), "NEW", n);
    source.insert((0..60).map(document).collect()).await;
    let documents = source.documents();
    let mut sent = Vec::new();
    for n in 0..25 {
        let id = format!("{n:03}");
        sent.push(id.clone());
        if n < 24 {
            let done = doc! { "$set": { "status": "COMPLETED", "completedAt": DateTime::now() } };
            documents.update_one(doc! { "_id": id }, done).await.unwrap();
        }
    }

    let report = source.once().await;

    assert_eq!(report["copied"], 36, "{report:#}");
    let copied = source.ids().await;
    assert_eq!(copied, (24..60).map(|n| Bson::from(format!("{n:03}"))).collect::<Vec<_>>());
    let twice: Vec<&String> = sent.iter().filter(|id| copied.contains(&Bson::from(*id))).collect();
    assert_eq!(twice, ["024"], "what it had in flight, and nothing else");
}
