//! How the relay learns that there is something to do before the timer says so.

use std::sync::{Arc, Mutex};

use tokio::sync::Notify;

/// A wake-up: never the truth, only a reason to look. Losing one costs one poll.
///
/// Cloned to whoever may know: the opened gate of a sink, an enqueue in this
/// process, later the change stream.
#[derive(Clone, Debug, Default)]
pub struct Wake {
    inner: Arc<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    notify: Notify,
    hints: Mutex<Vec<Hint>>,
}

/// Where to look first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hint {
    /// The partition of the key.
    pub partition: u8,
    /// The key.
    pub key: Arc<str>,
}

/// More hints than this are as good as none: the rotation finds all.
const HINTS: usize = 256;

impl Wake {
    /// Asks for a look at everything.
    pub fn all(&self) {
        self.inner.notify.notify_one();
    }

    /// Asks for a look at one key.
    pub fn key(&self, hint: Hint) {
        {
            let mut hints = self.hints();
            if hints.len() < HINTS && !hints.contains(&hint) {
                hints.push(hint);
            }
        }
        self.inner.notify.notify_one();
    }

    /// Resolves at the next wake-up, or at once when one came since the last call.
    pub async fn woken(&self) {
        self.inner.notify.notified().await;
    }

    /// Takes the hints that have come.
    pub fn take_hints(&self) -> Vec<Hint> {
        std::mem::take(&mut self.hints())
    }

    fn hints(&self) -> std::sync::MutexGuard<'_, Vec<Hint>> {
        self.inner.hints.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}
