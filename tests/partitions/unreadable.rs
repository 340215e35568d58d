//! Documents of instances and assignments with an unreadable field: each is reported, and affects
//! no other.

use std::time::{Duration, Instant};

use bson::raw::{RawArrayBuf, RawDocumentBuf, cstr};
use bson::{Bson, Document, doc, rawdoc};
use postrider::ids::InstanceId;
use postrider::partition::names::{self, WantedName};
use serde_json::Value;

use crate::instance::{Instance, Options, counts};
use crate::peer::Peer;
use crate::support::command_line::list_of;
use crate::support::outbox::{TestOutbox, broken, eventually, record};
use crate::support::process::{Postrider, Signal, call_with};
use crate::support::queue::{mongo_settings, stdout_sink};
use crate::support::sink::TestSink;

const ASSIGNMENTS: &str = "outbox_partition_assignments";
const INSTANCES: &str = "outbox_instances";
const CONTROL: &str = "outbox_control";

/// Sets these fields, with the text `MARK` replaced by invalid UTF-8.
async fn break_fields(
    outbox: &TestOutbox,
    collection: &str,
    id: impl Into<Bson>,
    fields: Document,
) {
    let statement = doc! { "q": { "_id": id.into() }, "u": { "$set": fields }, "upsert": true };
    let mut statements = RawArrayBuf::new();
    statements.push(broken(&statement));
    let mut command = rawdoc! { "update": collection };
    command.append(cstr!("updates"), statements);
    let database = outbox.client.database(&outbox.database);
    let written = database.run_raw_command(command).await.unwrap();
    assert_eq!(written.get_i32("n").unwrap(), 1, "{written}");
}

#[fixture::test]
async fn unreadable_documents_are_reported_and_stop_nothing() {
    let outbox = TestOutbox::new().await;
    let (theirs, other) = (bson::Uuid::new(), bson::Uuid::new());
    let beat = doc! { "lastHeartbeat": bson::DateTime::now(), "hostname": "MARK" };
    break_fields(&outbox, INSTANCES, theirs, beat).await;
    break_fields(&outbox, ASSIGNMENTS, 5, doc! { "instanceId": "MARK", "epoch": "MARK" }).await;
    break_fields(&outbox, ASSIGNMENTS, 6, doc! { "instanceId": 7, "epoch": f64::NAN }).await;
    break_fields(&outbox, ASSIGNMENTS, 7, doc! { "instanceId": other, "note": "MARK" }).await;
    break_fields(&outbox, CONTROL, "relay", doc! { "paused": "yes" }).await;
    let short = ["partitions.heartbeat=500ms", "partitions.stale_after=3s"];
    let mut settings = [mongo_settings(&outbox.database), stdout_sink()].concat();
    settings.extend(short.map(str::to_owned));

    let mut postrider = Postrider::start(&settings);

    postrider.until_metric("postrider_partitions_owned", |owned| owned == 256.0).await;
    outbox.insert((0..40).map(|n| record(&format!("r{n}"), &format!("k{n}")))).await;
    outbox.until_count(doc! { "status": "done" }, 40).await;
    let lines = postrider.lines();
    let warned = |collection: &str, id: &str, fields: &str| {
        let is_it = |line: &&Value| {
            line["message"] == "found an invalid document of instances or partitions"
                && line["level"] == "WARN"
                && (&line["collection"], &line["id"], &line["fields"])
                    == (&collection.into(), &id.into(), &fields.into())
                && !line["remedy"].as_str().unwrap().is_empty()
        };
        lines.iter().filter(is_it).count()
    };
    assert_eq!(warned(INSTANCES, &format!("uuid:{theirs}"), "hostname"), 1, "{lines:#?}");
    assert_eq!(warned(ASSIGNMENTS, "int:5", "epoch, instanceId"), 1, "{lines:#?}");
    assert_eq!(warned(ASSIGNMENTS, "int:6", "instanceId"), 1, "{lines:#?}");
    assert_eq!(warned(ASSIGNMENTS, "int:7", "note"), 1, "{lines:#?}");
    assert_eq!(warned(CONTROL, "str:relay", "paused"), 1, "{lines:#?}");
    let database = outbox.client.database(&outbox.database);
    let control = database.collection::<RawDocumentBuf>(CONTROL);
    control.delete_one(doc! { "_id": "relay" }).await.unwrap();
    // What the protocol does not rewrite stays until an operator removes it.
    let named = |report: &Value| {
        let part = &report["parts"]["partitions"];
        let detail = part["detail"].as_str().unwrap_or_default();
        part["status"] == "degraded"
            && detail.contains("outbox_partition_assignments: _id = int:7: note: cannot be read")
            && detail.contains("$unset")
    };
    postrider.until_report("the document", named).await;
    assert_eq!(postrider.readyz().await.0, 200);

    let partitions = list_of(&outbox, "partitions").await;
    assert_eq!(partitions.len(), 256);
    assert_eq!(partitions[7]["invalid"][0], "note: is not valid UTF-8");
    let broken = doc! { "lastHeartbeat": "MARK", "hostname": "MARK" };
    break_fields(&outbox, INSTANCES, theirs, broken).await;
    let instances = list_of(&outbox, "instances").await;
    let broken = instances.iter().find(|instance| instance["id"] == theirs.to_string()).unwrap();
    assert_eq!(broken["invalid"].as_array().unwrap().len(), 2, "{broken}");
    // It asks which instance owns the record's partition.
    postrider.signal(Signal::STOP);
    outbox.insert([record("waits", "k")]).await;
    let show = ["outbox", "show", "waits", "--output", "json"];
    call_with(&mongo_settings(&outbox.database), &show).await.with_code(0);
    postrider.signal(Signal::CONT);

    let remove = doc! { "$unset": { "note": "" } };
    let assignments = database.collection::<RawDocumentBuf>(ASSIGNMENTS);
    assignments.update_one(doc! { "_id": 7 }, remove).await.unwrap();
    let instances = database.collection::<RawDocumentBuf>(INSTANCES);
    instances.delete_one(doc! { "_id": theirs }).await.unwrap();
    postrider.until_logged("every document of instances and partitions is valid again").await;
    postrider.until_report("all well", |report| report["status"] == "ok").await;
    postrider.stop().await;
}

