//! What a failed publish means, judged by the sink: only it can read the broker's reply.

use std::fmt;

/// What a failed publish means for its record (contract, section 4.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The record's fault or its destination's (nack, return, missing exchange,
    /// write refused): back off, and spend an attempt.
    Charge,
    /// The broker's limits forbid the message for ever (`too large:`): dead at once.
    TooLarge,
    /// The protocol can't carry the message, or the broker named it as the cause
    /// of a closed connection (`refused:`): dead at once.
    Refuse,
    /// Handed over, but the connection was lost or the time was up before the
    /// confirm: deliver again with the same id, nothing charged.
    Unknown,
    /// Never handed over: the sink is down. The relay pauses the sink and charges nothing.
    Down,
}

/// A publish that did not end with a confirm.
///
/// `Display` gives the words for `lastError`: they name broker, destination and
/// the broker's own answer, never a payload or a secret.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{detail}")]
pub struct PublishError {
    /// What it means for the record.
    pub verdict: Verdict,
    /// The broker's answer, in words.
    pub detail: String,
}

impl PublishError {
    /// An error with the given meaning.
    pub fn new(verdict: Verdict, detail: impl fmt::Display) -> Self {
        Self { verdict, detail: detail.to_string() }
    }
}

/// Why a sink can't be used at the moment, in words for the operator.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{detail}")]
pub struct SinkDown {
    /// The cause and, where it is known, the remedy.
    pub detail: String,
}

impl SinkDown {
    /// A sink that is down for this reason.
    pub fn new(detail: impl fmt::Display) -> Self {
        Self { detail: detail.to_string() }
    }
}
