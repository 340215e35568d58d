//! What a user writes: the function that applies events.

use mongodb::{ClientSession, Collection};
use postrider_events::feed::FeedEvent;

use crate::error::ApplyError;
use crate::name::GenerationCollections;

/// Applies events to a read model.
///
/// Its writes, and the checkpoint, are one transaction. The transaction can be aborted and tried again,
/// so `apply` may be called several times with the same events; what it wrote before is undone.
/// Therefore it must have no effect outside of the session, and must return errors of MongoDB (`?`
/// does so, also wrapped in another error): their labels say which ones are transient.
pub trait Projector: Send + Sync {
    /// Creates the collections and indexes of a generation. Called at each start, outside of a
    /// transaction.
    fn prepare(
        &self,
        _collections: &GenerationCollections,
    ) -> impl Future<Output = Result<(), ApplyError>> + Send {
        async { Ok(()) }
    }

    /// Applies the events of one append, in their order: all that the filter lets pass, at least one.
    ///
    /// An error that is not transient is tried again a few times, and then stops the read model before
    /// this append: an event is never skipped.
    fn apply(
        &self,
        into: &mut GenerationWriter<'_>,
        append: &[FeedEvent],
    ) -> impl Future<Output = Result<(), ApplyError>> + Send;
}

/// Where an append is applied: the transaction, and the collections of the generation.
#[derive(Debug)]
pub struct GenerationWriter<'a> {
    pub(crate) session: &'a mut ClientSession,
    pub(crate) collections: &'a GenerationCollections,
}

impl GenerationWriter<'_> {
    /// The session of the transaction: each read and write of the projector must have it. The projector
    /// must not commit or abort it.
    pub fn session(&mut self) -> &mut ClientSession {
        self.session
    }

    /// A collection of the generation.
    pub fn collection<T: Send + Sync>(&self, name: &str) -> Collection<T> {
        self.collections.collection(name)
    }

    /// The collections of the generation.
    pub fn collections(&self) -> &GenerationCollections {
        self.collections
    }
}
