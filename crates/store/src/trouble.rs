//! A trouble with MongoDB, told when it begins and when it is over, and not once per try.

use std::sync::{Mutex, MutexGuard};
use std::time::Instant;

/// What many tries at one kind of work have met lately.
#[derive(Debug, Default)]
pub struct Trouble {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Tries in a row that failed.
    failures: u32,
    succeeded: Option<Instant>,
}

impl Trouble {
    /// A try that was begun at `began` has failed; answers whether that is news.
    ///
    /// It is none where another try has succeeded since then: an answer that never came is
    /// given up long after others have come.
    pub fn failed(&self, began: Instant) -> bool {
        let mut state = self.state();
        if state.succeeded.is_some_and(|succeeded| succeeded >= began) {
            return false;
        }
        state.failures += 1;
        state.failures == 1
    }

    /// Whether the latest try has failed, of those that count.
    pub fn lasts(&self) -> bool {
        self.state().failures > 0
    }

    /// A try has succeeded; answers how many had failed before, where any had.
    pub fn succeeded(&self) -> Option<u32> {
        let mut state = self.state();
        state.succeeded = Some(Instant::now());
        let failures = std::mem::take(&mut state.failures);
        (failures > 0).then_some(failures)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_told_once_and_its_end_once() {
        let trouble = Trouble::default();

        assert_eq!(trouble.succeeded(), None);
        assert!(trouble.failed(Instant::now()));
        assert!(!trouble.failed(Instant::now()));
        assert!(trouble.lasts());
        assert_eq!(trouble.succeeded(), Some(2));
        assert!(!trouble.lasts());
        assert_eq!(trouble.succeeded(), None);
        assert!(trouble.failed(Instant::now()), "another one");
    }

    #[test]
    fn a_try_of_before_the_last_success_is_no_news() {
        let trouble = Trouble::default();
        let began = Instant::now();
        trouble.succeeded();

        assert!(!trouble.failed(began));
        assert_eq!(trouble.succeeded(), None);
    }
}
