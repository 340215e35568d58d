//! Which generation readers use.

use std::time::{Duration, Instant};

use tokio::sync::Mutex;

use crate::error::ProjectionError;
use crate::name::GenerationCollections;
use crate::read_model::ReadModel;

/// How long a reader uses what it has resolved: so long after a switch, it may read the generation
/// before.
pub const MAX_STALENESS: Duration = Duration::from_secs(1);

/// Resolves the live generation of a read model, for readers. One for each process: it reads MongoDB at
/// most once per [`MAX_STALENESS`], however many readers share it.
#[derive(Debug)]
pub struct GenerationResolver {
    model: ReadModel,
    resolved: Mutex<Option<(Instant, GenerationCollections)>>,
}

impl ReadModel {
    /// A resolver of the live generation.
    pub fn resolver(&self) -> GenerationResolver {
        GenerationResolver { model: self.clone(), resolved: Mutex::default() }
    }
}

impl GenerationResolver {
    /// The collections of the live generation, or of the one that was live at most [`MAX_STALENESS`] ago.
    ///
    /// Resolve for each query or request; a generation is dropped no sooner than some seconds after the
    /// switch.
    ///
    /// # Errors
    ///
    /// [`ProjectionError::Missing`] before the first run; errors of MongoDB.
    pub async fn resolve(&self) -> Result<GenerationCollections, ProjectionError> {
        let mut resolved = self.resolved.lock().await;
        if let Some((at, collections)) = &*resolved
            && at.elapsed() < MAX_STALENESS
        {
            return Ok(collections.clone());
        }
        // Counted from before the read.
        let asked = Instant::now();
        let live = self.model.existing().await?.live;
        let collections = self.model.collections(live);
        *resolved = Some((asked, collections.clone()));
        Ok(collections)
    }
}
