//! Describes an error of the MongoDB driver in one sentence; the driver's own text is a `Debug`
//! dump.

use std::io;

use mongodb::error::{Error as DriverError, ErrorKind, WriteFailure};
use tracing::debug;

/// Returns one sentence without dump, labels and hex response. Quotes no value of a document.
pub fn driver_text(error: &DriverError) -> String {
    match error.kind.as_ref() {
        ErrorKind::ServerSelection { message, .. } => {
            debug!(raw = message, "failed to select a MongoDB server");
            selection(message)
        }
        ErrorKind::InvalidArgument { message, .. } => message.clone(),
        ErrorKind::DnsResolve { message, .. } => of_dns(message),
        ErrorKind::Authentication { message, .. } => format!(
            "{}: the user or its password is wrong, or the user is in another database (authSource)",
            message.trim_end_matches('.')
        ),
        ErrorKind::Io(error) => of_io(error),
        ErrorKind::Write(WriteFailure::WriteError(error)) => {
            format!("MongoDB rejected the write (code {})", error.code)
        }
        ErrorKind::Write(WriteFailure::WriteConcernError(error)) => {
            format!("{} ({}, code {})", error.message, error.code_name, error.code)
        }
        // Dumps that contain documents.
        ErrorKind::InsertMany(_) | ErrorKind::BulkWrite(_) | ErrorKind::Write(_) => {
            "MongoDB rejected the write".to_owned()
        }
        kind => kind.to_string(),
    }
}

/// Returns the host name of a failed `mongodb+srv` lookup; the rest is a dump.
fn of_dns(message: &str) -> String {
    let name = message.split_once("Name(\"").and_then(|(_, rest)| rest.split('"').next());
    match name {
        Some(name) => {
            debug!(raw = message, "failed to find the DNS records of a MongoDB host");
            format!("cannot find a DNS record for {}", name.trim_end_matches('.'))
        }
        None => format!("cannot look up a MongoDB host: {message}"),
    }
}

fn of_io(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => "connection refused".to_owned(),
        _ => reason(&format!("I/O error: {error}")),
    }
}

/// Parses the text, since the driver does not expose the topology.
fn selection(message: &str) -> String {
    let servers: Vec<(&str, Result<&str, String>)> =
        message.split("{ Address: ").skip(1).filter_map(server).collect();
    let each = |servers: &[(&str, Result<&str, String>)]| {
        let each = servers.iter().map(|(address, state)| match state {
            Ok(kind) => format!("{address} is {kind}"),
            Err(reason) => format!("{address}: {reason}"),
        });
        each.collect::<Vec<_>>().join("; ")
    };
    match (servers.as_slice(), set_name(message)) {
        ([], Some(set)) => {
            format!("cannot connect to MongoDB: no host of the URI is in the replica set {set}")
        }
        ([], None) => "cannot connect to MongoDB: no server was found".to_owned(),
        (all, _) if all.iter().all(|(_, state)| state.is_err()) => {
            format!("cannot connect to MongoDB at {}", each(all))
        }
        (some, _) => format!("cannot reach a primary of MongoDB: {}", each(some)),
    }
}

/// Returns the name of the replica set, and the address of the first server that does not resolve and
/// that is not one of the `known`: only the replica set calls a member by it.
pub(crate) fn unresolved_member<'a>(
    message: &'a str,
    known: &[String],
) -> Option<(&'a str, &'a str)> {
    const UNRESOLVED: &str = "failed to lookup address information";
    let set = set_name(message)?;
    let mut servers = message.split("{ Address: ").skip(1).filter_map(server);
    let (address, _) = servers.find(|(address, state)| {
        let is_known = known.iter().any(|known| known == address);
        !is_known && state.as_ref().is_err_and(|error| error.contains(UNRESOLVED))
    })?;
    Some((set, address))
}

/// Returns whether no server is in the replica set of the URI: the driver has dropped them, or refuses
/// the only one.
pub(crate) fn is_of_another_set(message: &str) -> bool {
    !message.contains("{ Address: ") || message.contains("does not match actual name")
}

fn set_name(message: &str) -> Option<&str> {
    message.split_once("Set Name: ").and_then(|(_, rest)| rest.split([',', ' ']).next())
}

/// Returns address, and type or error, of one server of the topology.
fn server(text: &str) -> Option<(&str, Result<&str, String>)> {
    let (address, rest) = text.split_once(", Type: ")?;
    let kind = rest.split([',', ' ']).next().unwrap_or_default();
    let error = rest.split_once(", Error: ").map(|(_, error)| {
        let end = error.find(", labels: ").or_else(|| error.find(" }")).unwrap_or(error.len());
        reason(&error[..end])
    });
    Some((
        address,
        match error {
            Some(error) => Err(error),
            None if kind == "Unknown" => Err("no response".to_owned()),
            None => Ok(kind),
        },
    ))
}

