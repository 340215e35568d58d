//! What must never happen.

/// A broken promise. The state in which it happened is the last of its history.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Breach {
    /// Contract 4.2: a record arrived for the first time after one that must follow it.
    Inversion,
    /// Contract 4.1: something arrived that no majority ever had.
    Phantom,
    /// Contract 4.1: a record became done that had not arrived.
    Loss,
    /// Contract 4.2: a record arrived while one before it, never delivered, was dead and blocked.
    BlockPassed,
    /// Contract 4.3: a settling write changed a record that its writer did not hold.
    ForeignSettled,
    /// Contract 4.3: somebody took a live lease from another.
    LeaseBroken,
    /// Contract 4.5: somebody took a record that was done or dead.
    SettledTaken,
    /// Contract 4.3: a publish started while the record was leased to another.
    LateStart,
}
