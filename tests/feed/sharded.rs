//! The feed on a sharded cluster: a real server whose `hello` is that of a mongos.

use std::time::Duration;

use bson::Document;
use tokio::net::TcpListener;

use crate::support::fault_proxy::{Direction, FaultProxy};
use crate::support::outbox::mongodb_uri;
use crate::support::process::{Postrider, call_with};
use crate::support::queue::{host_of, stdout_sink};

/// The first byte of the document in an answer, by the message's kind: OP_REPLY or OP_MSG.
fn document_start(message: &[u8]) -> Option<usize> {
    match u32::from_le_bytes(message.get(12..16)?.try_into().ok()?) {
        1 => Some(36),
        2013 => Some(21),
        _ => None,
    }
}

/// Makes a `hello` of a replica set one of a mongos.
fn as_mongos(message: &mut Vec<u8>) -> Option<()> {
    let start = document_start(message)?;
    let mut hello = Document::from_reader(message.get(start..)?).ok()?;
    hello.get_str("setName").ok()?;
    for member in ["setName", "setVersion", "hosts", "primary", "me", "secondary", "electionId"] {
        hello.remove(member);
    }
    hello.insert("msg", "isdbgrid");
    message.truncate(start);
    hello.to_writer(&mut *message).ok()?;
    let length = u32::try_from(message.len()).ok()?;
    message[..4].copy_from_slice(&length.to_le_bytes());
    Some(())
}

#[fixture::test]
async fn feed_is_refused_on_a_sharded_cluster() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let member = tokio::net::lookup_host(host_of(&mongodb_uri())).await.unwrap().next().unwrap();
    let through = |direction: Direction, message: &mut Vec<u8>| {
        if matches!(direction, Direction::Answer) {
            as_mongos(message);
        }
    };
    let mongos = FaultProxy::to_member(listener, member, Box::new(through));
    let uri = format!("mongo.uri={}", mongos.mongodb_uri("app"));
    let mut settings = [stdout_sink(), vec![uri, "ops.listen=127.0.0.1:0".into()]].concat();
    settings.push("feed.enabled=true".into());

    let limit = Duration::from_secs(30);
    let ended = Postrider::start(&settings).until_ended(limit).await.with_code(1);
    let found = call_with(&settings, &["check", "--output", "json"]).await.with_code(1).json();

    for part in ["feed.enabled = true: MongoDB is a sharded cluster", "feed.enabled = false"] {
        assert!(ended.stderr.contains(part), "no {part}: {ended}");
    }
    let finding = found.as_array().unwrap().iter().find(|it| it["name"] == "feed").unwrap();
    assert_eq!(finding["ok"], false, "{found:#}");
    assert!(finding["remedy"].as_str().unwrap().contains("replica set"), "{found:#}");
}
