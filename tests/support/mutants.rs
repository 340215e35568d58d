//! `make mutants` runs tests by the thousand, most of which fail: the first failure is enough.

use std::io::Write as _;
use std::sync::Once;
use std::time::Duration;

/// For how many seconds a test waits for a condition. Where it is set, a binary ends at its first
/// failure.
const PATIENCE: &str = "POSTRIDER_TEST_PATIENCE";

/// How long a test waits for a condition, if not as usual.
pub fn patience() -> Option<Duration> {
    let seconds = std::env::var(PATIENCE).ok()?;
    Some(Duration::from_secs(seconds.parse().expect(PATIENCE)))
}

/// Lets the first failure end the process, if that is wanted.
pub fn prepare() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        if patience().is_none() {
            return;
        }
        std::panic::set_hook(Box::new(|panic| {
            // A task of the driver panics where the runtime of its test has ended.
            let is_of_the_driver =
                |place: &std::panic::Location<'_>| place.file().contains("/mongodb-");
            if panic.location().is_some_and(is_of_the_driver) {
                return;
            }
            // Not by `eprintln!`, whose words are kept for a summary.
            let _ = writeln!(std::io::stderr(), "{panic}");
            std::process::exit(101);
        }));
    });
}
