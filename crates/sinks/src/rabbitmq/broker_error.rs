//! What it means for a message that the broker closed its channel or connection.

use lapin::ErrorKind;
use postrider_relay::sink::{PublishError, PublishFailure, SinkDown};

use crate::rabbitmq::rendering::Target;

/// `content-too-large`, an AMQP soft error.
const CONTENT_TOO_LARGE: u16 = 311;
/// `access-refused`: no permission to write to the exchange, or with this routing key.
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

/// The part of its target that a message was refused for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scope {
    /// The exchange is missing, or closed to the user.
    Exchange,
    /// A topic permission of the user does not cover the routing key.
    RoutingKey,
}

/// A refusal of a target by the broker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Refusal {
    pub(super) scope: Scope,
    /// False where the exchange is missing.
    pub(super) forbidden: bool,
    /// The broker's.
    pub(super) words: String,
}

/// Judges a message that was outstanding when its channel closed; with the refusal, where it is
/// the message's target that the broker refused.
///
/// `only`: no other message was outstanding, so that the broker cannot have meant another one.
pub(super) fn judge(
    error: &lapin::Error,
    target: &Target,
    only: bool,
) -> (PublishError, Option<Refusal>) {
    let Some((code, words)) = broker_said(error) else {
        let detail = format!("connection lost before the confirm: {error}");
        return (PublishError::new(PublishFailure::Indeterminate, detail), None);
    };
    let (failure, scope) = failure(code, &words, target, only);
    let error = PublishError::new(failure, format!("the broker said: {words}"));
    (error, scope.map(|scope| Refusal { scope, forbidden: code == ACCESS_REFUSED, words }))
}

fn failure(code: u16, words: &str, target: &Target, only: bool) -> (PublishFailure, Option<Scope>) {
    let failure = match code {
        ACCESS_REFUSED | NOT_FOUND => {
            let Refused { scope, is_named } = refused(words, target);
            return if only || is_named {
                (PublishFailure::Retryable, Some(scope))
            } else {
                (PublishFailure::Indeterminate, None)
            };
        }
        CONNECTION_FORCED => PublishFailure::ConnectionEnded,
        INTERNAL_ERROR => PublishFailure::Indeterminate,
        CONTENT_TOO_LARGE if only => PublishFailure::TooLarge,
        PRECONDITION_FAILED if only && words.contains("size") => PublishFailure::TooLarge,
        _ if only => PublishFailure::Rejected,
        _ => PublishFailure::Indeterminate,
    };
    (failure, None)
}

struct Refused {
    scope: Scope,
    is_named: bool,
}

/// Reads what the broker refused. AMQP fixes the code alone; the words are RabbitMQ's own:
///
/// - `NOT_FOUND - no exchange 'E' in vhost 'V'`
/// - `ACCESS_REFUSED - access to exchange 'E' in vhost 'V' refused for user 'U'`
/// - `ACCESS_REFUSED - access to topic 'K' in exchange 'E' in vhost 'V' refused for user 'U'`
///
/// A name may contain quotes, and the name of the vhost or the user may be that of an exchange.
/// So nothing is cut out of the words: they are compared with those that this target would get.
/// Words of another form name no target. They are taken to be about the exchange.
fn refused(words: &str, target: &Target) -> Refused {
    let exchange = match target.exchange.as_str() {
        // The broker's own name for the one without a name.
        "" => "amq.default",
        name => name,
    };
    let (before, rest) = words.split_once('\'').unwrap_or_default();
    if before.ends_with("access to topic ") {
        let routing_key = target.routing_key.as_str();
        let named = format!("{routing_key}' in exchange '");
        let is_named = begins(rest, &named, &format!("{exchange}' in vhost '"));
        Refused { scope: Scope::RoutingKey, is_named }
    } else {
        let named = format!("{exchange}' ");
        let is_named = before.ends_with("exchange ") && begins(rest, &named, "in vhost '");
        Refused { scope: Scope::Exchange, is_named }
    }
}

/// Whether the words begin with `first`, then `second`, of which the end may be missing:
/// RabbitMQ cuts its words at 255 bytes and ends them with dots.
fn begins(words: &str, first: &str, second: &str) -> bool {
    let Some(rest) = words.strip_prefix(first) else { return false };
    let cut = rest.strip_suffix("...");
    rest.starts_with(second) || cut.is_some_and(|cut| second.starts_with(cut))
}

#[cfg(test)]
mod tests {
    use super::*;

    const FORBIDDEN_KEY: &str = "ACCESS_REFUSED - access to topic 'bad.x' in exchange 'events' in \
                                 vhost 'v' refused for user 'u'";

    fn to(exchange: &str, routing_key: &str) -> Target {
        Target { exchange: exchange.into(), routing_key: routing_key.into() }
    }

