//! Something that is to be done once for each of many things, by whoever comes first.

use std::collections::{HashMap, HashSet};
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard};

use postrider_store::schema::SchemaError;

/// What was done, and what is being done.
#[derive(Debug)]
pub(super) struct Once<T> {
    known: Mutex<Known<T>>,
}

#[derive(Debug)]
struct Known<T> {
    done: HashSet<T>,
    /// A failed one is no more in here, so that the next who comes begins anew.
    under_way: HashMap<T, Arc<Attempt>>,
}

/// One try, which everybody waits for who comes before it has ended; with its failure.
type Attempt = tokio::sync::Mutex<Option<SchemaError>>;

impl<T> Default for Once<T> {
    fn default() -> Self {
        let known = Known { done: HashSet::new(), under_way: HashMap::new() };
        Self { known: Mutex::new(known) }
    }
}

impl<T: Clone + Eq + Hash> Once<T> {
    /// Does `work` for `thing`, or waits for another who does; what was done before is left alone.
    ///
    /// Where the one who does it goes away, one of those who wait takes over.
    ///
    /// # Errors
    ///
    /// That of `work`, or of the other's.
    pub(super) async fn once(
        &self,
        thing: &T,
        work: impl Future<Output = Result<(), SchemaError>>,
    ) -> Result<(), SchemaError> {
        let attempt = {
            let mut known = self.known();
            if known.done.contains(thing) {
                return Ok(());
            }
            known.under_way.entry(thing.clone()).or_default().clone()
        };
        let mut failure = attempt.lock().await;
        if let Some(error) = &*failure {
            return Err(error.clone());
        }
        if self.is_done(thing) {
            return Ok(());
        }
        let done = work.await;
        let mut known = self.known();
        known.under_way.remove(thing);
        match &done {
            Ok(()) => drop(known.done.insert(thing.clone())),
            Err(error) => *failure = Some(error.clone()),
        }
        done
    }

    /// Whether it was done.
    pub(super) fn is_done(&self, thing: &T) -> bool {
        self.known().done.contains(thing)
    }

    fn known(&self) -> MutexGuard<'_, Known<T>> {
        self.known.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
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
    async fn those_who_come_meanwhile_share_the_outcome_and_a_failure_is_not_remembered() {
        let (once, worked, go) = (Once::default(), AtomicUsize::new(0), Notify::new());
        let work = async |outcome: Result<(), SchemaError>| {
            worked.fetch_add(1, Ordering::Relaxed);
            go.notified().await;
            outcome
        };

        let failing = join_all((0..8).map(|_| once.once(&1, work(Err(failure())))));
        let (failed, ()) = tokio::join!(failing, async { go.notify_one() });
        let doing = join_all((0..8).map(|_| once.once(&1, work(Ok(())))));
        let (done, ()) = tokio::join!(doing, async { go.notify_one() });
        let afterwards = once.once(&1, work(Err(failure()))).await;

        assert!(failed.iter().all(Result::is_err) && done.iter().all(Result::is_ok));
        assert!(afterwards.is_ok());
        assert_eq!(worked.into_inner(), 2);
    }

    #[tokio::test]
    async fn where_the_first_goes_away_another_does_it() {
        let (once, never) = (Once::default(), Notify::new());
        let mut first = Box::pin(once.once(&1, async {
            never.notified().await;
            Ok(())
        }));
        let mut second = Box::pin(once.once(&1, async { Ok(()) }));

        assert!(poll!(&mut first).is_pending() && poll!(&mut second).is_pending());
        drop(first);

        second.await.unwrap();
        assert_eq!(once.known().under_way.len(), 0);
    }
}
