//! What a failed publish means, judged by the sink: only it can read the broker's reply.

use std::fmt;

/// What a failed publish means for its record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PublishFailure {
    /// The record's fault or its destination's (nack, return, missing exchange,
    /// write refused): back off, and spend an attempt.
    Retryable,
    /// The broker's limits forbid the message for ever (`too large:`): dead at once.
    TooLarge,
    /// The protocol can't carry the message, or the broker named it as the cause
    /// of a closed connection (`refused:`): dead at once.
    Rejected,
    /// Handed over, but the connection was lost before the confirm: deliver again with the
    /// same id, nothing charged. The relay pauses the sink.
    Indeterminate,
    /// Handed over, and before the confirm the broker ended the connection for a reason of its
    /// own: its stop, or an operator. As [`Indeterminate`](Self::Indeterminate), but no sign against the
    /// record.
    ConnectionEnded,
    /// Handed over on a connection that is sound as far as the sink knows, but no confirm came
    /// in time: the time is up, or the broker itself reports a timeout, too few replicas or a
    /// partition without a leader. The destination is in trouble, not the sink: the relay
    /// pauses this destination only, and delivers again with the same id.
    Unconfirmed,
    /// Left behind on a connection in place of which the sink has opened another; no confirm came in
    /// time, or the connection was lost. As [`Unconfirmed`](Self::Unconfirmed), but no
    /// attempt is counted, whatever its destination has confirmed since on the other one.
    Abandoned,
    /// Never handed over: the sink is down. The relay pauses the sink and charges nothing.
    SinkDown,
}

/// A publish that did not end with a confirm.
///
/// `Display` gives the words for `lastError`: they name broker, destination and
/// the broker's own answer, never a payload or a secret.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{detail}")]
pub struct PublishError {
    /// What it means for the record.
    pub failure: PublishFailure,
    /// The broker's answer, in words.
    pub detail: String,
}

impl PublishError {
    /// An error with the given meaning.
    pub fn new(failure: PublishFailure, detail: impl fmt::Display) -> Self {
        Self { failure, detail: detail.to_string() }
    }
}

/// Why a sink can't be used at the moment, in words for the operator: the cause and, behind
/// a semicolon, the remedy where it is known.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{detail}")]
pub struct SinkDown {
    /// Both.
    pub detail: String,
    /// Where the cause ends, in bytes.
    cause: usize,
}

impl SinkDown {
    /// A sink that is down for this reason.
    pub fn new(detail: impl fmt::Display) -> Self {
        let detail = detail.to_string();
        let cause = detail.len();
        Self { detail, cause }
    }

    /// The same with something that can be done about it; an empty text is nothing.
    pub fn with_remedy(self, remedy: &str) -> Self {
        let Self { mut detail, cause } = self;
        if !remedy.is_empty() {
            detail.truncate(cause);
            detail.push_str("; ");
            detail.push_str(remedy);
        }
        Self { detail, cause }
    }

    /// The same with words in front of the cause.
    pub fn preceded_by(self, words: impl fmt::Display) -> Self {
        let detail = format!("{words}{}", self.detail);
        let cause = self.cause + detail.len() - self.detail.len();
        Self { detail, cause }
    }

    /// The cause alone.
    pub fn cause(&self) -> &str {
        &self.detail[..self.cause]
    }

    /// What can be done about it, where that is known.
    pub fn remedy(&self) -> Option<&str> {
        self.detail[self.cause..].strip_prefix("; ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cause_and_its_remedy_are_told_together_and_apart() {
        let bare = SinkDown::new("it burns; it smokes");
        let down = bare.clone().with_remedy("put it out").preceded_by("at h: ");

        assert_eq!((bare.cause(), bare.remedy()), ("it burns; it smokes", None));
        assert_eq!(down.to_string(), "at h: it burns; it smokes; put it out");
        assert_eq!(down.cause(), "at h: it burns; it smokes");
        assert_eq!(down.remedy(), Some("put it out"));
        assert_eq!(bare.clone().with_remedy(""), bare);
    }
}
