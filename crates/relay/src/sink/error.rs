//! The meaning of a failed publish. The sink decides it from the broker's reply.

use std::fmt;

/// What a failed publish means for its record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PublishFailure {
    /// The record or its destination is at fault (nack, return, missing exchange,
    /// write refused): back off, and count an attempt.
    Retryable,
    /// The broker's limits forbid the message for ever (`too large:`): dead at once.
    TooLarge,
    /// The protocol can't carry the message, or the broker named it as the cause
    /// of a closed connection (`refused:`): dead at once.
    Rejected,
    /// Sent, but the connection was lost before the confirm: deliver again with the
    /// same id, without counting an attempt. The relay opens the circuit of the sink.
    Indeterminate,
    /// Sent, but the broker closed the connection before the confirm for its own reason: its stop, or an
    /// operator. Like [`Indeterminate`](Self::Indeterminate), but not evidence against the record.
    ConnectionEnded,
    /// Sent on a connection that works as far as the sink knows, but not confirmed in time: the
    /// timeout expired, or the broker reports a timeout, too few replicas or a partition without a
    /// leader. The relay opens the circuit of this destination only, and delivers again with the same id.
    Unconfirmed,
    /// Sent on a connection that the sink has replaced, and not confirmed in time or before that
    /// connection was lost; or refused together with another record that was at fault. Like
    /// [`Unconfirmed`](Self::Unconfirmed), but an attempt is never counted.
    Abandoned,
    /// Not sent: the sink is down. The relay opens the circuit of the sink, and counts no attempt.
    SinkDown,
}

impl PublishFailure {
    /// Returns whether it answers the message: the record or its destination is at fault, and the connection
    /// works.
    pub fn is_answer(self) -> bool {
        matches!(self, Self::Retryable | Self::TooLarge | Self::Rejected)
    }
}

/// A publish that did not end with a confirm.
///
/// `Display` is the text of `lastError`: broker, destination and the broker's reply, never a payload or a
/// secret.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{detail}")]
pub struct PublishError {
    /// What it means for the record.
    pub failure: PublishFailure,
    /// The broker's reply as text.
    pub detail: String,
}

impl PublishError {
    /// Creates an error with the given meaning.
    pub fn new(failure: PublishFailure, detail: impl fmt::Display) -> Self {
        Self { failure, detail: detail.to_string() }
    }
}

impl From<SinkDown> for PublishError {
    fn from(down: SinkDown) -> Self {
        Self::new(PublishFailure::SinkDown, down)
    }
}

/// Why a sink cannot be used now, as text for the operator: the cause and, after a semicolon, the remedy if
/// it is known.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{detail}")]
pub struct SinkDown {
    /// Cause and remedy.
    pub detail: String,
    /// The length of the cause, in bytes.
    cause: usize,
}

impl SinkDown {
    /// Creates the error from its cause.
    pub fn new(detail: impl fmt::Display) -> Self {
        let detail = detail.to_string();
        let cause = detail.len();
        Self { detail, cause }
    }

    /// Sets the remedy; an empty text sets none.
    pub fn with_remedy(self, remedy: &str) -> Self {
        let Self { mut detail, cause } = self;
        if !remedy.is_empty() {
            detail.truncate(cause);
            detail.push_str("; ");
            detail.push_str(remedy);
        }
        Self { detail, cause }
    }

    /// Puts text in front of the cause.
    pub fn preceded_by(self, words: impl fmt::Display) -> Self {
        let detail = format!("{words}{}", self.detail);
        let cause = self.cause + detail.len() - self.detail.len();
        Self { detail, cause }
    }

    /// Returns the cause alone.
    pub fn cause(&self) -> &str {
        &self.detail[..self.cause]
    }

    /// Returns the remedy, if it is known.
    pub fn remedy(&self) -> Option<&str> {
        self.detail[self.cause..].strip_prefix("; ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sink_down_has_cause_and_remedy_together_and_apart() {
        let bare = SinkDown::new("it burns; it smokes");
        let down = bare.clone().with_remedy("put it out").preceded_by("at h: ");

        assert_eq!((bare.cause(), bare.remedy()), ("it burns; it smokes", None));
        assert_eq!(down.to_string(), "at h: it burns; it smokes; put it out");
        assert_eq!(down.cause(), "at h: it burns; it smokes");
        assert_eq!(down.remedy(), Some("put it out"));
        assert_eq!(bare.clone().with_remedy(""), bare);
    }
}
