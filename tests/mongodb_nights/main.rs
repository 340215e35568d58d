//! Bad nights of MongoDB: gone, frozen, without a majority, out of room. Nobody is called: the
//! relay lives on, says so once, and goes on by itself when MongoDB is back.
//!
//! Each test was seen to fail with what it is there for taken out of `src`.

#![allow(clippy::unwrap_used, reason = "a test ends by a panic")]

#[path = "../support/mod.rs"]
mod support;

mod disk;
mod doubled;
mod indexes;
mod log;
mod majority;
mod minute;
mod point;
mod pool;
mod privileges;
mod process;
mod silence;
mod stop;
mod surplus;

use support::outbox::mongodb_uri;
use support::queue::host_of;
use support::tcp::Door;

/// An open door to the test run's MongoDB.
async fn door() -> Door {
    Door::to(&host_of(&mongodb_uri())).await
}

/// The way through a door. (The server must not tell its own address.)
fn uri_through(door: &Door) -> String {
    format!("mongodb://{}/?directConnection=true", door.address)
}
