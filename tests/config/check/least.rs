//! The whole process as a user with the relay's role only.

use bson::{Document, doc};
use postrider::schema::roles::{OPERATOR, PRODUCER};
use rustix::process::Signal;

use crate::check::{check, with};
use crate::support::outbox::{TestOutbox, eventually, record};
use crate::support::process::{Postrider, call_with};
use crate::support::queue::stdout_sink;
use crate::support::roles::uri_of;

#[fixture::test]
async fn a_process_with_the_relays_role_alone_runs() {
    let outbox = TestOutbox::restricted().await;
    let uri = format!("mongo.uri={}", outbox.uri);
    let database = format!("mongo.database={}", outbox.database);
    let settings = with(&stdout_sink(), &[&uri, &database, "outbox.auto_init_schema=false"]);
    let producer = mongodb::Client::with_uri_str(uri_of(&PRODUCER, &outbox.database)).await;
    let producer = producer.unwrap().database(&outbox.database);

    let mut postrider = Postrider::start(&settings);
    postrider.until_ready().await;
    let records = producer.collection::<Document>("outbox_records");
    records.insert_many([record("a", "k"), record("b", "k")]).await.unwrap();
    outbox.until_count(doc! { "status": "done" }, 2).await;
    postrider
        .until_metric("postrider_outbox_records{status=\"pending\"}", |count| count >= 0.0)
        .await;
    postrider
        .until_metric("postrider_outbox_records{status=\"invalid\"}", |count| count == 0.0)
        .await;
    postrider.until_report("all well", |report| report["status"] == "ok").await;
    let found = check(&settings).await;
    let instances =
        outbox.client.database(&outbox.database).collection::<Document>("outbox_instances");
    let beating = instances.count_documents(doc! {}).await.unwrap();
    postrider.signal(Signal::TERM);
    let ended = postrider.until_ended(std::time::Duration::from_secs(40)).await.with_code(0);

    assert_eq!(ended.stdout.lines().count(), 2, "{ended}");
    assert!(!ended.stderr.contains("not authorized"), "{ended}");
    found.is_good("privileges", "postrider_relay");
    assert_eq!((found.code, found.bad()), (Some(0), vec![]), "{:#?}", found.findings);
    assert_eq!(beating, 1);
    eventually("it has signed off", || async {
        instances.count_documents(doc! {}).await.unwrap() == 0
    })
    .await;
    let refused = records.delete_one(doc! {}).await.unwrap_err().to_string();
    assert!(refused.contains("not authorized"), "a producer removes nothing: {refused}");

    let operator = format!("mongo.uri={}", uri_of(&OPERATOR, &outbox.database));
    for arguments in [["outbox", "stats"].as_slice(), &["outbox", "list"], &["outbox", "show", "a"]]
    {
        call_with(std::slice::from_ref(&operator), arguments).await.with_code(0);
    }
}
