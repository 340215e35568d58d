//! The members of a replica set: how many are up, and their clocks.

use std::time::Duration;

use bson::{Bson, DateTime, Document, doc};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::check::{Found, check, with};
use crate::support::outbox::{TestOutbox, eventually};
use crate::support::queue::stdout_sink;
use crate::support::replica_set::ReplicaSet;

/// The server's field of its time, in BSON: an element of type 9.
const TIME: &[u8] = b"\x09localTime\x00";

/// A proxy to a member that changes its clock to a later time.
async fn ahead(server: String, by: Duration) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let server = server.clone();
            tokio::spawn(async move {
                let Ok(server) = TcpStream::connect(&server).await else { return };
                let (mut from_client, mut to_client) = client.into_split();
                let (mut from_server, mut to_server) = server.into_split();
                let back = async {
                    let mut buffer = vec![0; 1 << 20];
                    while let Ok(length @ 1..) = from_server.read(&mut buffer).await {
                        advance(&mut buffer[..length], by);
                        if to_client.write_all(&buffer[..length]).await.is_err() {
                            return;
                        }
                    }
                };
                tokio::select! {
                    _ = tokio::io::copy(&mut from_client, &mut to_server) => {}
                    () = back => {}
                }
            });
        }
    });
    address
}

/// The answer to `hello` is one message. Messages between members have checksums (the first flag
/// after the header), which a change would break.
fn advance(answer: &mut [u8], by: Duration) {
    if answer.get(16).is_none_or(|flags| flags & 1 == 1) {
        return;
    }
    let Some(at) = answer.windows(TIME.len()).position(|bytes| bytes == TIME) else { return };
    let Some(time) = answer.get_mut(at + TIME.len()..at + TIME.len() + 8) else { return };
    let shown = i64::from_le_bytes(time.try_into().unwrap());
    let later = DateTime::from_millis(shown + i64::try_from(by.as_millis()).unwrap());
    time.copy_from_slice(&later.timestamp_millis().to_le_bytes());
}

/// Gives a member another name, and the primary a minute until it notices that it is alone.
async fn rename(set: &ReplicaSet, member: usize, host: &str) {
    let admin = set.direct(0).database("admin");
    let mut config = admin.run_command(doc! { "replSetGetConfig": 1 }).await.unwrap();
    let mut config = config.get_document_mut("config").unwrap().clone();
    config.insert("version", config.get_i32("version").unwrap() + 1);
    let settings = config.get_document_mut("settings").unwrap();
    settings.insert("electionTimeoutMillis", 60_000);
    let Some(Bson::Document(member)) = config.get_array_mut("members").unwrap().get_mut(member)
    else {
        panic!("no such member");
    };
    member.insert("host", host);
    admin.run_command(doc! { "replSetReconfig": config }).await.unwrap();
}

async fn until_down(set: &ReplicaSet, count: usize) {
    let admin = set.direct(0).database("admin");
    eventually("the primary notices", || async {
        let status = admin.run_command(doc! { "replSetGetStatus": 1 }).await.unwrap();
        let members = status.get_array("members").unwrap().iter();
        let is_down = |member: &&Bson| {
            member.as_document().unwrap().get("health") == Some(&Bson::Double(0.0))
        };
        members.filter(is_down).count() == count
    })
    .await;
}

#[fixture::test]
async fn members_that_are_down_and_wrong_clocks_are_reported() {
    let mut set = ReplicaSet::start().await;
    let outbox = TestOutbox::at(&set.uri()).await;
    let fast = ahead(set.host(2), Duration::from_secs(20)).await;
    rename(&set, 2, &fast).await;
    let is_healthy = async |set: &ReplicaSet| {
        let hello: Document =
            set.direct(2).database("admin").run_command(doc! { "hello": 1 }).await.unwrap();
        hello.get_bool("secondary").unwrap_or(false)
    };
    eventually("the member under its new name", || is_healthy(&set)).await;
    until_down(&set, 0).await;
    let uri = set.uri().replace("/?", &format!("/{}?", outbox.database));
    let settings = with(&stdout_sink(), &[&format!("mongo.uri={uri}")]);
    let check = async |more: &[&str]| -> Found { check(&with(&settings, more)).await };

    let whole = check(&[]).await;
    let patient = check(&["relay.lease=2m"]).await;
    set.kill(1);
    until_down(&set, 1).await;
    let two = check(&["relay.lease=2m"]).await;
    set.kill(2);
    until_down(&set, 2).await;
    let one = check(&[]).await;

    whole.only("clocks", &format!("the clock of {fast} is "), "NTP");
    whole.is_good("replica set", "3 of 3 members with data are up");
    patient.is_good("clocks", "3 members within");
    assert_eq!(patient.code, Some(0), "{:#?}", patient.findings);
    two.is_good(
        "replica set",
        &format!("2 of 3 members with data are up; 2 are required: {} is", set.host(1)),
    );
    two.is_good("clocks", &format!("not reached directly: {}", set.host(1)));
    one.is_bad("replica set", "1 of 3 members with data are up", "start the members that are down");
}
