//! `run` and `check` with the append path's databases.

use std::time::Duration;

use postrider::context::{CollectionKind, ContextSettings};

use crate::schema::Home;
use crate::support::mongod::Mongod;
use crate::support::outbox::TestOutbox;
use crate::support::process::{Postrider, call_with};
use crate::support::queue::{mongo_settings, stdout_sink};

const LIMIT: Duration = Duration::from_secs(30);

#[fixture::test]
async fn start_fails_on_a_database_of_another_context() {
    let home = Home::new().await;
    let theirs = ContextSettings { name: "bank".into(), ..home.together() };
    home.context(theirs).ready(CollectionKind::Events, "account").await.unwrap();
    let before = home.layout().await;
    let api = vec!["api.enabled=true".to_owned()];
    let settings = [mongo_settings(&home.name), stdout_sink(), api].concat();

    let ended = Postrider::start(&settings).until_ended(LIMIT).await.with_code(1);
    let mut probing = settings.clone();
    probing.push("ops.listen=127.0.0.1:0".into());
    let found = call_with(&probing, &["check", "--output", "json"]).await.with_code(1).json();

    // As JSON has it.
    for part in [&*home.name, r#"\"bank\""#, r#"\"default\""#, "another events.database"] {
        assert!(ended.stderr.contains(part), "no {part}: {ended}");
    }
    let context = found.as_array().unwrap().iter().find(|one| one["name"] == "context").unwrap();
    assert_eq!(context["ok"], false, "{found:#}");
    assert!(context["detail"].as_str().unwrap().contains("\"bank\""), "{found:#}");
    assert_eq!(home.layout().await, before);

    let mut relay_only =
        Postrider::start(&[settings, vec!["events.enabled=false".into()]].concat());
    relay_only.until_ready().await;
    relay_only.stop().await;
}

#[fixture::test]
async fn start_claims_no_database() {
    let outbox = TestOutbox::new().await;
    let api = vec!["api.enabled=true".to_owned()];
    let settings = [mongo_settings(&outbox.database), stdout_sink(), api].concat();

    let mut postrider = Postrider::start(&settings);
    postrider.until_ready().await;
    postrider.stop().await;

    let names = outbox.client.database(&outbox.database).list_collection_names().await.unwrap();
    assert!(!names.iter().any(|name| name == "wow_database_metadata"), "{names:?}");
}

#[fixture::test]
async fn append_path_does_not_start_on_a_standalone_server() {
    let server = Mongod::standalone().await;
    let uri = format!("mongo.uri={}", server.uri("", "app"));

    let settings = [vec![uri, "api.enabled=true".to_owned()], stdout_sink()].concat();
    let ended = Postrider::start(&settings).until_ended(LIMIT).await.with_code(1);

    for remedy in ["--replSet rs0", "events.enabled = false"] {
        assert!(ended.stderr.contains(remedy), "no {remedy}: {ended}");
    }
}
