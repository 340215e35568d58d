//! Named places where a test can make the real process die.
//!
//! Built with the feature `failpoints`, which no release has, the environment decides:
//! `FAILPOINTS='relay::after_lease=2*off->return'` kills the process with SIGKILL at the
//! third passage (the grammar is that of the `fail` crate). Places:
//! `relay::after_lease`, `relay::before_publish`, `sink::after_handover`,
//! `rabbitmq::look_up_sent`, `relay::after_confirm`, `relay::before_settle`, `relay::after_settle`, `http::request`,
//! `events::group`, `events::before_commit`, `events::after_commit`, `events::erased_page`,
//! `events::erased_records`, `feed::before_commit`, `feed::after_commit`, `subscriptions::before_copy`,
//! `subscriptions::before_commit`, `subscriptions::after_commit`, `projections::before_commit`,
//! `projections::after_commit`, `adopt::before_scan`, `adopt::before_commit`, `adopt::after_commit`, and `relay::publish ID` for the
//! record with this message id.

/// Reads `FAILPOINTS`; keep what it returns until the process ends.
#[cfg(feature = "failpoints")]
pub fn init() -> impl Drop {
    fail::FailScenario::setup()
}

/// Passes a named place.
#[cfg(feature = "failpoints")]
pub fn hit(name: &'static str) {
    fail::fail_point!(name, |_| kill_this_process());
}

/// Passes a named place: nothing happens.
#[cfg(not(feature = "failpoints"))]
#[inline(always)]
pub fn hit(_name: &'static str) {}

/// Passes a place for one record: `relay::publish ID` is a place of its own for each.
#[cfg(feature = "failpoints")]
pub fn hit_with(name: &str, id: &str) {
    if fail::eval(&format!("{name} {id}"), |_| ()).is_some() {
        kill_this_process();
    }
}

/// Passes a place for one record: nothing happens.
#[cfg(not(feature = "failpoints"))]
#[inline(always)]
pub fn hit_with(_name: &str, _id: &str) {}

/// As `kill -9` from outside: no destructor runs, no buffer is flushed.
#[cfg(feature = "failpoints")]
fn kill_this_process() {
    let this = rustix::process::getpid();
    let _ = rustix::process::kill_process(this, rustix::process::Signal::KILL);
}
