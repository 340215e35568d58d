//! The words and the remedy for an error of librdkafka.

use rdkafka::error::KafkaError;
use rdkafka::types::RDKafkaErrorCode as Code;

/// Parts of error texts and the remedy that each of them points to. The first match counts.
const REMEDIES: [(&[&str], &str); 6] = [
    (
        &["alert bad certificate", "alert certificate required"],
        "the broker requires a client certificate: set tls.cert_file and tls.key_file, or the \
         properties ssl.certificate.location and ssl.key.location",
    ),
    (
        &["certificate"],
        "add the certificate authority of the broker to the system's certificates, or set \
         tls.ca_file or the property ssl.ca.location",
    ),
    (&["OAUTHBEARER token"], "check token_file: it must have a token that is valid now"),
    (
        &["SASL", "uthentication failed"],
        "check username and password_file, token_file, or the properties sasl.* and security.protocol",
    ),
    (
        // A broker disconnects a client that skips SASL after the API-versions request. librdkafka
        // reports it by the system call that notices it first.
        &[
            "SSL",
            "APIVERSION_QUERY",
            "AUTH_HANDSHAKE",
            "AUTH_REQ",
            "/bootstrap: Disconnected",
            "/bootstrap: Receive failed",
            "/bootstrap: Send failed",
        ],
        "check whether the broker requires TLS or a login on this port: set tls and username, \
         or the property security.protocol",
    ),
    (
        &["Connect to", "Failed to resolve", "in state CONNECT"],
        "check the sink's brokers, and the addresses that they advertise (advertised.listeners)",
    ),
];

/// Returns the remedy; empty if none is known.
pub(super) fn find(error: &str) -> &'static str {
    let known = REMEDIES.iter().find(|(parts, _)| parts.iter().any(|part| error.contains(part)));
    known.map(|(_, remedy)| *remedy).unwrap_or_default()
}

/// Returns the broker and the cause, without librdkafka's internals; its own text is in the debug log.
///
/// `h:1/bootstrap: Connect to ipv4#10.0.0.1:1 failed: Connection refused (after 0ms in state CONNECT)` becomes
/// `h:1: connection refused`.
pub(super) fn words(error: &str) -> String {
    let error = error.split(" (after ").next().unwrap_or_default();
    let Some((broker, cause)) = error.split_once(": ") else { return error.to_owned() };
    // (`ssl://h:1/bootstrap` has other slashes before its end.)
    let broker = broker.rsplit_once('/').filter(|(name, _)| name.contains(':'));
    let Some((broker, _)) = broker else { return error.to_owned() };
    let reason = cause.strip_prefix("Connect to ").and_then(|rest| rest.split_once(" failed: "));
    match reason {
        Some((_, reason)) => format!("{broker}: {}", reason.to_lowercase()),
        None => format!("{broker}: {cause}"),
    }
}

/// Returns librdkafka's description of a code: `unknown topic or partition`.
pub(super) fn of_code(code: Code) -> String {
    // The code's own text has its Rust name, and the origin of the error.
    let text = code.to_string();
    let description = text.split_once(" (").and_then(|(_, rest)| rest.strip_suffix(')'));
    let description = description.unwrap_or(&text);
    let origins = ["Broker: ", "Local: "];
    let words = origins.iter().find_map(|origin| description.strip_prefix(origin));
    let mut words = words.unwrap_or(description).chars();
    words
        .next()
        .map_or_else(String::new, |first| format!("{}{}", first.to_lowercase(), words.as_str()))
}

/// Returns the words of an error: those of its code, if it has one.
pub(super) fn of_error(error: &KafkaError) -> String {
    error.rdkafka_error_code().map_or_else(|| error.to_string(), of_code)
}

#[cfg(test)]
mod tests {
    use super::{Code, KafkaError, find, of_code, of_error, words};

    #[test]
    fn code_is_described_without_its_name() {
        assert_eq!(of_code(Code::UnknownTopicOrPartition), "unknown topic or partition");
        assert_eq!(of_code(Code::MessageTimedOut), "message timed out");
        assert_eq!(
            of_error(&KafkaError::MetadataFetch(Code::AllBrokersDown)),
            "all broker connections are down"
        );
    }

    #[test]
    fn words_name_broker_and_cause_alone() {
        for (error, said) in [
            (
                "h:1/bootstrap: Connect to ipv4#10.0.0.1:1 failed: Connection refused (after 0ms in state \
                 CONNECT)",
                "h:1: connection refused",
            ),
            (
                "ssl://h:1/bootstrap: SSL handshake failed: no certificate (after 4ms in state SSL_HANDSHAKE)",
                "ssl://h:1: SSL handshake failed: no certificate",
            ),
            ("h:1/1: Disconnected (after 1ms in state UP)", "h:1: Disconnected"),
            ("no broker", "no broker"),
        ] {
            assert_eq!(words(error), said);
        }
    }

    #[test]
    fn every_form_of_a_disconnect_points_to_the_protocol() {
        for notice in [
            "Disconnected (after 1ms in state UP)",
            "Receive failed: Connection reset by peer (after 1ms in state UP)",
            "Send failed: Broken pipe (after 0ms in state UP)",
        ] {
            let error = format!("127.0.0.1:9092/bootstrap: {notice}");

            assert!(find(&error).contains("security.protocol"), "{error}");
        }
    }
}
