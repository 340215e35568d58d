//! What becomes of records in transactions that commit, abort and are repeated.

use std::sync::atomic::{AtomicU32, Ordering};

use bson::{Bson, Document, Timestamp, doc};
use mongodb::options::ClientOptions;
use mongodb::{Client, ClientSession};
use postrider::outbox::Outbox;
use postrider::store::error::driver_code;
use serde_json::Value;

use crate::cases::{Case, cases, document, name, producer, record, refused_field};
use crate::support::command_recorder::CommandRecorder;
use crate::support::environment::unique;
use crate::support::outbox::TestOutbox;

/// How often a case is run in which another test replaced the fail point of the server.
const RUNS: usize = 5;

#[fixture::test]
async fn transactions_end_as_the_cases_say() {
    for case in cases("transactions") {
        let test = TestOutbox::new().await;
        match case["does"].as_str().unwrap() {
            "commit" => ends(&test, &case, true).await,
            "abort" => ends(&test, &case, false).await,
            "repeat" => repeats(&test, &case).await,
            "refuse" => refuses(&test, &case).await,
            "twice" => refuses_second(&test, &case).await,
            "order" => orders(&test, &case).await,
            other => panic!("unknown: {other}"),
        }
        let expected = case["records"].as_u64().unwrap();
        assert_eq!(test.count(doc! {}).await, expected, "{}", name(&case));
    }
}

async fn started(client: &Client) -> ClientSession {
    let mut session = client.start_session().await.unwrap();
    session.start_transaction().await.unwrap();
    session
}

async fn ends(test: &TestOutbox, case: &Case, commits: bool) {
    let mut session = started(&test.client).await;
    let record = record(&document(&case["record"])).unwrap();
    producer(test, case).enqueue(&mut session, record).await.unwrap();
    if commits {
        session.commit_transaction().await.unwrap();
    } else {
        session.abort_transaction().await.unwrap();
    }
}

async fn repeats(test: &TestOutbox, case: &Case) {
    let expected = case["calls"].as_u64().unwrap();
    let mut calls = Vec::new();
    while calls.last() != Some(&expected) {
        assert!(calls.len() < RUNS, "{}: called {calls:?} times", name(case));
        test.records().delete_many(doc! {}).await.unwrap();
        calls.push(repeated(test, case).await);
    }
}

/// Runs the case and returns how many times the callback was called.
async fn repeated(test: &TestOutbox, case: &Case) -> u64 {
    let mut options = ClientOptions::parse(&test.uri).await.unwrap();
    options.app_name = Some(unique("repeats"));
    let app_name = options.app_name.clone();
    let client = Client::with_options(options).unwrap();
    let outbox = Outbox::new(&client.database(&test.database), "");
    let record = record(&document(&case["record"])).unwrap();
    let mut fail = document(&case["failPoint"]);
    fail.get_document_mut("data").unwrap().insert("appName", app_name);
    let admin = test.client.database("admin");
    admin.run_command(fail).await.unwrap();

    let calls = AtomicU32::new(0);
    let mut session = client.start_session().await.unwrap();
    let enqueued = session.start_transaction().and_run2(async |session| {
        calls.fetch_add(1, Ordering::Relaxed);
        outbox.enqueue(session, record.clone()).await
    });
    let id = enqueued.await.unwrap();

    admin.run_command(doc! { "configureFailPoint": "failCommand", "mode": "off" }).await.unwrap();
    assert_eq!(&id, record.record_id());
    test.record(&id).await;
    calls.into_inner().into()
}

async fn refuses(test: &TestOutbox, case: &Case) {
    let state = case["session"].as_str().unwrap();
    if state == "none" {
        // The type of `enqueue` excludes it.
        return;
    }
    let recorder = CommandRecorder::on(test).await;
    let client = recorder.collections.client();
    let mut session = client.start_session().await.unwrap();
    if state != "neverStarted" {
        session.start_transaction().await.unwrap();
        let records = client.database(&test.database).collection::<Document>("outbox_records");
        records.find_one(doc! {}).session(&mut session).await.unwrap();
        match state {
            "committed" => session.commit_transaction().await.unwrap(),
            "aborted" => session.abort_transaction().await.unwrap(),
            other => panic!("unknown: {other}"),
        }
    }
    let sent = recorder.all().len();

    let outbox = Outbox::new(&client.database(&test.database), "");
    let record = record(&document(&case["record"])).unwrap();
    let refused = outbox.enqueue(&mut session, record.clone()).await.unwrap_err();

    assert_eq!(refused_field(&refused), case["field"].as_str(), "{}", name(case));
    assert_eq!(recorder.all().len(), sent, "{}", name(case));
    // The session can be used afterwards.
    session.start_transaction().await.unwrap();
    outbox.enqueue(&mut session, record).await.unwrap();
    session.abort_transaction().await.unwrap();
}

async fn refuses_second(test: &TestOutbox, case: &Case) {
    let outbox = producer(test, case);
    let [first, second] = ["first", "second"].map(|which| record(&document(&case[which])).unwrap());
    let mut session = started(&test.client).await;
    outbox.enqueue(&mut session, first).await.unwrap();
    if !case["oneTransaction"].as_bool().unwrap() {
        session.commit_transaction().await.unwrap();
        session.start_transaction().await.unwrap();
    }

    let refused = outbox.enqueue(&mut session, second).await.unwrap_err();
    session.abort_transaction().await.unwrap();

    let code = driver_code(&refused).map(i64::from);
    assert_eq!(code, case["code"].as_i64(), "{}: {refused}", name(case));
}

async fn orders(test: &TestOutbox, case: &Case) {
    let outbox = producer(test, case);
    let is_one = case["oneTransaction"].as_bool().unwrap();
    let mut session = started(&test.client).await;
    let mut ids = Vec::new();
    for (index, entry) in case["entries"].as_array().unwrap().iter().enumerate() {
        if index > 0 && !is_one {
            session.commit_transaction().await.unwrap();
            session.start_transaction().await.unwrap();
        }
        ids.push(outbox.enqueue(&mut session, new(entry)).await.unwrap());
    }
    session.commit_transaction().await.unwrap();

    let mut seqs = Vec::new();
    for id in ids {
        seqs.push(seq(&test.record(&id).await));
    }
    assert!(seqs.is_sorted_by(|one, other| one < other), "{}: {seqs:?}", name(case));
}

fn new(entry: &Value) -> postrider::outbox::NewRecord {
    record(&document(entry)).unwrap()
}

fn seq(record: &Document) -> Timestamp {
    match record.get("seq") {
        Some(Bson::Timestamp(seq)) => *seq,
        other => panic!("no timestamp: {other:?}"),
    }
}
