//! Records that cannot be decoded: each is shown, named and removed, and affects no other.

use bson::{Bson, DateTime, doc};
use serde_json::Value;

use crate::support::outbox::{TestOutbox, insert_broken, record};
use crate::{answer, dead, outbox_command};

/// A valid record on either side, a field whose name is not UTF-8, and an id that is not.
async fn odd_outbox() -> TestOutbox {
    let outbox = TestOutbox::new().await;
    outbox.insert([record("a", "k"), record("z", "k")]).await;
    let mut named = record("named", "k");
    named.insert("MARK", 1);
    insert_broken(&outbox.records(), &named).await;
    insert_broken(&outbox.records(), &record("MARK", "k")).await;
    outbox
}

fn ids_of(listed: &Value) -> Vec<&str> {
    listed.as_array().unwrap().iter().map(|record| record["id"].as_str().unwrap()).collect()
}

#[fixture::test]
async fn an_undecodable_record_is_listed_and_discarded() {
    let outbox = odd_outbox().await;

    for by in
        [&["--sort", "id"][..], &["--status", "pending"], &["--status", "pending", "--key", "k"]]
    {
        let listed = answer(&outbox, &[&["list"], by].concat()).await;

        assert_eq!(listed.as_array().unwrap().len(), 4, "{by:?}: {listed}");
        let named = listed.as_array().unwrap().iter().find(|one| one["id"] == "named").unwrap();
        let invalid = r"\xff\xfe\xfd\xfc: the name of the field is not valid UTF-8";
        assert_eq!(named["invalid"], serde_json::json!([invalid]));
    }
    let table = outbox_command(&outbox, &["list"]).await.with_code(0);
    assert!(table.stdout.contains("the name of the field is not valid UTF-8"), "{table}");
    let listed = answer(&outbox, &["list", "--sort", "id"]).await;
    let raw = ids_of(&listed).into_iter().find(|id| id.starts_with("raw:")).unwrap().to_owned();
    for id in ["named", &raw] {
        let shown = answer(&outbox, &["show", id]).await;
        assert_eq!(shown["id"], id, "{shown}");
        assert_eq!(shown["status"], "pending");
        outbox_command(&outbox, &["show", id]).await.with_code(0);
        let tried = answer(&outbox, &["discard", id, "--dry-run"]).await;
        assert_eq!(tried["matched"], 1);
        let removed = answer(&outbox, &["discard", id, "--yes"]).await;
        assert_eq!(removed["discarded"], 1, "{id}: {removed}");
        outbox_command(&outbox, &["show", id]).await.with_code(1);
    }

    assert_eq!(ids_of(&answer(&outbox, &["list"]).await), ["a", "z"]);
}

/// By the right to insert a record.
#[fixture::test]
async fn no_record_reaches_the_terminal_as_it_is() {
    let forged = "x\u{1b}]0;title\u{7}\u{7f}\u{9b}1m\u{202e}\u{2028}\u{2069}\u{e0041}é";
    let outbox = TestOutbox::new().await;
    outbox.insert([dead(forged, forged, forged)]).await;
    let is_text = |one: char| one == '\n' || one == 'é' || one == '…' || matches!(one, ' '..='~');

    for command in [&["list", "--status", "dead"][..], &["show", forged], &["stats", "--by", "key"]]
    {
        for format in ["json", "table"] {
            let arguments = [command, &["--output", format]].concat();
            let shown = outbox_command(&outbox, &arguments).await.with_code(0);

            assert!(shown.stdout.chars().all(is_text), "{command:?} {format}: {shown}");
            assert!(shown.stderr.chars().all(is_text), "{command:?} {format}: {shown}");
        }
    }

    let listed = answer(&outbox, &["list", "--status", "dead"]).await;
    assert_eq!((&listed[0]["id"], &listed[0]["key"]), (&forged.into(), &forged.into()));
    let refused = outbox_command(&outbox, &["show", &format!("{forged}2")]).await.with_code(1);
    assert!(refused.stderr.chars().all(is_text), "{refused}");
}

