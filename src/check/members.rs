//! Asks each member of the replica set directly.

use std::time::{Duration, Instant};

use ::mongodb::Database;
use bson::{Document, doc};
use futures_util::future::join_all;
use tokio::time::timeout;

use crate::store::connect::{self, MongoEndpoint};

/// How long a member may take to connect and answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);

/// How often the clock is read: the fastest answer is the most accurate.
const CLOCK_SAMPLES: usize = 3;

/// A member that holds data, by its name in the set.
#[derive(Debug)]
pub(super) struct SetMember {
    pub(super) host: String,
    /// `None` if it cannot be reached from here.
    pub(super) answer: Option<MemberAnswer>,
}

/// The answer of a member.
#[derive(Clone, Copy, Debug)]
pub(super) struct MemberAnswer {
    /// Whether it is primary or secondary.
    pub(super) is_up: bool,
    pub(super) clock: MemberClock,
}

/// A member's clock compared with the local one, in milliseconds. Only differences between members are
/// meaningful.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MemberClock {
    pub(super) ahead: i64,
    /// The uncertainty in either direction: half a round trip.
    pub(super) unsure: i64,
}

/// Asks all members with data that the primary's `hello` lists.
pub(super) async fn ask_all(endpoint: &MongoEndpoint, hello: &Document) -> Vec<SetMember> {
    let begin = Instant::now();
    let asking = holders(hello).into_iter().map(|host| async move {
        let answer = timeout(ANSWER_TIMEOUT, ask(endpoint, &host, begin)).await.ok().flatten();
        SetMember { host, answer }
    });
    join_all(asking).await
}

/// The visible members with data.
pub(super) fn holders(hello: &Document) -> Vec<String> {
    ["hosts", "passives"].into_iter().flat_map(|list| hosts(hello, list)).collect()
}

/// The members in one of the lists of `hello`.
pub(super) fn hosts(hello: &Document, list: &str) -> Vec<String> {
    let listed = hello.get_array(list).into_iter().flatten();
    listed.filter_map(|host| Some(host.as_str()?.to_owned())).collect()
}

async fn ask(endpoint: &MongoEndpoint, host: &str, begin: Instant) -> Option<MemberAnswer> {
    let client = connect::member(endpoint, host, ANSWER_TIMEOUT).await.ok()?;
    let admin = client.database("admin");
    // The first one opens the connection and is not timed.
    say_hello(&admin).await?;
    let mut best: Option<MemberAnswer> = None;
    for _ in 0..CLOCK_SAMPLES {
        let sent = begin.elapsed();
        let hello = say_hello(&admin).await?;
        let passed = begin.elapsed() - sent;
        let is = |what| hello.get_bool(what).unwrap_or(false);
        let time = hello.get_datetime("localTime").ok()?.timestamp_millis();
        let clock = MemberClock {
            ahead: time - millis(sent + passed / 2),
            // The server's time has a resolution of milliseconds.
            unsure: millis(passed / 2) + 1,
        };
        let is_up = is("isWritablePrimary") || is("secondary");
        if best.is_none_or(|best| clock.unsure < best.clock.unsure) {
            best = Some(MemberAnswer { is_up, clock });
        }
    }
    best
}

async fn say_hello(admin: &Database) -> Option<Document> {
    // The client knows this member only.
    admin.run_command(doc! { "hello": 1 }).await.ok()
}

fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}
