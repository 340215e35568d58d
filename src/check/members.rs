//! Each member of the replica set, asked by itself.

use std::time::{Duration, Instant};

use ::mongodb::Database;
use bson::{Document, doc};
use futures_util::future::join_all;
use tokio::time::timeout;

use crate::store::connect;

/// What a member may take to let us in and answer.
const PATIENCE: Duration = Duration::from_secs(2);

/// How often the time is asked for: the quickest answer is the best.
const TIMES: usize = 3;

/// A member that holds data, by its name in the set.
#[derive(Debug)]
pub(super) struct Member {
    pub(super) host: String,
    /// `None` where it can't be reached from here.
    pub(super) answer: Option<Answer>,
}

/// What it said.
#[derive(Clone, Copy, Debug)]
pub(super) struct Answer {
    /// Whether it has the data and follows: primary or secondary.
    pub(super) is_up: bool,
    pub(super) clock: Clock,
}

/// Its clock beside ours, in milliseconds. Only the difference of two of them means anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Clock {
    pub(super) ahead: i64,
    /// So far it may be off to either side: half a round trip.
    pub(super) unsure: i64,
}

/// Asks all that hold data, as the primary's `hello` lists them.
pub(super) async fn ask_all(uri: &str, hello: &Document) -> Vec<Member> {
    let begin = Instant::now();
    let asking = holders(hello).into_iter().map(|host| async move {
        let answer = timeout(PATIENCE, ask(uri, &host, begin)).await.ok().flatten();
        Member { host, answer }
    });
    join_all(asking).await
}

/// Members that hold data and may be seen.
pub(super) fn holders(hello: &Document) -> Vec<String> {
    ["hosts", "passives"].into_iter().flat_map(|list| hosts(hello, list)).collect()
}

/// The members in one of the lists of `hello`.
pub(super) fn hosts(hello: &Document, list: &str) -> Vec<String> {
    let listed = hello.get_array(list).into_iter().flatten();
    listed.filter_map(|host| Some(host.as_str()?.to_owned())).collect()
}

async fn ask(uri: &str, host: &str, begin: Instant) -> Option<Answer> {
    let client = connect::member(uri, host, PATIENCE).await.ok()?;
    let admin = client.database("admin");
    // This one opens the connection, and says nothing of the time.
    say_hello(&admin).await?;
    let mut best: Option<Answer> = None;
    for _ in 0..TIMES {
        let sent = begin.elapsed();
        let hello = say_hello(&admin).await?;
        let passed = begin.elapsed() - sent;
        let is = |what| hello.get_bool(what).unwrap_or(false);
        let time = hello.get_datetime("localTime").ok()?.timestamp_millis();
        let clock = Clock {
            ahead: time - millis(sent + passed / 2),
            // The server's time has milliseconds, and no more.
            unsure: millis(passed / 2) + 1,
        };
        let is_up = is("isWritablePrimary") || is("secondary");
        if best.is_none_or(|best| clock.unsure < best.clock.unsure) {
            best = Some(Answer { is_up, clock });
        }
    }
    best
}

async fn say_hello(admin: &Database) -> Option<Document> {
    // Whichever member it is: the client knows no other.
    admin.run_command(doc! { "hello": 1 }).await.ok()
}

fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}
