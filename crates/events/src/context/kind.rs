//! The kinds of collections that a context has.

/// A kind of collection that a context has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// `{aggregateName}_event_stream`.
    Events,
    /// `{aggregateName}_snapshot`.
    Snapshots,
    /// `prepare_{name}`.
    Prepare,
}

impl Kind {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Events, Self::Snapshots, Self::Prepare];

    /// The setting that names its database.
    pub fn setting(self) -> &'static str {
        match self {
            Self::Events => "events.database",
            Self::Snapshots => "snapshots.database",
            Self::Prepare => "prepare.database",
        }
    }

    /// The collection called after `name`.
    pub fn collection(self, name: &str) -> String {
        match self {
            Self::Events => format!("{name}_event_stream"),
            Self::Snapshots => format!("{name}_snapshot"),
            Self::Prepare => format!("prepare_{name}"),
        }
    }
}

/// Within what a request id is unique.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RequestIds {
    /// Within an aggregate: the unique index begins with the shard key.
    #[default]
    Aggregate,
    /// Within all aggregates of a name: for collections that are not sharded.
    Global,
}
