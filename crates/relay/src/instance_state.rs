//! The state that an instance writes with its heartbeat: its fields, and how texts are shortened.
//!
//! The total stays below 16 KB.

use postrider_outbox::ids::RecordId;

/// Fields of the state that an instance writes with its heartbeat.
pub mod fields {
    /// Sinks that are down: `sink`, `cause`.
    pub const SINKS_DOWN: &str = "sinksDown";
    /// Blocked keys, counted by reason.
    pub const BLOCKED_KEYS: &str = "blockedKeys";
    /// Whether more keys may be blocked than the instance remembers and counts.
    pub const BLOCKED_KEYS_AT_LEAST: &str = "blockedKeysAtLeast";
    /// Ids of some records that wait for their turn in quarantine.
    pub const ALONE: &str = "alone";
    /// Ids of some records that MongoDB refused to let the relay lease.
    pub const REFUSED: &str = "refused";
    /// Ids of some records whose dead letters wait for their sink.
    pub const DEAD_LETTER: &str = "deadLetter";
    /// Ids of some records whose destinations do not confirm.
    pub const UNCONFIRMED: &str = "unconfirmed";
    /// What MongoDB refuses or fails to do for the relay, as text, while it lasts.
    pub const STORE_TROUBLE: &str = "storeTrouble";
    /// Some destinations that do not confirm: `sink`, `destination`, `key`, `cause`.
    pub const DESTINATIONS_PAUSED: &str = "destinationsPaused";
    /// An exchange or a topic.
    pub const DESTINATION: &str = "destination";
    /// A routing key, or a partition.
    pub const KEY: &str = "key";
    /// A sink's name.
    pub const SINK: &str = "sink";
    /// Why it is down.
    pub const CAUSE: &str = "cause";
}

/// Ids of each kind that the state names at most.
pub(crate) const MAX_NAMED: usize = 32;

/// Characters of an id or a name.
pub(super) const MAX_ID_CHARS: usize = 64;

/// Characters of a cause.
pub(super) const MAX_CAUSE_CHARS: usize = 200;

/// Shortens an id for the state.
pub(crate) fn state_id(id: &RecordId) -> String {
    state_name(&id.to_string())
}

/// Shortens a name for the state.
pub fn state_name(name: &str) -> String {
    shortened(name, MAX_ID_CHARS)
}

/// Returns at most this many characters of a text.
pub(crate) fn shortened(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}
