//! What must never happen.

/// A broken promise. The state in which it happened is the last of its history.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Breach {
    /// A record arrived for the first time after one that must follow it.
    Inversion,
    /// A message arrived that no majority ever had.
    Phantom,
    /// A record became done that had not arrived.
    Loss,
    /// A record arrived while one before it, never delivered, was dead and blocked.
    BlockPassed,
    /// A settling write changed a record that its writer had not leased.
    ForeignSettled,
    /// A relay took a live lease of another.
    LeaseBroken,
    /// A relay leased a record that was done or dead.
    SettledTaken,
    /// A publish started while the record was leased by another.
    LateStart,
}
