//! `postrider schema` for aggregates and prepare keys.

use crate::schema::Home;
use crate::support::process::{call, call_with};
use crate::support::queue::mongo_settings;

#[fixture::test]
async fn schema_commands_affect_only_the_named_collections() {
    let home = Home::new().await;
    let mut settings = mongo_settings(&home.name);
    settings.push("outbox.auto_init_schema=false".into());
    let names = ["--aggregate", "order", "--aggregate", "cart", "--prepare", "email"];
    let with = |command: &'static str| [["schema", command].as_slice(), &names].concat();

    let before = call_with(&settings, &with("verify")).await.with_code(1);
    let applied = call_with(&settings, &with("apply")).await.with_code(0);
    let again = call_with(&settings, &with("apply")).await.with_code(0);
    let after = call_with(&settings, &with("verify")).await.with_code(0);

    let unclaimed =
        format!("database {} is without a context, must be owned by the context", home.name);
    assert_eq!(before.stdout.matches(&unclaimed).count(), 1, "{before}");
    assert_eq!(before.stdout.lines().count(), 1 + 5 + 2 * (5 + 5) + 2, "{before}");
    let lines = [
        format!("database {} now belongs to the context\n", home.name),
        "created collection cart_snapshot\n".into(),
        "created index ttlAt_1 of prepare_email\n".into(),
    ];
    for line in &lines {
        assert_eq!(applied.stdout.matches(line).count(), 1, "{applied}");
    }
    assert_eq!((again.stdout.as_str(), after.stdout.as_str()), ("the schema is complete\n", ""));
    let made = ["cart_event_stream", "cart_snapshot", "order_event_stream", "order_snapshot"];
    let others = ["prepare_email", "wow_database_metadata"];
    assert_eq!(home.collection_names().await, [made.as_slice(), &others].concat());

    settings.push("events.context=bank".into());
    let foreign = call_with(&settings, &with("verify")).await.with_code(1);
    assert!(foreign.stderr.contains("belongs to the context \"default\""), "{foreign}");
}

#[fixture::test]
async fn printed_script_equals_the_one_in_the_repository() {
    let printed = call(&["schema", "print", "--aggregate", "order"]).await.with_code(0);

    let ours = concat!(env!("CARGO_MANIFEST_DIR"), "/schema/mongodb-aggregate.js");
    assert_eq!(printed.stdout, std::fs::read_to_string(ours).unwrap());
}

#[fixture::test]
async fn invalid_name_is_a_usage_error() {
    for option in ["--aggregate", "--prepare"] {
        let ended = call(&["schema", "print", option, "a$b"]).await.with_code(2);

        assert!(ended.stderr.contains("must start with a letter"), "{ended}");
    }
}
