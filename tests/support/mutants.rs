//! `make mutants` runs thousands of tests, most of which fail: the first failure is enough.

use std::io::Write as _;
use std::sync::Once;
use std::time::Duration;

/// For how many seconds a test waits for a condition. Where it is set, a binary ends at its first
/// failure.
const WAIT_SECONDS_VARIABLE: &str = "POSTRIDER_TEST_PATIENCE";

/// How long a test waits for a condition, if not for the default time.
pub fn wait_limit() -> Option<Duration> {
    let seconds = std::env::var(WAIT_SECONDS_VARIABLE).ok()?;
    Some(Duration::from_secs(seconds.parse().expect(WAIT_SECONDS_VARIABLE)))
}

/// Makes the first failure end the process, where that is set.
pub fn prepare() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        if wait_limit().is_none() {
            return;
        }
        std::panic::set_hook(Box::new(|panic| {
            // A task of the driver panics when the runtime of its test has ended.
            let is_of_the_driver =
                |place: &std::panic::Location<'_>| place.file().contains("/mongodb-");
            if panic.location().is_some_and(is_of_the_driver) {
                return;
            }
            // Not by `eprintln!`, whose output the test harness captures.
            let _ = writeln!(std::io::stderr(), "{panic}");
            std::process::exit(101);
        }));
    });
}