#[fixture::test]
async fn pages_continue_after_an_undecodable_record() {
    let outbox = odd_outbox().await;

    for sort in ["id", "seq"] {
        let mut found = Vec::new();
        let mut after: Option<String> = None;
        while found.len() < 5 {
            let mut page = vec!["list", "--status", "pending", "--sort", sort, "--limit", "1"];
            if let Some(after) = &after {
                page.extend(["--after", after]);
            }
            let page = answer(&outbox, &page).await;
            let Some(id) = ids_of(&page).first().map(|id| (*id).to_owned()) else { break };
            found.push(id.clone());
            after = Some(id);
        }
        assert_eq!(found.len(), 4, "{sort}: {found:?}");
    }
}

#[fixture::test]
async fn commands_for_many_include_undecodable_records() {
    let outbox = odd_outbox().await;
    let was_dead = doc! { "$set": { "status": "dead", "deadAt": DateTime::from_millis(1) } };
    outbox.records().update_many(doc! {}, was_dead).await.unwrap();

    let stats = answer(&outbox, &["stats"]).await;
    assert_eq!((&stats["dead"], &stats["invalid"]), (&4.into(), &0.into()), "{stats}");
    let requeued = answer(&outbox, &["requeue", "--all", "--yes"]).await;
    assert_eq!(requeued["requeued"], 4, "{requeued}");
    for by in ["type", "key"] {
        let groups = answer(&outbox, &["stats", "--by", by]).await;
        assert_eq!(groups["groups"][0]["count"], 4, "{groups}");
    }
    let again = doc! { "$set": { "status": "dead", "deadAt": DateTime::from_millis(1) } };
    outbox.records().update_many(doc! {}, again).await.unwrap();
    let pruned =
        answer(&outbox, &["prune", "--status", "dead", "--older-than", "1s", "--yes"]).await;
    assert_eq!(pruned["pruned"], 4, "{pruned}");
}

#[fixture::test]
async fn text_that_is_not_utf8_is_grouped_and_listed() {
    let outbox = TestOutbox::new().await;
    for field in ["key", "type", "status", "deadReason"] {
        let mut record = dead(field, "k", "refused: no");
        record.insert(field, "MARK");
        insert_broken(&outbox.records(), &record).await;
    }

    for by in ["type", "reason", "key"] {
        let groups = answer(&outbox, &["stats", "--by", by]).await;
        let counts = groups["groups"].as_array().unwrap().iter();
        let dead: u64 = counts.map(|group| group["count"].as_u64().unwrap()).sum();
        assert_eq!(dead, 3, "{groups}");
    }
    let stats = answer(&outbox, &["stats"]).await;
    assert_eq!((&stats["dead"], &stats["invalid"]), (&3.into(), &1.into()), "{stats}");
    assert_eq!(ids_of(&answer(&outbox, &["list", "--status", "invalid"]).await), ["status"]);
    let dead = answer(&outbox, &["list", "--status", "dead"]).await;
    assert_eq!(dead.as_array().unwrap().len(), 3, "{dead}");
    let removed = answer(&outbox, &["discard", "status", "--yes"]).await;
    assert_eq!(removed["discarded"], 1, "{removed}");
}

/// The relay makes them dead; an operator shows, requeues and discards them.
#[fixture::test]
async fn a_record_without_a_usable_id_is_addressed_by_its_listed_text() {
    let outbox = TestOutbox::new().await;
    let ids = [Bson::Null, Bson::Boolean(true), 1.5.into(), doc! { "a": 1 }.into()];
    for id in ids {
        let mut record = dead("", "k", "malformed: _id");
        record.insert("_id", id);
        outbox.insert([record]).await;
    }
    let listed = answer(&outbox, &["list", "--status", "dead"]).await;
    assert!(ids_of(&listed).contains(&"raw:CgAAAApfaWQAAA"), "{listed}");

    for id in ids_of(&listed) {
        let shown = answer(&outbox, &["show", id]).await;
        assert_eq!((&shown["id"], &shown["status"]), (&id.into(), &"dead".into()), "{shown}");
        assert_eq!(answer(&outbox, &["requeue", id]).await["requeued"], 1, "{id}");
        assert_eq!(answer(&outbox, &["show", id]).await["status"], "pending");
        assert_eq!(answer(&outbox, &["discard", id, "--yes"]).await["discarded"], 1, "{id}");
    }

    assert_eq!(outbox.count(doc! {}).await, 0);
}
