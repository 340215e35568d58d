//! What an operator can do, by librdkafka's words about a connection that failed.

/// Words, any of which points to a remedy; the first that fits is meant.
const REMEDIES: [(&[&str], &str); 5] = [
    (
        &["alert bad certificate", "alert certificate required"],
        "the broker wants a certificate of ours: see the properties ssl.certificate.location and \
         ssl.key.location",
    ),
    (
        &["certificate"],
        "the broker's authority has to be among the system's certificates, or in the file that \
         the property ssl.ca.location names",
    ),
    (&["SASL", "uthentication failed"], "check the properties sasl.*, and security.protocol"),
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
        "check the property security.protocol: whether the broker expects TLS, or a login, at \
         this port",
    ),
    (
        &["Connect to", "Failed to resolve", "in state CONNECT"],
        "check the sink's brokers, and the addresses by which they name themselves \
         (advertised.listeners)",
    ),
];

/// The remedy; empty where none is known.
pub(super) fn of(words: &str) -> &'static str {
    let fits = |(marks, _): &&(&[&str], &str)| marks.iter().any(|mark| words.contains(mark));
    REMEDIES.iter().find(fits).map(|(_, remedy)| *remedy).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::of;

    #[test]
    fn a_broker_that_disconnects_points_to_the_protocol_whichever_call_notices() {
        for notice in [
            "Disconnected (after 1ms in state UP)",
            "Receive failed: Connection reset by peer (after 1ms in state UP)",
            "Send failed: Broken pipe (after 0ms in state UP)",
        ] {
            let words = format!("127.0.0.1:9092/bootstrap: {notice}");

            assert!(of(&words).contains("security.protocol"), "{words}");
        }
    }
}
