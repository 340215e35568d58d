//! The URI of MongoDB: one parser for the configuration and for connections.
//!
//! A URI that other drivers accept is accepted, with a warning about the options that have no effect
//! here, or refused with the remedy.

use futures_util::FutureExt;
use mongodb::options::{ClientOptions, ConnectionString, HostInfo, ServerAddress};

use crate::driver_text;

/// A URI that the driver accepts.
#[derive(Clone, Debug)]
pub struct MongoUri {
    /// Its text, without the options that have no effect.
    pub text: String,
    /// What the driver reads from it.
    pub parsed: ConnectionString,
    /// The options that have no effect, and why.
    pub ignored: Vec<IgnoredOption>,
}

/// An option of a URI that has no effect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IgnoredOption {
    /// Its name, as written.
    pub name: String,
    /// Why: a clause.
    pub reason: &'static str,
}

const NO_COMPRESSION: &str = "connections are not compressed";
const OWN_TIMEOUTS: &str = "each operation has a time limit of its own";
const OWN_CONCERNS: &str = "Postrider sets the read and write concern of each operation";
const NO_REVOCATION: &str = "the revocation of certificates is not checked";
const STANDARD_UUIDS: &str = "Postrider writes standard UUIDs, and reads every representation";
const OWN_POOL: &str = "Postrider manages its connections itself";

/// Options of other drivers, or of earlier versions, that change nothing here.
const IGNORED: [(&str, &str); 21] = [
    ("compressors", NO_COMPRESSION),
    ("zlibcompressionlevel", NO_COMPRESSION),
    ("sockettimeoutms", OWN_TIMEOUTS),
    ("sockettimeout", OWN_TIMEOUTS),
    ("waitqueuetimeoutms", OWN_TIMEOUTS),
    ("waitqueuemultiple", OWN_POOL),
    ("maxlifetimems", OWN_POOL),
    ("maxconnectionlifetimems", OWN_POOL),
    ("poolsize", OWN_POOL),
    ("autoreconnect", OWN_POOL),
    ("keepalive", OWN_POOL),
    ("usenewurlparser", OWN_POOL),
    ("useunifiedtopology", OWN_POOL),
    ("wtimeout", OWN_CONCERNS),
    ("j", OWN_CONCERNS),
    ("safe", OWN_CONCERNS),
    ("fsync", OWN_CONCERNS),
    ("slaveok", OWN_CONCERNS),
    ("tlsdisableocspendpointcheck", NO_REVOCATION),
    ("tlsdisablecertificaterevocationcheck", NO_REVOCATION),
    ("uuidrepresentation", STANDARD_UUIDS),
];

/// Options that the driver cannot do, and that change where or how it connects.
const REFUSED: [(&str, &str); 9] = [
    ("timeoutms", "Postrider sets a time limit for each operation; remove it"),
    ("tlsallowinvalidhostnames", "use a certificate that names the host, and remove it"),
    ("sslinvalidhostnameallowed", "use a certificate that names the host, and remove it"),
    ("tlscertificatekeyfilepassword", "decrypt the key file, and remove it"),
    ("proxyhost", "Postrider connects to MongoDB without a proxy; remove it"),
    ("proxyport", "Postrider connects to MongoDB without a proxy; remove it"),
    ("proxyusername", "Postrider connects to MongoDB without a proxy; remove it"),
    ("proxypassword", "Postrider connects to MongoDB without a proxy; remove it"),
    ("connect", "write directConnection=true to use only this host, else remove it"),
];

/// Reads a URI.
///
/// # Errors
///
/// What is wrong and what to do, in one sentence. It may quote the URI.
pub fn read(uri: &str) -> Result<MongoUri, String> {
    check_escapes(uri)?;
    let (text, ignored) = match uri.split_once('?') {
        Some((hosts, options)) => {
            let (options, ignored) = read_options(options)?;
            let mark = if options.is_empty() { "" } else { "?" };
            (format!("{hosts}{mark}{options}"), ignored)
        }
        None => (uri.to_owned(), Vec::new()),
    };
    let wrong = |error: mongodb::error::Error| {
        format!("{}; write it as mongodb://host:27017/database", driver_text(&error))
    };
    let parsed = ConnectionString::parse(&text).map_err(wrong)?;
    // The names of `mongodb+srv` are looked up when it connects.
    if let HostInfo::HostIdentifiers(_) = &parsed.host_info
        && let Some(options) = ClientOptions::parse(&text).into_future().now_or_never()
    {
        options.map_err(wrong)?;
    }
    Ok(MongoUri { text, parsed, ignored })
}

impl MongoUri {
    /// Returns the hosts that it names; none of a `mongodb+srv` URI.
    pub fn hosts(&self) -> &[ServerAddress] {
        match &self.parsed.host_info {
            HostInfo::HostIdentifiers(hosts) => hosts,
            _ => &[],
        }
    }

