//! `postrider schema`: apply, verify and print.

use bson::doc;

use crate::support::command_line::{file, says, with};
use crate::support::process::{call, call_with};
use crate::support::queue::{mongo_settings, stdout_sink};
use crate::support::schema::BareDatabase;

fn settings(bare: &BareDatabase) -> Vec<String> {
    [mongo_settings(&bare.name), stdout_sink()].concat()
}

#[fixture::test]
async fn applying_makes_everything_once_and_then_finds_nothing_missing() {
    let bare = BareDatabase::new("").await;

    let first = call_with(&settings(&bare), &["schema", "apply"]).await.with_code(0);
    let layout = bare.layout().await;
    let second = call_with(&settings(&bare), &["schema", "apply"]).await.with_code(0);

    assert_eq!(first.stdout.matches("created collection outbox_").count(), 4, "{first}");
    assert_eq!(first.stdout.matches("created index ").count(), 6, "{first}");
    assert_eq!(second.stdout, "the schema is complete\n");
    assert_eq!(bare.layout().await, layout);
}

#[fixture::test]
async fn verifying_prints_a_line_per_difference_and_ends_with_1() {
    let bare = BareDatabase::new("").await;

    let before = call_with(&settings(&bare), &["schema", "verify"]).await.with_code(1);
    call_with(&settings(&bare), &["schema", "apply"]).await.with_code(0);
    let after = call_with(&settings(&bare), &["schema", "verify"]).await.with_code(0);
    bare.run(doc! { "dropIndexes": "outbox_records", "index": "dedup_idx" }).await;
    let longer = with(settings(&bare), &["outbox.retention=8d"]);
    let changed = call_with(&longer, &["schema", "verify"]).await.with_code(1);

    // Four collections and six indexes.
    assert_eq!(before.stdout.lines().count(), 10, "{before}");
    assert_eq!(after.stdout, "");
    let lines: Vec<&str> = changed.stdout.lines().collect();
    assert_eq!(lines.len(), 2, "{changed}");
    for index in ["dedup_idx", "done_ttl_idx"] {
        assert!(lines.iter().any(|line| line.contains(index)), "{index}: {changed}");
    }
}

#[fixture::test]
async fn a_conflicting_index_ends_an_apply_with_1_and_its_name() {
    let bare = BareDatabase::new("").await;
    bare.create_index(doc! { "key": { "other": 1 }, "name": "dead_idx" }).await;

    let ended = call_with(&settings(&bare), &["schema", "apply"]).await.with_code(1);

    says(&ended, &["dead_idx", "outbox_records", "cannot create"]);
}

#[fixture::test]
async fn the_script_printed_at_the_defaults_is_the_repositorys() {
    let printed = call(&["schema", "print"]).await.with_code(0);

    let ours = concat!(env!("CARGO_MANIFEST_DIR"), "/schema/mongodb-setup.js");
    assert_eq!(printed.stdout, std::fs::read_to_string(ours).unwrap());
}

#[fixture::test]
async fn the_printed_script_creates_the_same_schema_as_apply() {
    let (by_script, by_us) = (BareDatabase::new("shop_").await, BareDatabase::new("shop_").await);
    let more = ["outbox.collection_prefix=shop_", "outbox.retention=3d"];
    let printed = call_with(&with(settings(&by_us), &more), &["schema", "print"]).await;

    let script = file(&printed.with_code(0).stdout);
    let output = by_script.mongosh_file(script.path(), &[]).await;
    call_with(&with(settings(&by_us), &more), &["schema", "apply"]).await.with_code(0);

    assert!(output.status.success(), "{output:?}");
    assert_eq!(by_script.layout().await, by_us.layout().await);
    let verified = with(settings(&by_script), &more);
    call_with(&verified, &["schema", "verify"]).await.with_code(0);
}