/// Removes the names of the driver's kinds, and the number of an errno.
fn reason(text: &str) -> String {
    let text = text.trim_start_matches("Kind: ").trim_start_matches("I/O error: ");
    let text = match text.split_once(" (os error ") {
        Some((words, rest)) => {
            format!("{words}{}", rest.split_once(')').map_or("", |(_, rest)| rest))
        }
        None => text.to_owned(),
    };
    let mut letters = text.chars();
    match letters.next() {
        // Names in capitals, such as SCRAM, stay.
        Some(first) if letters.clone().next().is_some_and(char::is_lowercase) => {
            first.to_lowercase().chain(letters).collect()
        }
        _ => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DOWN: &str = "Kind: I/O error: Connection refused (os error 111), labels: \
                        {\"SystemOverloadedError\", \"RetryableError\"}, source: None, backtrace: \
                        None, server response: None";

    fn topology(servers: &str) -> String {
        format!(
            "Server selection timeout: No available servers. Topology: {{ Type: \
             ReplicaSetNoPrimary, Set Name: rs0, Servers: [ {servers} ] }}"
        )
    }

    #[test]
    fn failed_selection_names_each_server_and_reason() {
        let down =
            |address: &str| format!("{{ Address: {address}, Type: Unknown, Error: {DOWN} }}");
        let secondary =
            "{ Address: c:3, Type: RsSecondary, Average RTT: 1ms, Replica Set Name: rs0 }";

        for (servers, said) in [
            (down("a:1"), "cannot connect to MongoDB at a:1: connection refused"),
            (
                [down("a:1"), down("b:2")].join(", "),
                "cannot connect to MongoDB at a:1: connection refused; b:2: connection refused",
            ),
            (
                "{ Address: a:1, Type: Unknown }".to_owned(),
                "cannot connect to MongoDB at a:1: no response",
            ),
            (
                [down("a:1"), secondary.to_owned()].join(", "),
                "cannot reach a primary of MongoDB: a:1: connection refused; c:3 is RsSecondary",
            ),
            (
                String::new(),
                "cannot connect to MongoDB: no host of the URI is in the replica set rs0",
            ),
        ] {
            assert_eq!(selection(&topology(&servers)), said);
        }
        let without_servers = "Server selection timeout: No available servers. Topology: { Type: \
                               ReplicaSetNoPrimary, Set Name: rs9 }";
        let said = "cannot connect to MongoDB: no host of the URI is in the replica set rs9";
        assert_eq!(selection(without_servers), said);
    }

    #[test]
    fn member_that_only_the_replica_set_knows_is_found() {
        const UNRESOLVED: &str = "Kind: I/O error: failed to lookup address information: Name or \
                                  service not known, labels: {}, source: None";
        let unknown =
            format!("{{ Address: mongo-rs0-1:27317, Type: Unknown, Error: {UNRESOLVED} }}");
        let down = format!("{{ Address: b:2, Type: Unknown, Error: {DOWN} }}");
        let known = ["127.0.0.1:27317".to_owned()];

        let message = topology(&[unknown.clone(), down.clone()].join(", "));
        assert_eq!(unresolved_member(&message, &known), Some(("rs0", "mongo-rs0-1:27317")));
        let of_the_uri = ["mongo-rs0-1:27317".to_owned()];
        assert_eq!(unresolved_member(&topology(&unknown), &of_the_uri), None);
        assert_eq!(unresolved_member(&topology(&down), &known), None);
        let refused = "{ Address: a:1, Type: Unknown, Error: Kind: An invalid argument was provided: \
                       Connection string replicaSet name \"rs9\" does not match actual name <none> }";
        assert!(is_of_another_set(&topology("")) && is_of_another_set(&topology(refused)));
        assert!(!is_of_another_set(&topology(&down)));
    }

    #[test]
    fn unknown_host_is_named_without_the_query() {
        let dump = "no records found for Query { name: Name(\"_mongodb._tcp.db.invalid.\"), \
                    query_type: SRV, query_class: IN }";

        assert_eq!(of_dns(dump), "cannot find a DNS record for _mongodb._tcp.db.invalid");
        assert!(of_dns("request timed out").ends_with("MongoDB host: request timed out"));
    }

    #[tokio::test]
    async fn words_contain_no_dump_of_the_driver() {
        for uri in ["localhost:27017", "mongodb://h:x/db", "mongodb://u:p%@h/db"] {
            let error = mongodb::options::ClientOptions::parse(uri).await.unwrap_err();

            let said = driver_text(&error);

            for dump in ["Kind:", "labels", "server response", "None", "{"] {
                assert!(!said.contains(dump), "{dump}: {said}");
            }
        }
    }
}