    /// Describes the options that have no effect; `None` if all have.
    pub fn warning(&self) -> Option<String> {
        let ignored =
            self.ignored.iter().map(|IgnoredOption { name, reason }| format!("{name}: {reason}"));
        let ignored = ignored.collect::<Vec<_>>().join("; ");
        (!ignored.is_empty()).then(|| format!("some options have no effect ({ignored})"))
    }
}

/// Refuses input on which the driver panics: a `%` in user or password before a character that is not
/// ASCII.
fn check_escapes(uri: &str) -> Result<(), String> {
    let is_escape = |behind: &str| {
        let digits = behind.as_bytes().get(..2);
        digits.is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit))
    };
    if uri.split('%').skip(1).all(is_escape) {
        return Ok(());
    }
    Err("it contains a % that starts no escape sequence; write %25".to_owned())
}

/// Returns the options that the driver reads, and those that have no effect.
fn read_options(options: &str) -> Result<(String, Vec<IgnoredOption>), String> {
    let (mut kept, mut ignored) = (Vec::new(), Vec::new());
    let (mut tls, mut other_tls): (Option<(&str, &str)>, Option<&str>) = (None, None);
    for option in options.split('&') {
        let (name, value) = option.split_once('=').unwrap_or((option, ""));
        let lower = name.to_lowercase();
        if let Some((_, reason)) = IGNORED.iter().find(|(known, _)| *known == lower) {
            ignored.push(IgnoredOption { name: name.to_owned(), reason });
            continue;
        }
        let refused = REFUSED.iter().find(|(known, _)| *known == lower).map(|(_, remedy)| *remedy);
        let refused = refused.or_else(|| {
            let remedy = "name the members of the replica set, and remove it";
            (lower == "loadbalanced" && value == "true").then_some(remedy)
        });
        if let Some(remedy) = refused {
            return Err(format!("the option {name} is not supported; {remedy}"));
        }
        match lower.as_str() {
            "tls" | "ssl" => match tls {
                Some((first, before)) if before != value => {
                    return Err(format!(
                        "{first}={before} and {name}={value} contradict each other; remove one of \
                         the two"
                    ));
                }
                _ => tls = Some((name, value)),
            },
            lower if lower.starts_with("tls") => other_tls = Some(name),
            _ => {}
        }
        kept.push(option);
    }
    if let (Some((name, "false")), Some(other)) = (tls, other_tls) {
        return Err(format!("{other} has no meaning with {name}=false; remove one of the two"));
    }
    Ok((kept.join("&"), ignored))
}

#[cfg(test)]
mod tests {
    use super::*;

    const URI: &str = "mongodb://h1:1,h2/shop?replicaSet=rs0";

    #[test]
    fn options_of_other_drivers_are_ignored_with_one_warning() {
        let uri = read(&format!("{URI}&compressors=zlib,zstd&w=1&socketTimeoutMS=30000")).unwrap();

        assert_eq!(uri.text, format!("{URI}&w=1"));
        assert_eq!(uri.parsed.replica_set.as_deref(), Some("rs0"));
        let warning = "some options have no effect (compressors: connections are not compressed; \
                       socketTimeoutMS: each operation has a time limit of its own)";
        assert_eq!(uri.warning().as_deref(), Some(warning));
        assert_eq!(read("mongodb://h/?compressors=zlib").unwrap().text, "mongodb://h/");
        assert_eq!(read(URI).unwrap().warning(), None);
        for (ignored, _) in IGNORED {
            assert_eq!(read(&format!("{URI}&{ignored}=x")).unwrap().text, URI, "{ignored}");
        }
    }

    #[test]
    fn options_that_cannot_work_are_refused_with_the_remedy() {
        for (option, said) in [
            (
                "timeoutMS=5000",
                "the option timeoutMS is not supported; Postrider sets a time limit",
            ),
            ("loadBalanced=true", "the option loadBalanced is not supported; name the members"),
            ("ssl=true&tls=false", "ssl=true and tls=false contradict each other"),
            ("tls=false&tlsCAFile=x", "tlsCAFile has no meaning with tls=false"),
            ("tlsCAFile=x&ssl=false", "tlsCAFile has no meaning with ssl=false"),
            ("directConnection=true", "cannot specify multiple seeds with directConnection=true"),
            ("maxPoolSize=0", "cannot specify maxPoolSize=0"),
            ("frobnicate=1", "frobnicate is an invalid option"),
        ] {
            let error = read(&format!("{URI}&{option}")).unwrap_err();

            assert!(error.starts_with(said), "{option}: {error}");
            assert!(error.contains("; ") && !error.contains(['{', '}']), "{option}: {error}");
        }
        for harmless in ["loadBalanced=false", "tls=true&ssl=true", "tls=true&tlsInsecure=true"] {
            read(&format!("{URI}&{harmless}")).unwrap();
        }
        for (option, _) in REFUSED {
            read(&format!("{URI}&{option}=x")).unwrap_err();
        }
    }
}
