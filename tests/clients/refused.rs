//! What is refused before MongoDB is asked.

use std::collections::BTreeSet;

use bson::doc;

use crate::cases::{cases, document, name, producer, record, refused_field, text};
use crate::support::command_recorder::CommandRecorder;
use crate::support::outbox::TestOutbox;

/// Cases that the types of Rust exclude: each takes a `String`, a `DateTime`, or nothing of that name.
const EXCLUDED: [&str; 32] = [
    "no type",
    "type is null",
    "type is a number",
    "no payload",
    "key is a number",
    "key is a boolean",
    "key is an ObjectId",
    "key is a document",
    "key is bytes",
    "contentType is a number",
    "contentType is an array",
    "destination is a number",
    "destination is an array",
    "tenantId is a number",
    "tenantId is an array",
    "dedupKey is a number",
    "dedupKey is an array",
    "headers is a string",
    "headers is an array",
    "headers is a number",
    "createdAt is a string",
    "createdAt is a number",
    "createdAt is a timestamp",
    "visibleAt is a string",
    "visibleAt is a number",
    "visibleAt is a timestamp",
    "status is not a field of a client's record",
    "seq is not a field of a client's record",
    "partition is not a field of a client's record",
    "_id is not a field of a client's record",
    "attempt is not a field of a client's record",
    "content_type is not a field of a client's record",
];

#[fixture::test]
async fn invalid_record_is_refused_with_the_name_of_its_field() {
    let test = TestOutbox::new().await;
    let recorder = CommandRecorder::on(&test).await;
    let client = recorder.collections.client();
    // The first use of a client: what is sent afterwards is its transactions'.
    client.database("admin").run_command(doc! { "ping": 1 }).await.unwrap();
    let mut excluded = BTreeSet::new();

    for case in cases("refused") {
        let Some(record) = record(&document(&case["record"])) else {
            excluded.insert(name(&case).to_owned());
            continue;
        };
        let mut session = client.start_session().await.unwrap();
        session.start_transaction().await.unwrap();
        let refused = producer(&test, &case).enqueue(&mut session, record).await;
        session.abort_transaction().await.unwrap();

        let refused = refused.expect_err(name(&case));
        assert_eq!(refused_field(&refused), case["field"].as_str(), "{}", name(&case));
    }

    assert_eq!(excluded, EXCLUDED.map(str::to_owned).into());
    let sent: Vec<String> = recorder.all().into_iter().map(|command| command.name).collect();
    assert_eq!(sent, ["ping"]);
    assert_eq!(test.count(doc! {}).await, 0);
}

#[test]
fn lone_surrogate_is_excluded_by_the_type_of_texts() {
    for case in cases("loneSurrogates") {
        assert_eq!(text(&case["units"]), None, "{}", name(&case));
    }
}
