//! Work that is done once per key.

use std::collections::{HashMap, HashSet};
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard};

use postrider_store::schema::SchemaError;

/// Runs work once per key; concurrent callers share one run.
#[derive(Debug)]
pub(super) struct SingleFlight<T> {
    progress: Mutex<Progress<T>>,
}

#[derive(Debug)]
struct Progress<T> {
    done: HashSet<T>,
    /// Failed runs are removed, so that the next caller starts again.
    running: HashMap<T, Arc<Run>>,
}

/// One run, which holds the lock; afterwards its failure.
type Run = tokio::sync::Mutex<Option<SchemaError>>;

impl<T> Default for SingleFlight<T> {
    fn default() -> Self {
        let progress = Progress { done: HashSet::new(), running: HashMap::new() };
        Self { progress: Mutex::new(progress) }
    }
}

impl<T: Clone + Eq + Hash> SingleFlight<T> {
    /// Runs `work` for `key`, unless it was done before, or waits for another caller's run.
    ///
    /// If that caller is dropped, one of the waiting ones takes over.
    ///
    /// # Errors
    ///
    /// The error of the run.
    pub(super) async fn run(
        &self,
        key: &T,
        work: impl Future<Output = Result<(), SchemaError>>,
    ) -> Result<(), SchemaError> {
        let run = {
            let mut progress = self.progress();
            if progress.done.contains(key) {
                return Ok(());
            }
            progress.running.entry(key.clone()).or_default().clone()
        };
        let mut failure = run.lock().await;
        if let Some(error) = &*failure {
            return Err(error.clone());
        }
        if self.is_done(key) {
            return Ok(());
        }
        let done = work.await;
        let mut progress = self.progress();
        progress.running.remove(key);
        match &done {
            Ok(()) => drop(progress.done.insert(key.clone())),
            Err(error) => *failure = Some(error.clone()),
        }
        done
    }

    /// Whether the work for the key is done.
    pub(super) fn is_done(&self, key: &T) -> bool {
        self.progress().done.contains(key)
    }

    /// Forgets what is done.
    pub(super) fn forget(&self) {
        self.progress().done.clear();
    }

    fn progress(&self) -> MutexGuard<'_, Progress<T>> {
        self.progress.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use futures_util::future::join_all;
    use futures_util::poll;
    use tokio::sync::Notify;

    use super::*;

    fn failure() -> SchemaError {
        SchemaError::Differs { differences: "all".into(), target: String::new() }
    }

    #[tokio::test]
    async fn concurrent_callers_share_a_run_and_failures_are_retried() {
        let (flight, worked, go) = (SingleFlight::default(), AtomicUsize::new(0), Notify::new());
        let work = async |outcome: Result<(), SchemaError>| {
            worked.fetch_add(1, Ordering::Relaxed);
            go.notified().await;
            outcome
        };

        let failing = join_all((0..8).map(|_| flight.run(&1, work(Err(failure())))));
        let (failed, ()) = tokio::join!(failing, async { go.notify_one() });
        let doing = join_all((0..8).map(|_| flight.run(&1, work(Ok(())))));
        let (done, ()) = tokio::join!(doing, async { go.notify_one() });
        let afterwards = flight.run(&1, work(Err(failure()))).await;

        assert!(failed.iter().all(Result::is_err) && done.iter().all(Result::is_ok));
        assert!(afterwards.is_ok());
        assert_eq!(worked.into_inner(), 2);
    }

    #[tokio::test]
    async fn waiting_caller_takes_over_when_the_first_is_dropped() {
        let (flight, never) = (SingleFlight::default(), Notify::new());
        let mut first = Box::pin(flight.run(&1, async {
            never.notified().await;
            Ok(())
        }));
        let mut second = Box::pin(flight.run(&1, async { Ok(()) }));

        assert!(poll!(&mut first).is_pending() && poll!(&mut second).is_pending());
        drop(first);

        second.await.unwrap();
        assert_eq!(flight.progress().running.len(), 0);
    }
}
