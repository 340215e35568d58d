//! The meaning of an error with which the broker closed a channel or connection.

use std::io;

use lapin::ErrorKind;
use postrider_relay::sink::{PublishError, PublishFailure, SinkDown};
use postrider_settings::files::io_text;

use crate::rabbitmq::config::RabbitMqConfig;
use crate::rabbitmq::rendering::Target;
use crate::rabbitmq::uri::REQUIRED_CHANNELS;

/// The channels of a sink that publishes: the control connection's is the third.
const REQUIRED_USER_CHANNELS: u16 = REQUIRED_CHANNELS + 1;
/// The connections of a sink that publishes: its own, and the control connection.
const REQUIRED_CONNECTIONS: u16 = 2;

/// `content-too-large`, a channel error.
const CONTENT_TOO_LARGE: u16 = 311;
/// `connection-forced`: an operator closed it, or the node stops.
const CONNECTION_FORCED: u16 = 320;
/// `access-refused`: no permission to write to the exchange, or with this routing key.
pub(super) const ACCESS_REFUSED: u16 = 403;
/// `not-found`: the exchange was removed between look-up and publish.
pub(super) const NOT_FOUND: u16 = 404;
/// `precondition-failed`: also RabbitMQ's reply to a message above its `max_message_size`.
pub(super) const PRECONDITION_FAILED: u16 = 406;
/// `channel-error`: a frame for a channel that is not open.
const CHANNEL_ERROR: u16 = 504;
/// `resource-error`: the broker lacks something.
const RESOURCE_ERROR: u16 = 506;
/// `not-allowed`: the vhost is missing, or closed to the user, or a limit of the user is reached.
const NOT_ALLOWED: u16 = 530;
/// `internal-error`: a fault of the broker.
const INTERNAL_ERROR: u16 = 541;

/// The cause of a link that went down without a reply of the broker.
pub(super) const CONNECTION_LOST: &str = "connection lost";

/// Returns reply code and reply text, if the broker sent the error.
pub(super) fn reply(error: &lapin::Error) -> Option<(u16, String)> {
    match error.kind() {
        ErrorKind::ProtocolError(error) => Some((error.get_id(), error.get_message().to_string())),
        _ => None,
    }
}

/// Quotes a reply text of the broker.
pub(super) fn quoted(reply_text: &str) -> String {
    format!("the broker replied: {reply_text}")
}

/// Returns the text of an error, which is the broker's if it sent the error.
pub(super) fn text(error: &lapin::Error) -> String {
    // (`Display` of `lapin` repeats its sources.)
    match (reply(error), error.kind()) {
        (Some((_, reply_text)), _) => quoted(&reply_text),
        (None, ErrorKind::IOError(error)) if error.kind() == io::ErrorKind::ConnectionAborted => {
            CONNECTION_LOST.to_owned()
        }
        (None, ErrorKind::IOError(error)) => io_text(error),
        (None, _) => error.to_string(),
    }
}

/// Returns why there is no connection, or too few channels on it, with the remedy if it is known.
pub(super) fn connect_error(error: &lapin::Error, config: &RabbitMqConfig) -> SinkDown {
    let mut text = text(error);
    let limit_of =
        |what: &str, reply_text: &str| reply_text.contains(what) && reply_text.contains("limit");
    let remedy = match reply(error) {
        Some((ACCESS_REFUSED, _)) => {
            "check the user and password in the URI, or username and password_file; RabbitMQ \
             accepts the user guest only from its own host"
        }
        Some((NOT_ALLOWED, reply_text)) if limit_of("number of channels", &reply_text) => {
            let required = format!("; {REQUIRED_USER_CHANNELS} channels are required");
            text.push_str(&required);
            "allow the user more of them, for each sink and instance (rabbitmqctl \
             set_user_limits USER '{\"max-channels\": 16}')"
        }
        Some((NOT_ALLOWED, reply_text)) if limit_of("connection limit", &reply_text) => {
            let required = format!("; {REQUIRED_CONNECTIONS} connections are required");
            text.push_str(&required);
            "allow more of them, for each sink and instance (rabbitmqctl set_user_limits, \
             set_vhost_limits; max-connections)"
        }
        Some((NOT_ALLOWED, reply_text))
            if reply_text.contains("not found") && config.names_empty_vhost() =>
        {
            "the path \"/\" of the URI names the vhost with the empty name: end the URI with the port, \
             or with /%2f, for the vhost \"/\""
        }
        Some((NOT_ALLOWED, reply_text)) if reply_text.contains("not found") => {
            "create it (rabbitmqctl add_vhost), or change the URI"
        }
        Some((NOT_ALLOWED, reply_text)) if reply_text.contains("refused") => {
            "grant access (rabbitmqctl set_permissions), or change the URI"
        }
        None if text.contains("certificate") => {
            "add its certificate authority to the system's certificates, or to the file of \
             tls.ca_file or SSL_CERT_FILE"
        }
        None if text.contains("InvalidContentType") => {
            "the port does not use TLS: change amqps to amqp, or change the port"
        }
        _ => "",
    };
    SinkDown::new(text).with_remedy(remedy).preceded_by(cannot_connect(config))
}

