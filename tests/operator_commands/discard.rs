//! Discard: dead and scheduled records, and pending ones without a lease.

use bson::doc;
use serde_json::json;

use crate::support::outbox::{TestOutbox, record};
use crate::{answer, dead, in_seconds, leased, outbox_command, with_status};

#[fixture::test]
async fn only_records_without_a_lease_are_discarded() {
    let outbox = TestOutbox::new().await;
    outbox.insert([dead("dead", "k", "refused: no"), with_status("later", "k", "scheduled")]).await;
    outbox.insert([record("free", "k"), leased("expired", "k", in_seconds(-5))]).await;
    outbox.insert([leased("held", "k", in_seconds(600)), with_status("done", "k", "done")]).await;

    let unconfirmed = ["discard", "dead", "later", "free", "expired"];
    let tried = answer(&outbox, &[&unconfirmed[..], &["--dry-run"]].concat()).await;
    let unasked = outbox_command(&outbox, &unconfirmed).await.with_code(1);
    assert_eq!(outbox.count(doc! {}).await, 5, "only the dead one is gone: {unasked}");
    let gone = answer(&outbox, &["discard", "later", "free", "expired", "--yes"]).await;
    let refused = ["discard", "held", "done", "dead", "--yes"];
    let refused = outbox_command(&outbox, &refused).await.with_code(1);

    assert_eq!(tried, json!({ "matched": 4, "discarded": 0 }));
    for (id, status) in [("later", "scheduled"), ("free", "pending"), ("expired", "pending")] {
        let line = format!("error: {id}: it is {status}, not dead; use --yes if");
        assert!(unasked.stderr.contains(&line), "{unasked}");
    }
    assert_eq!(gone, json!({ "matched": 3, "discarded": 3 }));
    assert!(refused.stderr.contains("error: held: it is leased until "), "{refused}");
    assert!(refused.stderr.contains("error: done: it is done; only"), "{refused}");
    assert!(refused.stderr.contains("error: dead: there is no record"), "{refused}");
    assert_eq!(outbox.count(doc! {}).await, 2, "{refused}");
}

#[fixture::test]
async fn a_relay_field_of_a_wrong_type_is_not_a_lease() {
    let outbox = TestOutbox::new().await;
    let mut odd = leased("odd", "k", in_seconds(600));
    odd.insert("leaseId", "mine");
    outbox.insert([odd]).await;

    answer(&outbox, &["discard", "odd", "--yes"]).await;

    assert_eq!(outbox.count(doc! {}).await, 0);
}