    #[test]
    fn only_whom_the_broker_can_have_meant_is_judged() {
        let missing = "NOT_FOUND - no exchange 'x' in vhost 'v'";
        let refused =
            "ACCESS_REFUSED - access to exchange 'amq.default' in vhost 'v' refused for user 'u'";
        let large = "PRECONDITION_FAILED - message size 999 is larger than configured max size 9";
        for (code, words, exchange, only, expected) in [
            (NOT_FOUND, missing, "x", false, PublishFailure::Retryable),
            (NOT_FOUND, missing, "y", false, PublishFailure::Indeterminate),
            (NOT_FOUND, missing, "v", false, PublishFailure::Indeterminate),
            (NOT_FOUND, missing, "", false, PublishFailure::Indeterminate),
            (ACCESS_REFUSED, refused, "", false, PublishFailure::Retryable),
            (ACCESS_REFUSED, refused, "u", false, PublishFailure::Indeterminate),
            (PRECONDITION_FAILED, large, "x", true, PublishFailure::TooLarge),
            (PRECONDITION_FAILED, large, "x", false, PublishFailure::Indeterminate),
            (501, "FRAME_ERROR", "x", true, PublishFailure::Rejected),
            (
                CONNECTION_FORCED,
                "CONNECTION_FORCED - shutdown",
                "x",
                true,
                PublishFailure::ConnectionEnded,
            ),
            (INTERNAL_ERROR, "INTERNAL_ERROR", "x", true, PublishFailure::Indeterminate),
        ] {
            let (failure, _) = failure(code, words, &to(exchange, "any"), only);
            assert_eq!(failure, expected, "{words} {exchange} {only}");
        }
    }

    #[test]
    fn a_forbidden_routing_key_is_charged_to_its_own_messages_alone() {
        let of =
            |exchange, key, only| failure(ACCESS_REFUSED, FORBIDDEN_KEY, &to(exchange, key), only);
        let charged = (PublishFailure::Retryable, Some(Scope::RoutingKey));

        assert_eq!(of("events", "bad.x", false), charged);
        for (exchange, key) in [("events", "ok.x"), ("other", "bad.x"), ("v", "u"), ("", "bad.x")] {
            assert_eq!(
                of(exchange, key, false),
                (PublishFailure::Indeterminate, None),
                "{exchange} {key}"
            );
        }
        assert_eq!(of("events", "ok.x", true), charged, "no other can have been meant");
    }

    #[test]
    fn the_permission_that_newer_brokers_name_changes_nothing() {
        for words in [
            "ACCESS_REFUSED - write access to topic 'bad.x' in exchange 'events' in vhost 'v'",
            "ACCESS_REFUSED - write access to exchange 'events' in vhost 'v' refused",
        ] {
            let (failure, _) = failure(ACCESS_REFUSED, words, &to("events", "bad.x"), false);
            assert_eq!(failure, PublishFailure::Retryable, "{words}");
        }
    }

    #[test]
    fn quotes_in_a_name_do_not_mislead() {
        for (words, exchange, key, expected) in [
            ("access to topic 'a'b' in exchange 'e'f' in vhost 'v'", "e'f", "a'b", true),
            ("access to topic 'a'b' in exchange 'e'f' in vhost 'v'", "e", "a'b", false),
            ("access to topic 'a'b' in exchange 'e'f' in vhost 'v'", "e'f", "a", false),
            ("access to exchange 'e'f' in vhost 'v' refused", "e'f", "any", true),
            ("access to exchange 'e'f' in vhost 'v' refused", "e", "any", false),
            ("access to exchange 'e' in vhost 'exchange 'x' in vhost 'v''", "x", "any", false),
            (
                "access to topic 'exchange 'x' in vhost ' in exchange 'e' in vhost 'v'",
                "x",
                "",
                false,
            ),
        ] {
            let words = format!("ACCESS_REFUSED - {words}");
            let named = refused(&words, &to(exchange, key)).is_named;
            assert_eq!(named, expected, "{words}: {exchange} {key}");
        }
    }

    #[test]
    fn words_that_the_broker_cut_name_a_routing_key_that_is_in_them_whole() {
        let cut = |key: &str| {
            let words = format!(
                "ACCESS_REFUSED - access to topic '{key}' in exchange 'events' in vhost 'v' refused"
            );
            format!("{}...", &words[..252])
        };
        for (length, expected) in [(190, true), (200, true), (203, true), (230, false)] {
            let key = "k".repeat(length);
            let named = refused(&cut(&key), &to("events", &key)).is_named;
            assert_eq!(named, expected, "{length}");
            let other = refused(&cut(&key), &to("events", &key[1..])).is_named;
            assert!(!other, "{length}");
        }
    }
}