/// Returns why a connection with this limit of channels cannot be used.
pub(super) fn too_few_channels(channel_max: u16, config: &RabbitMqConfig) -> SinkDown {
    let detail = format!(
        "the connection may have {channel_max} channel, and {REQUIRED_CHANNELS} channels are required"
    );
    SinkDown::new(detail)
        .with_remedy("raise channel_max of the URI, or of the broker (rabbitmq.conf)")
        .preceded_by(cannot_connect(config))
}

/// The words in front of the cause.
pub(super) fn cannot_connect(config: &RabbitMqConfig) -> String {
    format!("cannot connect to {}: ", config.redacted_uri())
}

/// The part of a target that the broker refused.
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
    /// False if the exchange is missing.
    pub(super) is_forbidden: bool,
    pub(super) reply_text: String,
}

/// Returns what the error that closed a channel means for a message without a confirm, and the refusal if the
/// broker refused the message's target.
///
/// `is_only`: no other message was without a confirm, so the broker cannot have meant another one.
pub(super) fn publish_error(
    error: &lapin::Error,
    target: &Target,
    is_only: bool,
) -> (PublishError, Option<Refusal>) {
    let Some((code, reply_text)) = reply(error) else {
        let detail = format!("connection lost before the confirm: {error}");
        return (PublishError::new(PublishFailure::Indeterminate, detail), None);
    };
    let (failure, scope) = failure(code, &reply_text, target, is_only);
    let error = PublishError::new(failure, quoted(&reply_text));
    let is_forbidden = code == ACCESS_REFUSED;
    (error, scope.map(|scope| Refusal { scope, is_forbidden, reply_text }))
}

/// Returns what the broker refused with [`ACCESS_REFUSED`] or [`NOT_FOUND`] when it was asked for this target alone.
pub(super) fn refusal(code: u16, reply_text: &str, target: &Target) -> Refusal {
    let scope = named(reply_text, target).scope;
    Refusal { scope, is_forbidden: code == ACCESS_REFUSED, reply_text: reply_text.to_owned() }
}

fn failure(
    code: u16,
    reply_text: &str,
    target: &Target,
    is_only: bool,
) -> (PublishFailure, Option<Scope>) {
    let failure = match code {
        ACCESS_REFUSED | NOT_FOUND => {
            let Named { scope, is_target } = named(reply_text, target);
            return if is_only || is_target {
                (PublishFailure::Retryable, Some(scope))
            } else {
                (PublishFailure::Indeterminate, None)
            };
        }
        CONNECTION_FORCED => PublishFailure::ConnectionEnded,
        // Not about a message: the user, the channel or the broker is the cause.
        CHANNEL_ERROR | RESOURCE_ERROR | NOT_ALLOWED | INTERNAL_ERROR => {
            PublishFailure::Indeterminate
        }
        CONTENT_TOO_LARGE if is_only => PublishFailure::TooLarge,
        PRECONDITION_FAILED if is_only && reply_text.contains("size") => PublishFailure::TooLarge,
        _ if is_only => PublishFailure::Rejected,
        _ => PublishFailure::Indeterminate,
    };
    (failure, None)
}

/// What a reply text names.
struct Named {
    scope: Scope,
    /// Whether it names this target.
    is_target: bool,
}

