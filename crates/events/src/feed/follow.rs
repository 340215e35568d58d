//! Follows the appends of all processes by a change stream over the database.

use std::time::Duration;

use bson::raw::RawDocument;
use bson::{Bson, doc};
use futures_util::StreamExt;
use mongodb::Database;
use mongodb::raw_batch_cursor::RawBatchCursor;
use postrider_store::connect::primary;
use postrider_store::text::chain;
use postrider_store::{StoreError, cluster_time, limits, within};
use tokio::sync::mpsc;
use tracing::{debug, warn};

use crate::commits::CommittedAppend;
use crate::context::{CollectionKind, Context};
use crate::feed::collections::{SUFFIX, name_of};
use crate::feed::found::{projection_at, read};
use crate::feed::state::COLLECTION;
use crate::names::AggregateName;

/// How long the server waits for an event before it replies with an empty batch.
const MAX_AWAIT: Duration = Duration::from_secs(5);

/// How long a reply may take beyond that. A frozen server never replies.
const REPLY_TIMEOUT: Duration = Duration::from_secs(5);

/// The most events of a batch.
const BATCH_SIZE: u32 = 1_000;

/// The pause after a batch with events: a reply for each single append is expensive for the server, and
/// the appends of this process do not wait for it.
const PAUSE: Duration = Duration::from_millis(50);

/// The pause before the stream is opened again, at first and at most.
const RETRY_PAUSE: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(30));

const ACTION: &str = "open the change stream of the feed";

/// What the follower reports.
#[derive(Debug)]
pub(super) enum Followed {
    /// The stream is open: it reports every append from now on. What was committed before must be read.
    Opened,
    /// It is not: appends of other processes are found by scans alone.
    Lost,
    /// These were appended.
    Appends(Vec<CommittedAppend>),
    /// These collections have appends too.
    Names(Vec<AggregateName>),
}

/// Follows until the receiver is dropped; opens the stream again after errors.
pub(super) async fn follow(context: Context, reports: mpsc::Sender<Followed>) {
    let mut pause = RETRY_PAUSE.0;
    loop {
        let ended = follow_once(&context, &reports, &mut pause).await;
        if reports.is_closed() {
            return;
        }
        if let Err(error) = ended {
            let error = chain(&error);
            if pause == RETRY_PAUSE.0 {
                warn!(error, retry_in = ?pause, "the feed lost its change stream; it scans \
                                                 until a new one is open");
            } else {
                debug!(error, retry_in = ?pause, "failed to open the change stream of the feed");
            }
        }
        if reports.send(Followed::Lost).await.is_err() {
            return;
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(RETRY_PAUSE.1);
    }
}

async fn follow_once(
    context: &Context,
    reports: &mpsc::Sender<Followed>,
    pause: &mut Duration,
) -> Result<(), StoreError> {
    let mut cursor = open(&context.database(CollectionKind::Events)).await?;
    if reports.send(Followed::Opened).await.is_err() {
        return Ok(());
    }
    *pause = RETRY_PAUSE.0;
    loop {
        let next = async { cursor.next().await.transpose() };
        let batch = within(ACTION, MAX_AWAIT + REPLY_TIMEOUT, next).await?;
        let broken = |detail: String| StoreError::Answer { action: ACTION, detail };
        let Some(batch) = batch else {
            return Err(broken(
                "the change stream ended, since the database was dropped".to_owned(),
            ));
        };
        let events = batch.doc_slices().map_err(|error| broken(error.to_string()))?;
        let mut appends = Vec::new();
        let mut names: Vec<AggregateName> = Vec::new();
        for event in events {
            let event = event.map_err(|error| broken(error.to_string()))?;
            let Some((name, append)) = event.as_document().and_then(appended) else { continue };
            if !names.contains(&name) {
                names.push(name);
            }
            appends.extend(append);
        }
        if appends.is_empty() && names.is_empty() {
            if reports.is_closed() {
                return Ok(());
            }
            continue;
        }
        let sent = async {
            reports.send(Followed::Names(names)).await?;
            reports.send(Followed::Appends(appends)).await
        };
        if sent.await.is_err() {
            return Ok(());
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// Opens the stream at the time of a snapshot: it shows every append that a later read may not show.
async fn open(database: &Database) -> Result<RawBatchCursor, StoreError> {
    let from = cluster_time::of_snapshot(database, COLLECTION, ACTION).await?.at;
    let stream = doc! { "startAtOperationTime": Bson::Timestamp(cluster_time::next(from)) };
    let pipeline = vec![
        doc! { "$changeStream": stream },
        doc! { "$match": {
            "operationType": "insert",
            "ns.coll": { "$regex": format!("{SUFFIX}$") },
        } },
        doc! { "$project": { "coll": "$ns.coll", "append": projection_at("$fullDocument") } },
    ];
    let command = doc! {
        "aggregate": 1,
        "pipeline": pipeline,
        "cursor": { "batchSize": BATCH_SIZE },
        "readConcern": { "level": "majority" },
    };
    let opening = database
        .run_cursor_command(command)
        .selection_criteria(primary())
        .max_time(MAX_AWAIT)
        .batch_size(BATCH_SIZE)
        .batch();
    within(ACTION, limits::BATCH_TIMEOUT, opening).await
}

/// The append of an event, and its aggregate name. An invalid one is left to the scans, which count it.
fn appended(event: &RawDocument) -> Option<(AggregateName, Option<CommittedAppend>)> {
    let name = name_of(event.get_str("coll").ok()?)?;
    let found = read(&name, event.get_document("append").ok()?);
    Some((name, found.filter(|found| found.position.is_none()).map(|found| found.append)))
}
