//! How `postrider run` starts, stops, crashes and returns: the real process, real signals.

#![allow(clippy::unwrap_used, reason = "a test ends by a panic")]

#[path = "../support/mod.rs"]
mod support;

mod crash;
mod descriptors;
mod hanging;
mod health;
mod in_place;
mod log;
mod memory;
mod moments;
/// Without the feature nothing can be made to panic.
#[cfg(feature = "failpoints")]
mod panic;
mod refusals;
mod slow;
mod start;
mod stdout;
mod stop;
mod util;

use support::outbox::{TestOutbox, mongodb_uri};
use support::process::{Postrider, command};

#[fixture::test]
async fn a_file_and_the_environment_configure_a_run() {
    let outbox = TestOutbox::new().await;
    let file = tempfile::NamedTempFile::with_suffix(".toml").unwrap();
    let text = format!(
        "[mongo]\nuri = {:?}\n[sinks.out]\nkind = \"stdout\"\n[ops]\nlisten = \"127.0.0.1:0\"\n",
        mongodb_uri()
    );
    std::fs::write(file.path(), text).unwrap();
    let mut command = command(&["run"]);
    command.env("POSTRIDER_CONFIG", file.path());
    command.env("POSTRIDER__MONGO__DATABASE", &outbox.database);
    let mut postrider = Postrider::of(command);

    postrider.until_ready().await;

    let starting = postrider.lines().into_iter().find(|line| line["message"] == "starting");
    assert_eq!(starting.unwrap()["database"], outbox.database);
    postrider.stop().await;
}
