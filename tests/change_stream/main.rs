//! The change stream: how it wakes the relay, what follows a lost stream, and when there is none.
//!
//! Each test was seen to fail with the code that it tests taken out of `src`.

#![allow(clippy::unwrap_used, reason = "a test ends by a panic")]

#[path = "../support/mod.rs"]
mod support;

mod crowd;
mod live;
mod losses;
mod moment;
mod process;
mod wakes;

use std::time::Duration;

use bson::Document;
use postrider::change_stream::{Follower, FollowerStatus};
use postrider::outbox::collections::Collections;
use postrider::relay::settings::Settings;
use postrider::schema::roles::RELAY;
use postrider::wakeup::Wakeup;
use support::command_recorder::{Command, CommandRecorder};
use support::outbox::{TestOutbox, record};
use support::relay::settings;
use support::roles::{self, user_with};
use tokio::sync::watch;
use tokio_util::sync::{CancellationToken, DropGuard};

/// A running change stream; dropped, it stops.
struct RunningStream {
    following: watch::Receiver<FollowerStatus>,
    _stop: DropGuard,
}

impl RunningStream {
    fn start(collections: &Collections, wake: &Wakeup) -> Self {
        let follower = Follower::new(collections.clone(), wake.clone());
        let following = follower.status();
        let stop = CancellationToken::new();
        tokio::spawn(follower.run(stop.clone()));
        Self { following, _stop: stop.drop_guard() }
    }

    /// The same, once its stream is open.
    async fn up(collections: &Collections, wake: &Wakeup) -> Self {
        let mut followed = Self::start(collections, wake);
        followed.until_up().await;
        followed
    }

    async fn until_up(&mut self) {
        self.until("a stream", |following| *following == FollowerStatus::Up).await;
    }

    /// The reason of its loss, as soon as it is lost.
    async fn until_lost(&mut self) -> String {
        self.until("a loss", |following| matches!(following, FollowerStatus::Lost(_))).await;
        match &*self.following.borrow() {
            FollowerStatus::Lost(why) => why.clone(),
            other => panic!("{other:?}"),
        }
    }

    async fn until(&mut self, what: &str, condition: impl FnMut(&FollowerStatus) -> bool) {
        let waiting = self.following.wait_for(condition);
        let waited = tokio::time::timeout(Duration::from_secs(60), waiting).await;
        assert!(waited.is_ok(), "waited a minute for {what}");
    }
}

/// Settings of a relay that does not scan again within any test.
fn settings_without_rescan() -> Settings {
    Settings { poll_interval: Duration::from_secs(600), ..settings() }
}

/// A record that can go while the publish of a [`record`] is held: the destination of that one takes
/// nothing more after 0.3 s.
fn to_another_destination(id: &str, key: &str) -> Document {
    let mut record = record(id, key);
    record.insert("type", "AnotherType");
    record
}

/// The streams that were opened so far.
fn opened(recorder: &CommandRecorder) -> Vec<Command> {
    let is_stream = |command: &Command| command.sent.to_string().contains("$changeStream");
    recorder.commands("aggregate").into_iter().filter(is_stream).collect()
}

/// A user with all rights of the relay except the change stream; returns the URI, and the missing
/// right.
async fn user_without_change_stream(outbox: &TestOutbox) -> (String, Vec<Document>) {
    let may_follow = |privilege: &Document| {
        privilege.get_array("actions").unwrap().contains(&"changeStream".into())
    };
    let all = roles::privileges(&RELAY, &outbox.database, "", Duration::MAX);
    let (follows, polls): (Vec<_>, Vec<_>) = all.into_iter().partition(may_follow);
    user_with(&outbox.client.database(&outbox.database), "polls", polls).await;
    (roles::uri("polls", roles::PASSWORD, &outbox.database), follows)
}
