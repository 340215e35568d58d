//! While batches are full no record waits for a wake-up: the stream, which would read every write
//! of them, is closed.

use bson::doc;
use mongodb::options::ReadConcern;
use postrider::change_stream::FollowerStatus;
use postrider::partition::owned::OwnedPartitions;
use postrider::relay::settings::Settings;
use postrider::wakeup::Wakeup;
use tokio::sync::watch;

use crate::support::command_recorder::CommandRecorder;
use crate::support::outbox::{TestOutbox, eventually, record};
use crate::support::relay::{parts, run};
use crate::support::sink::TestSink;
use crate::{RunningStream, opened, settings_without_rescan};

/// The server's open cursors on the records that are change streams.
async fn streams(outbox: &TestOutbox) -> usize {
    let operations = doc! { "$currentOp": { "idleCursors": true, "allUsers": true } };
    let ours = doc! { "$match": {
        "ns": format!("{}.outbox_records", outbox.database),
        "cursor.originatingCommand.pipeline.0.$changeStream": { "$exists": true },
    } };
    let admin = outbox.client.database("admin");
    let mut found =
        admin.aggregate([operations, ours]).read_concern(ReadConcern::local()).await.unwrap();
    let mut count = 0;
    while found.advance().await.unwrap() {
        count += 1;
    }
    count
}

#[fixture::test]
async fn the_stream_is_closed_only_while_batches_are_full() {
    // More keys than are read one by one, while the change stream carries the records.
    const RECORDS: usize = 8_000;
    let outbox = TestOutbox::new().await;
    let (recorder, sink, wake) =
        (CommandRecorder::on(&outbox).await, TestSink::default(), Wakeup::default());
    let settings = Settings { batch_size: 20, ..settings_without_rescan() };
    let followed = RunningStream::up(&recorder.collections, &wake).await;
    eventually("its cursor", || async { streams(&outbox).await == 1 }).await;
    let (owner, share) = watch::channel(OwnedPartitions::of(0..=255));
    let relay =
        run(parts(&recorder.collections, sink.clone(), settings, share, wake.clone()), owner);

    outbox.insert((0..RECORDS).map(|n| record(&format!("{n}"), &format!("k{n}")))).await;

    eventually("the stream to be closed", || async { !wake.is_followed() }).await;
    assert_eq!(*followed.following.borrow(), FollowerStatus::Up, "closed on purpose");
    eventually("its cursor's end", || async { streams(&outbox).await == 0 }).await;
    assert!(sink.ids().len() < RECORDS, "while there is much to do");
    assert_eq!(opened(&recorder).len(), 1);
    outbox.until_count(doc! { "status": "done" }, RECORDS as u64).await;
    eventually("the stream to be opened again", || async { wake.is_followed() }).await;
    assert_eq!(opened(&recorder).len(), 2);
    outbox.insert([record("woken", "woken")]).await;
    sink.until("woken", |arrived| arrived.iter().any(|message| message.id == "woken")).await;
    eventually("one cursor", || async { streams(&outbox).await == 1 }).await;
    relay.stop().await;
    drop(followed);
}
