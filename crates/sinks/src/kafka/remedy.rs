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
        // Whoever asks on without a login is shown the door once he is in.
        &["SSL", "APIVERSION_QUERY", "AUTH_HANDSHAKE", "AUTH_REQ", "/bootstrap: Disconnected"],
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
