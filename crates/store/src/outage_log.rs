//! Tracks failures of MongoDB, to log when they begin and end instead of once per try.

use std::time::Instant;

use parking_lot::Mutex;

/// Recent results of repeated tries of one operation.
#[derive(Debug, Default)]
pub struct OutageLog {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Consecutive failed tries.
    failures: u32,
    succeeded: Option<Instant>,
}

impl OutageLog {
    /// Records the failure of a try begun at `began`; returns whether it is the first of an outage.
    ///
    /// It is not if another try has succeeded since: a lost response times out long after others
    /// arrived.
    pub fn failed(&self, began: Instant) -> bool {
        let mut state = self.state.lock();
        if state.succeeded.is_some_and(|succeeded| succeeded >= began) {
            return false;
        }
        state.failures += 1;
        state.failures == 1
    }

    /// Returns whether the latest try that counts has failed.
    pub fn lasts(&self) -> bool {
        self.state.lock().failures > 0
    }

    /// Records a success; returns how many tries had failed before, if any.
    pub fn succeeded(&self) -> Option<u32> {
        let mut state = self.state.lock();
        state.succeeded = Some(Instant::now());
        let failures = std::mem::take(&mut state.failures);
        (failures > 0).then_some(failures)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outage_is_reported_once_and_its_end_once() {
        let trouble = OutageLog::default();

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
    fn failure_begun_before_the_last_success_is_ignored() {
        let trouble = OutageLog::default();
        let began = Instant::now();
        trouble.succeeded();

        assert!(!trouble.failed(began));
        assert_eq!(trouble.succeeded(), None);
    }
}
