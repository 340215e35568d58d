#![doc = include_str!("../README.md")]

pub use checkpoint::Failure;
pub use error::{ApplyError, ProjectionError};
pub use name::{Generation, GenerationCollections};
pub use projector::{GenerationWriter, Projector};
pub use read_model::{ReadModel, ReadModelSettings};
pub use resolver::{GenerationResolver, MAX_STALENESS};
pub use retry::RetryPolicy;
pub use status::{GenerationState, GenerationStatus, ReadModelStatus};

mod appends;
mod checkpoint;
mod error;
mod name;
mod projector;
mod read_model;
mod rebuild;
mod resolver;
mod retry;
mod runner;
mod status;
mod transaction;
