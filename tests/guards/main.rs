//! What the order rests on, each by an interleaving made on purpose: the four guards of the
//! prefix rule, and the hazards about leases, odd records, suspects, blocks and history.
//!
//! Each test was seen to fail with its guard taken out of `src`.

#![allow(clippy::unwrap_used, reason = "a test ends by a panic")]

#[path = "../support/mod.rs"]
mod support;

mod blocks;
mod everything_pending;
mod held_front;
mod history;
mod isolation;
mod known_death;
mod leases;
mod line;
mod odd_records;
mod settling;
mod singled_out;
mod snapshot;
mod standalone;
mod suspects;
mod unstamped;

use support::outbox::{TestOutbox, record};
use support::sink::TestSink;

/// Lets the relay read everything a few times over, so that whatever it would deliver it has
/// begun to: one after the other three records of new keys arrive.
async fn rounds(outbox: &TestOutbox, sink: &TestSink) {
    for _ in 0..3 {
        let id = format!("round {}", uuid::Uuid::new_v4());
        outbox.insert([record(&id, &id)]).await;
        sink.until("a record of a new key", |arrived| {
            arrived.iter().any(|message| message.id == id)
        })
        .await;
    }
}

/// What arrived, without the records of [`rounds`].
fn arrived(sink: &TestSink) -> Vec<String> {
    sink.ids().into_iter().filter(|id| !id.starts_with("round ")).collect()
}

/// Waits until this record arrived.
async fn until_arrived(sink: &TestSink, id: &str) {
    sink.until(id, |arrived| arrived.iter().any(|message| message.id == id)).await;
}

/// Waits until the publish of this record has begun.
async fn until_under_way(sink: &TestSink, id: &str) {
    support::outbox::eventually("a publish is under way", || async { sink.is_under_way(id) }).await;
}
