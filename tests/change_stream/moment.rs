//! No insert is missed between the stream and the full scan that belongs to it.

use std::sync::Arc;

use postrider::wakeup::{ScanHint, StreamEvent, Wakeup};

use crate::RunningStream;
use crate::support::command_recorder::{Command, CommandRecorder};
use crate::support::outbox::{TestOutbox, eventually, record};

fn hint(key: &str) -> ScanHint {
    ScanHint::Key { partition: postrider::partition::of_key(key), key: key.into() }
}

/// The moment is known, and the stream is not open yet.
#[fixture::test]
async fn an_insert_while_the_stream_opens_is_reported() {
    let outbox = Arc::new(TestOutbox::new().await);
    let recorder = CommandRecorder::on(&outbox).await;
    let producing = outbox.clone();
    outbox.insert([record("before", "before")]).await;
    let is_moment = |command: &Command| command.name == "find";
    recorder.after(is_moment, || async move { producing.insert([record("between", "k")]).await });
    let wake = Wakeup::default();

    let followed = RunningStream::up(&recorder.collections, &wake).await;

    assert!(recorder.has_paused());
    // (It does not report what was there before: the stream begins after its moment.)
    let mut hints: Vec<ScanHint> = Vec::new();
    eventually("the news", || {
        hints.extend(wake.take_events().iter().filter_map(StreamEvent::hint));
        let has_come = !hints.is_empty();
        async move { has_come }
    })
    .await;
    assert_eq!(hints, [hint("k")]);
    assert!(wake.take().all, "what was there before is for a look at everything");
    drop(followed);
}

/// A later snapshot contains what precedes the stream's moment; a moment ahead of the majority's
/// would not do.
#[fixture::test]
async fn the_moment_is_that_of_a_majority_snapshot() {
    let outbox = TestOutbox::new().await;
    let recorder = CommandRecorder::on(&outbox).await;

    let followed = RunningStream::up(&recorder.collections, &Wakeup::default()).await;

    let asked = &recorder.commands("find")[0];
    let concern = asked.sent.get_document("readConcern").unwrap();
    assert_eq!(concern.get_str("level").unwrap(), "snapshot");
    let moment = asked.answer.get_document("cursor").unwrap().get_timestamp("atClusterTime");
    let opened = &crate::opened(&recorder)[0].sent;
    let stage = opened.get_array("pipeline").unwrap()[0].as_document().unwrap();
    let stream = stage.get_document("$changeStream").unwrap();
    let mut from = stream.get_timestamp("startAtOperationTime").unwrap();
    from.increment -= 1;
    assert_eq!(from, moment.unwrap());
    drop(followed);
}
