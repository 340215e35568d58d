//! What it means for a message that the broker closed its channel or connection.

use lapin::ErrorKind;

use crate::sink::{PublishError, Verdict};

/// `content-too-large`, an AMQP soft error.
const CONTENT_TOO_LARGE: u16 = 311;
/// `access-refused`: no permission to write to the exchange.
pub(super) const ACCESS_REFUSED: u16 = 403;
/// `not-found`: the exchange went between look-up and publish.
pub(super) const NOT_FOUND: u16 = 404;
/// `precondition-failed`: what RabbitMQ says of a message above its `max_message_size`.
const PRECONDITION_FAILED: u16 = 406;
/// `connection-forced`: an operator, or the node's own stop.
const CONNECTION_FORCED: u16 = 320;
/// `internal-error`: the broker's own trouble.
const INTERNAL_ERROR: u16 = 541;

/// The broker's words, where it was the broker that closed.
pub(super) fn broker_said(error: &lapin::Error) -> Option<(u16, String)> {
    match error.kind() {
        ErrorKind::ProtocolError(error) => Some((error.get_id(), error.get_message().to_string())),
        _ => None,
    }
}

/// Judges a message that was outstanding when its channel closed.
///
/// `only`: it was the only one, so that the broker can't have meant another.
pub(super) fn judge(error: &lapin::Error, exchange: &str, only: bool) -> PublishError {
    let Some((code, words)) = broker_said(error) else {
        let detail = format!("connection lost before the confirm: {error}");
        return PublishError::new(Verdict::Unknown, detail);
    };
    PublishError::new(verdict(code, &words, exchange, only), format!("the broker said: {words}"))
}

fn verdict(code: u16, words: &str, exchange: &str, only: bool) -> Verdict {
    let named = !exchange.is_empty() && words.contains(&format!("'{exchange}'"));
    match code {
        CONNECTION_FORCED | INTERNAL_ERROR => Verdict::Unknown,
        ACCESS_REFUSED | NOT_FOUND if only || named => Verdict::Charge,
        CONTENT_TOO_LARGE if only => Verdict::TooLarge,
        PRECONDITION_FAILED if only && words.contains("size") => Verdict::TooLarge,
        _ if only => Verdict::Refuse,
        _ => Verdict::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whom_the_broker_can_have_meant_is_judged() {
        let missing = "NOT_FOUND - no exchange 'x' in vhost '/'";
        let large = "PRECONDITION_FAILED - message size 999 is larger than configured max size 9";
        for (code, words, exchange, only, expected) in [
            (NOT_FOUND, missing, "x", false, Verdict::Charge),
            (NOT_FOUND, missing, "y", false, Verdict::Unknown),
            (NOT_FOUND, missing, "", false, Verdict::Unknown),
            (PRECONDITION_FAILED, large, "x", true, Verdict::TooLarge),
            (PRECONDITION_FAILED, large, "x", false, Verdict::Unknown),
            (501, "FRAME_ERROR", "x", true, Verdict::Refuse),
            (CONNECTION_FORCED, "CONNECTION_FORCED - shutdown", "x", true, Verdict::Unknown),
        ] {
            assert_eq!(verdict(code, words, exchange, only), expected, "{words} {exchange} {only}");
        }
    }
}