#[fixture::test]
async fn a_partition_with_an_unreadable_owner_waits_for_its_owner() {
    let outbox = TestOutbox::new().await;
    let (sink, choice) = (TestSink::default(), Options::default());
    let one = Instance::start(&outbox.collections, &sink, &choice);
    let two = Instance::start(&outbox.collections, &sink, &choice);
    eventually("a balance", || async { counts(&outbox, &[one.id, two.id]).await == [128, 128] })
        .await;
    one.until_owned(128).await;
    two.until_owned(128).await;
    let partition = one.share.borrow().partitions[0];

    let began = Instant::now();
    break_fields(&outbox, ASSIGNMENTS, i32::from(partition), doc! { "instanceId": "MARK" }).await;
    one.until_owned(127).await;
    let has = |instance: &Instance| instance.share.borrow().partitions.contains(&partition);
    let mut claimed = false;
    while !claimed {
        let both = has(&one) && has(&two);
        assert!(!both, "two at partition {partition}");
        claimed = has(&one) || has(&two);
        assert!(began.elapsed() < Duration::from_secs(60), "nobody claims it");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }

    assert!(began.elapsed() >= choice.stale_after, "after {:?}", began.elapsed());
    eventually("all to be owned", || async {
        counts(&outbox, &[one.id, two.id]).await.iter().sum::<usize>() == 256
    })
    .await;
}

#[fixture::test]
async fn an_unreadable_heartbeat_is_not_stale_before_its_time() {
    let outbox = TestOutbox::new().await;
    let peer = Peer::beat(&outbox).await;
    peer.own(&outbox, 0..=127).await;
    let id = Bson::from(peer.id);
    // It sends no more heartbeats, and its last one cannot be read.
    drop(peer);
    let choice = Options::default();

    let began = Instant::now();
    break_fields(&outbox, INSTANCES, id, doc! { "lastHeartbeat": "MARK" }).await;
    let one = Instance::start(&outbox.collections, &TestSink::default(), &choice);
    one.until_owned(128).await;
    one.until_owned(256).await;

    assert!(began.elapsed() >= choice.stale_after, "after {:?}", began.elapsed());
    let status = one.status.borrow().clone();
    let (document, count) = status.unreadable.unwrap();
    assert_eq!((document.collection.as_str(), count), (INSTANCES, 1));
    assert_eq!(document.fields, ["lastHeartbeat"]);
}

/// A holder that is not an instance holds nothing; otherwise no instance of the name could start.
#[fixture::test]
async fn a_name_with_an_unreadable_holder_is_free() {
    let outbox = TestOutbox::new().await;
    for (name, fields) in [
        ("bytes", doc! { "holder": "MARK" }),
        ("number", doc! { "holder": 7 }),
        ("note", doc! { "note": "MARK" }),
    ] {
        break_fields(&outbox, CONTROL, format!("name:{name}"), fields).await;
        let wanted = WantedName::Explicit(name.to_owned());
        let instance = InstanceId::fresh();

        let held = names::claim(&outbox.collections, instance, &wanted).await.unwrap();

        let holder = names::holder(&outbox.collections, name, Duration::from_secs(10)).await;
        assert_eq!((held.name.as_str(), holder.unwrap()), (name, Some(instance)));
    }
}
