//! The kinds of collections of a context.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A kind of collection of a context.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CollectionKind {
    /// `{aggregateName}_event_stream`.
    Events,
    /// `{aggregateName}_snapshot`.
    Snapshots,
    /// `prepare_{name}`.
    Prepare,
}

impl CollectionKind {
    /// All kinds.
    pub const ALL: [Self; 3] = [Self::Events, Self::Snapshots, Self::Prepare];

    /// The setting that names its database.
    pub fn setting(self) -> &'static str {
        match self {
            Self::Events => "events.database",
            Self::Snapshots => "snapshots.database",
            Self::Prepare => "prepare.database",
        }
    }

    /// The collection of this name.
    pub fn collection(self, name: &str) -> String {
        match self {
            Self::Events => format!("{name}_event_stream"),
            Self::Snapshots => format!("{name}_snapshot"),
            Self::Prepare => format!("prepare_{name}"),
        }
    }
}

/// The scope in which a request id is unique.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum RequestIds {
    /// An aggregate: the unique index begins with the shard key.
    #[default]
    Aggregate,
    /// All aggregates of a name: for collections that are not sharded.
    Global,
}
