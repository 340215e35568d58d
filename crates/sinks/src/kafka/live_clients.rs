//! librdkafka's clients that have not ended yet.
//!
//! Their threads use OpenSSL, which the end of a process tears down: one that ends later than
//! that has been seen to crash a stop in good order (`malloc_consolidate(): …`).

use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::Duration;

static COUNT: Mutex<usize> = Mutex::new(0);
static FEWER: Condvar = Condvar::new();

/// One client; to be dropped after it.
#[derive(Debug)]
pub(super) struct Alive(());

impl Alive {
    pub(super) fn new() -> Self {
        *count() += 1;
        Self(())
    }
}

impl Drop for Alive {
    fn drop(&mut self) {
        *count() -= 1;
        FEWER.notify_all();
    }
}

/// Waits, blocking, until no client is left, for `limit` at most; answers whether that is so.
/// Called at the end of the process.
pub fn until_none(limit: Duration) -> bool {
    let waited = FEWER.wait_timeout_while(count(), limit, |count| *count > 0);
    let (count, _) = waited.unwrap_or_else(|poisoned| poisoned.into_inner());
    *count == 0
}

fn count() -> MutexGuard<'static, usize> {
    COUNT.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_is_waited_for_and_not_for_ever() {
        let alive = Alive::new();

        assert!(!until_none(Duration::from_millis(1)));
        std::thread::spawn(move || drop(alive));

        assert!(until_none(Duration::from_secs(60)));
    }
}