/// Reads what the broker refused. AMQP defines only the code; the reply text is RabbitMQ's own:
///
/// - `NOT_FOUND - no exchange 'E' in vhost 'V'`
/// - `ACCESS_REFUSED - access to exchange 'E' in vhost 'V' refused for user 'U'`
/// - `ACCESS_REFUSED - access to topic 'K' in exchange 'E' in vhost 'V' refused for user 'U'`
///
/// A name may contain quotes, and a vhost or a user may have the name of an exchange. So the text is not parsed:
/// it is compared with the text for this target. A text of another form names no target, and counts as one about
/// the exchange.
fn named(reply_text: &str, target: &Target) -> Named {
    let exchange = match target.exchange.as_str() {
        // RabbitMQ's name for the default exchange.
        "" => "amq.default",
        name => name,
    };
    let (before, rest) = reply_text.split_once('\'').unwrap_or_default();
    if before.ends_with("access to topic ") {
        let routing_key = target.routing_key.as_str();
        let key = format!("{routing_key}' in exchange '");
        let is_target = begins_with(rest, &key, &format!("{exchange}' in vhost '"));
        Named { scope: Scope::RoutingKey, is_target }
    } else {
        let exchange = format!("{exchange}' ");
        let is_target = before.ends_with("exchange ") && begins_with(rest, &exchange, "in vhost '");
        Named { scope: Scope::Exchange, is_target }
    }
}

/// Returns whether a text begins with `first`, then `second`, of which the end may be missing: RabbitMQ cuts
/// reply texts at 255 bytes and ends them with dots.
fn begins_with(text: &str, first: &str, second: &str) -> bool {
    let Some(rest) = text.strip_prefix(first) else { return false };
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
    fn error_counts_against_the_message_that_the_broker_meant() {
        let missing = "NOT_FOUND - no exchange 'x' in vhost 'v'";
        let refused =
            "ACCESS_REFUSED - access to exchange 'amq.default' in vhost 'v' refused for user 'u'";
        let large = "PRECONDITION_FAILED - message size 999 is larger than configured max size 9";
        for (code, reply_text, exchange, only, expected) in [
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
            (NOT_ALLOWED, "NOT_ALLOWED - limit", "x", true, PublishFailure::Indeterminate),
            (CHANNEL_ERROR, "CHANNEL_ERROR - closed", "x", true, PublishFailure::Indeterminate),
        ] {
            let (failure, _) = failure(code, reply_text, &to(exchange, "any"), only);
            assert_eq!(failure, expected, "{reply_text} {exchange} {only}");
        }
    }

    #[test]
    fn forbidden_routing_key_counts_against_its_own_messages() {
        let of =
            |exchange, key, only| failure(ACCESS_REFUSED, FORBIDDEN_KEY, &to(exchange, key), only);
        let of_its_own = (PublishFailure::Retryable, Some(Scope::RoutingKey));

        assert_eq!(of("events", "bad.x", false), of_its_own);
        for (exchange, key) in [("events", "ok.x"), ("other", "bad.x"), ("v", "u"), ("", "bad.x")] {
            assert_eq!(
                of(exchange, key, false),
                (PublishFailure::Indeterminate, None),
                "{exchange} {key}"
            );
        }
        assert_eq!(
            of("events", "ok.x", true),
            of_its_own,
            "the broker cannot have meant another one"
        );
    }

    #[test]
    fn reply_text_of_newer_brokers_is_understood() {
        for reply_text in [
            "ACCESS_REFUSED - write access to topic 'bad.x' in exchange 'events' in vhost 'v'",
            "ACCESS_REFUSED - write access to exchange 'events' in vhost 'v' refused",
        ] {
            let (failure, _) = failure(ACCESS_REFUSED, reply_text, &to("events", "bad.x"), false);
            assert_eq!(failure, PublishFailure::Retryable, "{reply_text}");
        }
    }

    #[test]
    fn name_with_quotes_is_compared_as_a_whole() {
        for (reply_text, exchange, key, expected) in [
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
            let reply_text = format!("ACCESS_REFUSED - {reply_text}");
            let is_named = named(&reply_text, &to(exchange, key)).is_target;
            assert_eq!(is_named, expected, "{reply_text}: {exchange} {key}");
        }
    }

    #[test]
    fn cut_reply_text_names_a_routing_key_that_it_has_as_a_whole() {
        let cut = |key: &str| {
            let reply_text = format!(
                "ACCESS_REFUSED - access to topic '{key}' in exchange 'events' in vhost 'v' refused"
            );
            format!("{}...", &reply_text[..252])
        };
        for (length, expected) in [(190, true), (200, true), (203, true), (230, false)] {
            let key = "k".repeat(length);
            let is_named = named(&cut(&key), &to("events", &key)).is_target;
            assert_eq!(is_named, expected, "{length}");
            let other = named(&cut(&key), &to("events", &key[1..])).is_target;
            assert!(!other, "{length}");
        }
    }
}
