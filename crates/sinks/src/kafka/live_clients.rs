//! Counts the librdkafka clients that have not ended.
//!
//! Their threads use OpenSSL, which the end of the process tears down. A client that ends later has crashed
//! the process at its stop (`malloc_consolidate(): …`).

use std::time::Duration;

use parking_lot::{Condvar, Mutex};

static COUNT: Mutex<usize> = Mutex::new(0);
static CLIENT_ENDED: Condvar = Condvar::new();

/// Counts one client. It must be dropped after the client.
#[derive(Debug)]
pub(super) struct LiveClient(());

impl LiveClient {
    pub(super) fn new() -> Self {
        *COUNT.lock() += 1;
        Self(())
    }
}

impl Drop for LiveClient {
    fn drop(&mut self) {
        *COUNT.lock() -= 1;
        CLIENT_ENDED.notify_all();
    }
}

/// Blocks until no client is left, for `limit` at most. Returns whether none is left. Called at the end of the
/// process.
pub fn wait_until_none(limit: Duration) -> bool {
    let mut count = COUNT.lock();
    CLIENT_ENDED.wait_while_for(&mut count, |count| *count > 0, limit);
    *count == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wait_ends_with_the_last_client_or_the_limit() {
        let client = LiveClient::new();

        assert!(!wait_until_none(Duration::from_millis(1)));
        std::thread::spawn(move || drop(client));

        assert!(wait_until_none(Duration::from_secs(60)));
    }
}
