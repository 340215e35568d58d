//! Removes what a test has created on a shared server, when the test passes.

use std::pin::Pin;
use std::sync::mpsc;

use tokio::runtime::Handle;
use tokio::task::block_in_place;

type Removal = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Removes something when it is dropped. After a failure nothing is removed: it is the evidence.
pub struct Cleanup(Option<Box<dyn FnOnce() -> Removal + Send + Sync>>);

impl Cleanup {
    /// `remove` runs to its end when the value is dropped, on the runtime of the test.
    pub fn new<F>(remove: impl FnOnce() -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        Self(Some(Box::new(|| Box::pin(remove()))))
    }

    /// Nothing is removed: the server ends with the test.
    pub fn none() -> Self {
        Self(None)
    }
}

impl Drop for Cleanup {
    fn drop(&mut self) {
        let Some(remove) = self.0.take() else { return };
        if std::thread::panicking() {
            return;
        }
        // In a task of its own: `block_on` here would take the wake-ups of futures that are polled
        // together with the one that ends here.
        let (ended, end) = mpsc::channel();
        Handle::current().spawn(async move {
            remove().await;
            ended.send(()).expect("the test waits");
        });
        block_in_place(|| end.recv()).expect("what the test has created is removed");
    }
}
