//! What it means for a message that the broker closed its channel or connection.

use lapin::ErrorKind;

use crate::sink::{PublishError, SinkDown, Verdict};

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
/// `not-allowed`: the vhost is missing, or closed to the user.
const NOT_ALLOWED: u16 = 530;
/// `internal-error`: the broker's own trouble.
const INTERNAL_ERROR: u16 = 541;

/// The broker's words, where it was the broker that closed.
pub(super) fn broker_said(error: &lapin::Error) -> Option<(u16, String)> {
    match error.kind() {
        ErrorKind::ProtocolError(error) => Some((error.get_id(), error.get_message().to_string())),
        _ => None,
    }
}

/// Why there is no connection, and what to do about it where that can be told.
pub(super) fn unreachable(error: &lapin::Error) -> SinkDown {
    // Its `Display` repeats its sources.
    let Some((code, words)) = broker_said(error) else {
        let words = error.to_string();
        let remedy = if words.contains("certificate") {
            "its authority has to be among the system's certificates, or in the file that \
             SSL_CERT_FILE names"
        } else if words.contains("InvalidContentType") {
            "the port does not speak TLS: write amqp instead of amqps, or another port"
        } else {
            ""
        };
        return SinkDown::new(words).with_remedy(remedy);
    };
    let remedy = match code {
        ACCESS_REFUSED => "check user and password in the URI",
        NOT_ALLOWED if words.contains("not found") => {
            "make it (rabbitmqctl add_vhost), or change the URI"
        }
        NOT_ALLOWED if words.contains("refused") => {
            "allow it (rabbitmqctl set_permissions), or change the URI"
        }
        _ => "",
    };
    SinkDown::new(format!("the broker said: {words}")).with_remedy(remedy)
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
    // The broker's own name for the one without a name.
    let exchange = if exchange.is_empty() { "amq.default" } else { exchange };
    // Not the name alone: the vhost or the user, which the words name too, may be called the same.
    let named = words.contains(&format!("exchange '{exchange}'"));
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
        let missing = "NOT_FOUND - no exchange 'x' in vhost 'v'";
        let refused =
            "ACCESS_REFUSED - access to exchange 'amq.default' in vhost 'v' refused for user 'u'";
        let large = "PRECONDITION_FAILED - message size 999 is larger than configured max size 9";
        for (code, words, exchange, only, expected) in [
            (NOT_FOUND, missing, "x", false, Verdict::Charge),
            (NOT_FOUND, missing, "y", false, Verdict::Unknown),
            (NOT_FOUND, missing, "v", false, Verdict::Unknown),
            (NOT_FOUND, missing, "", false, Verdict::Unknown),
            (ACCESS_REFUSED, refused, "", false, Verdict::Charge),
            (ACCESS_REFUSED, refused, "u", false, Verdict::Unknown),
            (PRECONDITION_FAILED, large, "x", true, Verdict::TooLarge),
            (PRECONDITION_FAILED, large, "x", false, Verdict::Unknown),
            (501, "FRAME_ERROR", "x", true, Verdict::Refuse),
            (CONNECTION_FORCED, "CONNECTION_FORCED - shutdown", "x", true, Verdict::Unknown),
        ] {
            assert_eq!(verdict(code, words, exchange, only), expected, "{words} {exchange} {only}");
        }
    }
}
