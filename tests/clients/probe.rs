//! `probe` finds what is wrong, and leaves nothing behind.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bson::{Document, doc};
use mongodb::Client;
use postrider::outbox::collections::names::RECORDS;
use postrider::outbox::{Outbox, ProbeError};
use postrider::schema::roles::{On, PRODUCER, Privilege, Role, When};
use tokio::net::TcpListener;

use crate::support::fault_proxy::{Direction, FaultProxy};
use crate::support::mongod::Mongod;
use crate::support::outbox::{TestOutbox, client};
use crate::support::queue::host_of;
use crate::support::roles;

/// The rights of a producer without those of a reader.
const INSERTING: Role = Role {
    name: "inserting",
    serves: "this test",
    privileges: &[Privilege {
        on: On::Collection(RECORDS),
        actions: &["insert"],
        when: When::Always,
    }],
};

#[fixture::test]
async fn probe_succeeds_and_leaves_nothing_behind() {
    let test = TestOutbox::new().await;
    let database = test.client.database(&test.database);

    Outbox::new(&database, "").probe().await.unwrap();
    // Where the collection does not exist too.
    Outbox::new(&database, "absent_").probe().await.unwrap();

    assert_eq!(test.count(doc! {}).await, 0);
    let names = database.list_collection_names().await.unwrap();
    assert!(!names.contains(&"absent_outbox_records".to_owned()), "{names:?}");
}

/// A proxy that leaves the zero as it is, which here replaces what MongoDB answers.
#[fixture::test]
async fn probe_reports_a_zero_seq() {
    let test = TestOutbox::new().await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let replaced = Arc::new(AtomicBool::new(false));
    let has_replaced = replaced.clone();
    let proxy = FaultProxy::to_member(
        listener,
        host_of(&test.uri).parse().unwrap(),
        Box::new(move |direction, message| {
            if direction == Direction::Answer && zero_seq(message) {
                replaced.store(true, Ordering::Relaxed);
            }
        }),
    );
    let client = Client::with_uri_str(proxy.mongodb_uri("admin")).await.unwrap();

    let probed = Outbox::new(&client.database(&test.database), "").probe().await;

    assert!(matches!(probed, Err(ProbeError::SeqNotFilled { found: "zero" })), "{probed:?}");
    assert!(has_replaced.load(Ordering::Relaxed));
}

/// Sets each timestamp `seq` in the message to zero.
fn zero_seq(message: &mut [u8]) -> bool {
    const FIELD: &[u8] = b"\x11seq\0";
    let Some(at) = message.windows(FIELD.len()).position(|bytes| bytes == FIELD) else {
        return false;
    };
    let value = at + FIELD.len();
    message[value..value + 8].fill(0);
    true
}

#[fixture::test]
async fn probe_reports_a_server_without_transactions() {
    let mongod = Mongod::standalone().await;
    let client = client(&mongod.uri("", "shop")).await;

    let probed = Outbox::new(&client.database("shop"), "").probe().await;

    let error = probed.unwrap_err();
    assert!(matches!(error, ProbeError::NoTransactions(_)), "{error:?}");
    assert!(error.to_string().contains("make it a replica set"), "{error}");
}

#[fixture::test]
async fn probe_succeeds_with_the_rights_of_a_producer() {
    let test = TestOutbox::restricted().await;
    let client = client(&roles::uri_of(&PRODUCER, &test.database)).await;

    Outbox::new(&client.database(&test.database), "").probe().await.unwrap();

    assert_eq!(test.count(Document::new()).await, 0);
}

#[fixture::test]
async fn probe_reports_that_it_may_not_read() {
    let test = TestOutbox::restricted().await;
    let privileges = roles::privileges(&INSERTING, &test.database, "", Duration::MAX);
    roles::user_with(&test.client.database(&test.database), INSERTING.name, privileges).await;
    let uri = roles::uri_of(&INSERTING, &test.database);
    let client = client(&uri).await;

    let probed = Outbox::new(&client.database(&test.database), "").probe().await;

    let error = probed.unwrap_err();
    assert!(matches!(error, ProbeError::NotReadable { .. }), "{error:?}");
    assert_eq!(test.count(Document::new()).await, 0);
}
