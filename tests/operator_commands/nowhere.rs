//! Commands in a database without an outbox: they say so, and create nothing.

use crate::support::command_line::file;
use crate::support::process::call_with;
use crate::support::queue::mongo_settings;
use crate::support::schema::BareDatabase;

#[fixture::test]
async fn commands_in_a_database_without_an_outbox_create_nothing() {
    let bare = BareDatabase::new("shop_").await;
    let settings = mongo_settings(&bare.name);
    let prefixed = [settings.clone(), vec!["outbox.collection_prefix=shop_".to_owned()]].concat();
    let empty = call_with(&settings, &["outbox", "stats"]).await.with_code(1);
    assert!(!empty.stderr.contains(&format!("one in database {:?}", bare.name)), "{empty}");
    call_with(&prefixed, &["schema", "apply"]).await.with_code(0);
    let before = bare.collection_names().await;
    let body = file(r#"{ "events": [{ "name": "OrderPlaced", "body": {} }] }"#);

    for command in [
        &["outbox", "stats"][..],
        &["outbox", "list"],
        &["outbox", "show", "a"],
        &["outbox", "requeue", "a"],
        &["outbox", "requeue", "--all", "--yes"],
        &["outbox", "discard", "a"],
        &["outbox", "prune", "--yes"],
        &["instances"],
        &["partitions"],
        &["relay", "pause"],
        &["relay", "resume"],
        &["subscriptions", "create", "billing", "--push", "billing.events"],
        &["subscriptions", "list"],
        &["feed", "status"],
        &["feed", "renew", "--yes"],
        &["events", "end", "order", "1", "--request-id", "r", "--reason", "x"],
        &["append", "order", "1", body.path().to_str().unwrap(), "--request-id", "r"],
    ] {
        let ended = call_with(&settings, command).await.with_code(1);

        let name = &bare.name;
        for part in [
            format!("there is no outbox in database {name:?} (no collection outbox_records)"),
            format!("one in database {name:?} with outbox.collection_prefix = \"shop_\""),
            "`postrider schema apply`".to_owned(),
        ] {
            assert!(ended.stderr.contains(&part), "{command:?}: no {part:?}: {ended}");
        }
        assert_eq!(ended.stdout, "", "{command:?}");
    }

    assert_eq!(bare.collection_names().await, before);
    let reached = call_with(&prefixed, &["relay", "pause"]).await.with_code(0);
    assert_eq!(reached.stdout, "paused: no instance is alive; the pause holds when one starts\n");
}
