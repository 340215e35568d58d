//! `postrider feed` and the finding of `postrider check`.

use bson::doc;
use postrider::context::{CollectionKind, Context, ContextSettings};

use crate::support::process::call_with;
use crate::support::queue::{mongo_settings, stdout_sink};
use crate::util::TestFeed;

const STATUS: [&str; 4] = ["feed", "status", "--output", "json"];

#[fixture::test]
async fn status_shows_the_owner_and_what_waits() {
    let test = TestFeed::new().await;
    let settings = mongo_settings(&test.outbox.database);
    let before = call_with(&settings, &STATUS).await.with_code(0).json();
    let running = test.sequence();
    test.append("order", "1", "a", 2).await;
    test.until(2).await;

    let owned = call_with(&settings, &STATUS).await.with_code(0).json();
    running.stop().await;
    test.insert("order", "2", 1, doc! { "createTime": 1_000_i64 }).await;
    test.append("order", "1", "b", 1).await;
    let left = call_with(&settings, &STATUS).await.with_code(0).json();
    let table = call_with(&settings, &["feed", "status"]).await.with_code(0);

    assert!(before["feed"].is_null() && before["head"].is_null(), "{before:#}");
    let state = test.feed.state().await.unwrap().unwrap();
    assert_eq!(owned["feed"], state.feed.as_str());
    assert_eq!((&owned["head"], &owned["waiting"]), (&2.into(), &0.into()), "{owned:#}");
    assert_eq!(owned["names"], serde_json::json!(["order"]));
    assert!(owned["owner"].is_string() && owned["ownedUntil"].is_string(), "{owned:#}");
    assert!(left["owner"].is_null() && left["ownedUntil"].is_null(), "{left:#}");
    assert_eq!((&left["waiting"], &left["waitingAtLeast"]), (&2.into(), &false.into()));
    assert_eq!(left["oldestWaiting"], "1970-01-01T00:00:01Z", "{left:#}");
    assert!(table.stdout.contains(&state.feed) && !table.stdout.contains("AtLeast"), "{table}");
}

#[fixture::test]
async fn status_and_check_create_no_index() {
    let test = TestFeed::new().await;
    test.append("order", "1", "a", 1).await;
    let feed = [stdout_sink(), vec!["feed.enabled=true".into(), "ops.listen=127.0.0.1:0".into()]];
    let settings = [mongo_settings(&test.outbox.database), feed.concat()].concat();
    let strict = [settings.clone(), vec!["outbox.auto_init_schema=false".into()]].concat();
    let check = async |settings: &[String], code| {
        let found =
            call_with(settings, &["check", "--output", "json"]).await.with_code(code).json();
        found.as_array().unwrap().iter().find(|one| one["name"] == "feed").unwrap().clone()
    };

    let status = call_with(&settings, &STATUS).await.with_code(0).json();
    let made = check(&settings, 0).await;
    let needed = check(&strict, 1).await;

    let index = "index position_1_createTime_1 of order_event_stream";
    let without = status["withoutIndex"][0].as_str().unwrap();
    assert!(without.starts_with(index), "{status:#}");
    assert!(made["detail"].as_str().unwrap().contains(index), "{made:#}");
    let remedy = "run `postrider schema apply --aggregate order`";
    assert!(needed["remedy"].as_str().unwrap().starts_with(remedy), "{needed:#}");
    assert!(
        needed["detail"].as_str().unwrap().starts_with("the feed does not exist yet"),
        "{needed:#}"
    );
    let names = test.streams("order").list_index_names().await.unwrap();
    assert!(!names.contains(&"position_1_createTime_1".to_owned()), "{names:?}");

    let database = &test.outbox.database;
    let settings = ContextSettings { feed: true, ..ContextSettings::new(database) };
    let context = Context::new(test.outbox.admin.client().clone(), settings);
    context.apply(CollectionKind::Events, "order").await.unwrap();
    let running = test.sequence();
    test.until(1).await;
    let well = check(&strict, 0).await;
    running.stop().await;

    let detail = well["detail"].as_str().unwrap();
    assert!(detail.contains("head 1") && detail.contains("assigns positions"), "{well:#}");
}

#[fixture::test]
async fn renew_changes_the_id_only_with_yes() {
    let test = TestFeed::new().await;
    let settings = mongo_settings(&test.outbox.database);
    call_with(&settings, &["feed", "renew", "--yes"]).await.with_code(1);
    let running = test.sequence();
    test.append("order", "1", "a", 1).await;
    test.until(1).await;
    running.stop().await;
    let before = test.feed.state().await.unwrap().unwrap();
    // A restore may bring back the head without the positions behind it.
    let last = doc! { "$set": { "position": 5_i64 } };
    test.streams("order").update_one(doc! {}, last).await.unwrap();

    let asked = call_with(&settings, &["feed", "renew"]).await.with_code(2);
    let unchanged = test.feed.state().await.unwrap().unwrap();
    let renewed = call_with(&settings, &["feed", "renew", "--yes", "--output", "json"]).await;

    for word in ["wrong_feed", "position 0", "--yes"] {
        assert!(asked.stderr.contains(word), "no {word}: {asked}");
    }
    assert_eq!(unchanged, before);
    let renewed = renewed.with_code(0).json();
    let after = test.feed.state().await.unwrap().unwrap();
    assert_eq!((&renewed["feed"], &renewed["head"]), (&after.feed.as_str().into(), &5.into()));
    assert_ne!(after.feed, before.feed);
}
