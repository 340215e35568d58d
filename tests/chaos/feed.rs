//! The feed of a history: its readers, another program that appends without Postrider, and the verdict.

use std::time::{Duration, Instant};

use bson::{Document, doc};
use mongodb::options::WriteConcern;
use mongodb::{Collection, Database};
use postrider::context::{Context, ContextSettings};
use postrider::events::feed::Feed;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::checker::{FeedFault, judge, stored};
use crate::readers::{RecordingReader, end_all};
use crate::support::outbox::TestOutbox;

const READERS: usize = 3;

/// The aggregates of the other program, and its pause between two appends.
const AGGREGATES: usize = 2;
const APPEND_PAUSE: Duration = Duration::from_millis(150);

/// The error of MongoDB: a document with this `_id` exists.
const DUPLICATE_KEY: i32 = 11000;

/// The feed of a history, with readers in the process of the test.
pub struct FeedWatch {
    feed: Feed,
    database: Database,
    readers: Vec<RecordingReader>,
    stop: CancellationToken,
    program: JoinHandle<()>,
}

impl FeedWatch {
    /// Starts readers, and a program as an older release: it reports nothing.
    pub fn start(outbox: &TestOutbox) -> Self {
        let settings = ContextSettings { feed: true, ..ContextSettings::new(&outbox.database) };
        let feed = Feed::new(Context::new(outbox.client.clone(), settings));
        let readers = RecordingReader::start_all(&feed, READERS);
        let database = outbox.client.database(&outbox.database);
        let stop = CancellationToken::new();
        let streams = database.collection("legacy_event_stream");
        let program = tokio::spawn(append(streams, stop.clone()));
        Self { feed, database, readers, stop, program }
    }

    /// Waits until each append has a position, as long as there is no pause of this length; then
    /// checks what is stored, and what the readers saw.
    pub async fn end(self, patience: Duration) -> Vec<FeedFault> {
        self.stop.cancel();
        self.program.await.unwrap();
        let (mut left, mut moved) = (usize::MAX, Instant::now());
        while left > 0 && moved.elapsed() < patience {
            let appends = stored(&self.database).await;
            let now = appends.iter().filter(|append| append.position.is_none()).count();
            if now != left {
                (left, moved) = (now, Instant::now());
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        let head = self.feed.state().await.unwrap().map_or(0, |state| state.head);
        let seen = end_all(self.readers, head).await;
        judge(&stored(&self.database).await, head, &seen)
    }
}

/// Appends until `stop`. What a failover has made uncertain is tried again with the same id.
async fn append(streams: Collection<Document>, stop: CancellationToken) {
    let mut versions = [1_i64; AGGREGATES];
    while !stop.is_cancelled() {
        let aggregate = rand::random_range(0..AGGREGATES);
        let version = versions[aggregate];
        let event = doc! { "id": format!("{aggregate}-{version}"), "name": "Old", "body": {} };
        let document = doc! {
            "_id": format!("{aggregate}/{version}"),
            "contextName": "default",
            "aggregateName": "legacy",
            "aggregateId": aggregate.to_string(),
            "requestId": version.to_string(),
            "version": version,
            // Of little use.
            "createTime": rand::random_range(0..i64::from(i32::MAX)),
            "header": {},
            "size": 1,
            "body": [event],
        };
        let inserting = streams.insert_one(document).write_concern(WriteConcern::majority());
        match inserting.await {
            Ok(_) => versions[aggregate] += 1,
            Err(error) if is_duplicate(&error) => versions[aggregate] += 1,
            Err(_) => {}
        }
        tokio::select! {
            () = stop.cancelled() => {}
            () = tokio::time::sleep(APPEND_PAUSE) => {}
        }
    }
}

fn is_duplicate(error: &mongodb::error::Error) -> bool {
    use mongodb::error::{ErrorKind, WriteFailure};
    matches!(error.kind.as_ref(), ErrorKind::Write(WriteFailure::WriteError(write))
        if write.code == DUPLICATE_KEY)
}
