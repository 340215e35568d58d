//! What an operator sees of a read model.

use bson::DateTime;

use crate::checkpoint::Failure;
use crate::error::ProjectionError;
use crate::name::Generation;
use crate::read_model::ReadModel;

/// A read model, as any process sees it.
#[derive(Clone, Debug, PartialEq)]
pub struct ReadModelStatus {
    /// The generation that readers use.
    pub live: Generation,
    /// The one that is being built.
    pub building: Option<Generation>,
    /// All of them, by number.
    pub generations: Vec<GenerationStatus>,
}

/// One generation.
#[derive(Clone, Debug, PartialEq)]
pub struct GenerationStatus {
    /// Its number.
    pub generation: Generation,
    /// The revision of the projector that it was built with.
    pub revision: i64,
    /// The position up to which it has applied the feed.
    pub position: i64,
    /// The positions of the feed that are behind it: events, with those that its filter does not let pass.
    pub lag: i64,
    /// When it advanced last, by MongoDB's clock.
    pub advanced_at: Option<DateTime>,
    /// What it does.
    pub state: GenerationState,
}

/// What a generation does, as its checkpoint says. A process that was killed leaves it as it was: look at
/// `lag` and `advanced_at` too.
#[derive(Clone, Debug, PartialEq)]
pub enum GenerationState {
    /// It has applied everything up to the head.
    UpToDate,
    /// It is behind the head.
    Behind,
    /// The projector fails with an event, and is tried again.
    Retrying(Failure),
    /// The projector failed with an event, and the process has stopped.
    Stopped(Failure),
}

impl ReadModel {
    /// The generations, and how far each of them is.
    ///
    /// # Errors
    ///
    /// [`ProjectionError::Missing`] before the first run; errors of MongoDB.
    pub async fn status(&self) -> Result<ReadModelStatus, ProjectionError> {
        let known = self.existing().await?;
        let checkpoints = self.all_checkpoints().await?;
        // After the checkpoints, so that no position is beyond it.
        let head = self.feed.state().await?.map_or(0, |state| state.head);
        let generations = checkpoints.into_iter().map(|checkpoint| {
            let lag = (head - checkpoint.position).max(0);
            GenerationStatus {
                generation: checkpoint.generation,
                revision: checkpoint.made_with.revision,
                position: checkpoint.position,
                lag,
                advanced_at: checkpoint.updated_at,
                state: match checkpoint.failure {
                    Some(failure) if failure.is_final => GenerationState::Stopped(failure),
                    Some(failure) => GenerationState::Retrying(failure),
                    None if lag > 0 => GenerationState::Behind,
                    None => GenerationState::UpToDate,
                },
            }
        });
        Ok(ReadModelStatus {
            live: known.live,
            building: known.building,
            generations: generations.collect(),
        })
    }
}
