//! Text that may hold a password, which no output shows.

use std::borrow::Cow;
use std::fmt;
use std::path::Path;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize, Serializer};

use crate::files;
use crate::properties::{HIDDEN, Properties};
use crate::rules::Rules;

/// A URI. `Display`, `Debug` and serialisation show `***` in place of a password;
/// [`expose`](Self::expose) gives the whole.
#[derive(Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(transparent)]
#[schemars(extend("writeOnly" = true))]
pub struct SecretUri(String);

/// Query options whose value is a secret, in either broker's or MongoDB's URIs.
const SECRET_OPTIONS: [&str; 4] =
    ["tlscertificatekeyfilepassword", "password", "proxypassword", "authmechanismproperties"];

impl SecretUri {
    /// The URI as it is, for the client that connects.
    pub fn expose(&self) -> &str {
        &self.0
    }

    /// Checks that `parse` accepts the URI.
    ///
    /// # Errors
    ///
    /// The parser's message about the URI without its secrets: parsers quote what they refuse.
    pub fn check<T, E: fmt::Display>(
        &self,
        parse: impl Fn(&str) -> Result<T, E>,
    ) -> Result<(), String> {
        if parse(self.expose()).is_ok() {
            return match hosts(&self.0) {
                Some(hosts) => check_hosts(hosts),
                None => Ok(()),
            };
        }
        match parse(&self.redacted()) {
            Err(error) => Err(error.to_string()),
            Ok(_) => Err("its password, or another secret in it, contains a character that must \
                          be escaped: write : / ? # [ ] @ % as %3A %2F %3F %23 %5B %5D %40 %25"
                .to_owned()),
        }
    }

    /// The URI without its secrets. It takes any text, since an invalid URI is reported too.
    pub fn redacted(&self) -> String {
        let letters = |text: &str| text.chars().all(|c| c.is_ascii_alphanumeric() || c == '+');
        let parts = self.0.split_once("://");
        let Some((scheme, rest)) =
            parts.filter(|(scheme, _)| !scheme.is_empty() && letters(scheme))
        else {
            // Not a URI: it may be a secret under the wrong key.
            return HIDDEN.to_owned();
        };
        // Up to the last @ of all: a password that was not escaped may hold one, or one of the
        // characters that end the hosts.
        let (user, rest) = match rest.rsplit_once('@') {
            Some((user, behind)) => match before_colon(user) {
                Some(name) => (Some(format!("{name}:{HIDDEN}@")), behind),
                None => (None, rest),
            },
            // What stands where a port belongs may be a password, and the host is missing.
            None => match before_invalid_port(rest) {
                Some(name) => return format!("{scheme}://{name}:{HIDDEN}"),
                None => (None, rest),
            },
        };
        if hosts(&format!("://{rest}")).is_some_and(|hosts| check_hosts(hosts).is_err()) {
            return format!("{scheme}://{}{HIDDEN}", user.unwrap_or_default());
        }
        let (rest, query) = match rest.split_once('?') {
            Some((rest, query)) => (rest, Some(query)),
            None => (rest, None),
        };
        let query = query.map(|query| {
            let options = query.split('&').map(|option| match option.split_once('=') {
                Some((name, _)) if SECRET_OPTIONS.contains(&name.to_lowercase().as_str()) => {
                    format!("{name}={HIDDEN}")
                }
                _ => option.to_owned(),
            });
            format!("?{}", options.collect::<Vec<_>>().join("&"))
        });
        format!("{scheme}://{}{rest}{}", user.unwrap_or_default(), query.unwrap_or_default())
    }
}

/// How a colon and an at sign are written in a login besides themselves, in lower case.
const COLONS: [&str; 4] = [":", "%3a", "\u{ff1a}", "\u{fe55}"];
const AT_SIGNS: [&str; 4] = ["@", "%40", "\u{ff20}", "\u{fe6b}"];

/// Where one of the spellings begins first.
fn find_spelling(text: &str, spellings: &[&str]) -> Option<usize> {
    // In ASCII only, so that the positions stay the same.
    let text = text.to_ascii_lowercase();
    spellings.iter().filter_map(|spelling| text.find(spelling)).min()
}

/// Returns what stands before the first colon, in any spelling.
fn before_colon(text: &str) -> Option<&str> {
    find_spelling(text, &COLONS).map(|at| &text[..at])
}

/// Whether a text may be a login, `user:password@`, in any spelling of the two signs.
pub fn may_be_login(text: &str) -> bool {
    find_spelling(text, &COLONS).is_some_and(|at| find_spelling(&text[at..], &AT_SIGNS).is_some())
}

/// A text as it is shown under any key: a URI without its secrets, and nothing of a login in another form.
pub fn shown_text(text: &str) -> Cow<'_, str> {
    if text.contains("://") && text.contains('@') {
        SecretUri::from(text).redacted().into()
    } else if may_be_login(text) {
        HIDDEN.into()
    } else {
        text.into()
    }
}

/// Words in the names of message headers that hold a secret, besides those of properties.
const SECRET_HEADER_WORDS: [&str; 6] =
    ["authorization", "cookie", "token", "api-key", "apikey", "credential"];

/// Whether a message header of this name holds a secret.
pub fn is_secret_header(name: &str) -> bool {
    let lower = name.to_lowercase();
    Properties::is_secret(name) || SECRET_HEADER_WORDS.iter().any(|word| lower.contains(word))
}

/// The shortest text that is taken for a token.
const MIN_TOKEN_CHARS: usize = 16;

/// Whether a part of a name has the form of a generated secret: a run of letters of both cases and digits in at least
/// two places. A name has a number in one place, such as `OrdersEventsV2Production`.
pub fn may_be_token(name: &str) -> bool {
    let runs = name.split(|c: char| !c.is_ascii_alphanumeric());
    let has = |run: &str, kind: fn(&char) -> bool| run.chars().any(|c| kind(&c));
    let numbers = |run: &str| {
        run.split(|c: char| !c.is_ascii_digit()).filter(|number| !number.is_empty()).count()
    };
    runs.into_iter().any(|run| {
        run.len() >= MIN_TOKEN_CHARS
            && has(run, char::is_ascii_lowercase)
            && has(run, char::is_ascii_uppercase)
            && numbers(run) >= 2
    })
}

/// A name that the operator chose, unless it may be a secret in the wrong place.
pub fn shown_name(name: &str) -> &str {
    if may_be_login(name) || may_be_token(name) { HIDDEN } else { name }
}

/// Checks that no host of a list, as `host:port` with commas, may be a secret in the wrong place: hosts appear in
/// errors, logs and reports.
///
/// # Errors
///
/// What is wrong, without the host.
pub fn check_hosts(hosts: &str) -> Result<(), String> {
    if hosts.contains('@') || may_be_login(hosts) || find_spelling(hosts, &AT_SIGNS).is_some() {
        return Err("has a login where a host belongs; write it before the host, or set username \
                    and password_file"
            .to_owned());
    }
    if may_be_token(hosts) {
        return Err("has a host in the form of a secret; if it is a host, write it in lower case"
            .to_owned());
    }
    Ok(())
}

/// Returns the hosts of a URI.
fn hosts(uri: &str) -> Option<&str> {
    let (_, rest) = uri.split_once("://")?;
    let rest = rest.split(['/', '?']).next()?;
    Some(rest.rsplit_once('@').map_or(rest, |(_, hosts)| hosts))
}

/// Returns what stands before the first colon, if one of the hosts has a port that is not a number.
fn before_invalid_port(rest: &str) -> Option<&str> {
    let hosts = rest.split(['/', '?']).next()?;
    let is_port = |text: &str| text.parse::<u16>().is_ok();
    let is_invalid = hosts.split(',').any(|host| {
        // The colons in brackets are an IPv6 address's.
        let (_, behind) = host.rsplit_once(']').unwrap_or(("", host));
        behind.split_once(':').is_some_and(|(_, port)| !is_port(port))
    });
    hosts.split(':').next().filter(|_| is_invalid)
}

impl From<&str> for SecretUri {
    fn from(uri: &str) -> Self {
        Self(uri.to_owned())
    }
}

impl fmt::Display for SecretUri {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.redacted())
    }
}

impl fmt::Debug for SecretUri {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.redacted())
    }
}

impl Serialize for SecretUri {
    fn serialize<S: Serializer>(&self, output: S) -> Result<S::Ok, S::Error> {
        output.serialize_str(&self.redacted())
    }
}

/// A text that is a secret as a whole, such as a token.
#[derive(Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(transparent)]
#[schemars(extend("writeOnly" = true))]
pub struct SecretText(String);

impl SecretText {
    /// The text as it is.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl From<&str> for SecretText {
    fn from(text: &str) -> Self {
        Self(text.to_owned())
    }
}

impl fmt::Debug for SecretText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(HIDDEN)
    }
}

impl Serialize for SecretText {
    fn serialize<S: Serializer>(&self, output: S) -> Result<S::Ok, S::Error> {
        output.serialize_str(HIDDEN)
    }
}

/// The name of a file for errors: hidden unless it begins as a path does, since it may be a secret under the
/// wrong key. (A secret in Base64 may have a `/` too.)
pub fn shown_path(file: &Path) -> String {
    let is_path = ["/", "./", "../"].iter().any(|start| file.to_string_lossy().starts_with(start));
    if is_path {
        file.display().to_string()
    } else {
        format!("{HIDDEN} (shown if it begins with / or ./)")
    }
}

/// Reads a secret from a file, without the line ends that editors and tools put behind it.
///
/// # Errors
///
/// Why the file cannot be read, with its name as [`shown_path`] shows it.
pub fn read_file(file: &Path) -> Result<SecretText, String> {
    match files::read_text(file) {
        Ok(text) => Ok(SecretText(text.trim_end_matches(['\n', '\r']).to_owned())),
        Err(error) => Err(unreadable(file, &error)),
    }
}

/// The error for a file that cannot be read.
pub(crate) fn unreadable(file: &Path, error: &std::io::Error) -> String {
    let cause = files::io_text(error);
    format!(
        "cannot read the file {:?}: {cause}; check the path and its permissions",
        shown_path(file)
    )
}

/// Reads the password of a login, and checks that its file is readable and comes with a user. `rules` takes
/// the keys `username` and `password_file` to be in the current section.
pub fn read_password(
    username: Option<&str>,
    password_file: Option<&Path>,
    rules: &mut Rules,
) -> Option<SecretText> {
    let file = password_file?;
    rules.require(
        username.is_some(),
        "username",
        "is not set, but password_file is; set it, or remove password_file",
    );
    let read = files::read_regular(file).map_err(|error| unreadable(file, &error));
    read.and_then(|_| read_file(file)).map_err(|detail| rules.wrong("password_file", detail)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_shows_nowhere() {
        for (uri, shown) in [
            ("mongodb://u:p@h1:1,h2:2/db?w=1", "mongodb://u:***@h1:1,h2:2/db?w=1"),
            ("mongodb://u:p@ss@h/db", "mongodb://u:***@h/db"),
            ("amqp://h/%2f", "amqp://h/%2f"),
            ("amqps://u@h", "amqps://u@h"),
            ("mongodb://h/?password=x&a=b", "mongodb://h/?password=***&a=b"),
            ("mongodb://u:p?w=1@h/?w=1", "mongodb://u:***@h/?w=1"),
            ("u:p@h", "***"),
            ("p", "***"),
            ("amqp://u:p?p/p#p://p@h:1/v", "amqp://u:***@h:1/v"),
            ("u:p://p@h", "***"),
            ("mongodb://u@h/?password=p@p", "mongodb://u@h/?password=***"),
            ("mongodb://h/?proxyPassword=p", "mongodb://h/?proxyPassword=***"),
            ("amqp://u:p", "amqp://u:***"),
            ("mongodb://u:p/db?w=1", "mongodb://u:***"),
            ("mongodb://[::1]:27017,h:1/db", "mongodb://[::1]:27017,h:1/db"),
            ("mongodb://u%3Ap@h/db", "mongodb://u:***@h/db"),
            ("amqp://u%3ap@h", "amqp://u:***@h"),
            ("amqp://u\u{ff1a}p@h", "amqp://u:***@h"),
            ("mongodb://u%3Ap%40h/db", "mongodb://***"),
            ("amqp://u\u{ff1a}p\u{ff20}h", "amqp://***"),
            ("amqp://u:q@Xk29vLqTz7RmB4wYd8Nc/v", "amqp://u:***@***"),
            ("mongodb://a.Xk29vLqTz7RmB4wYd8Nc.b:1,h/db", "mongodb://***"),
        ] {
            let uri = SecretUri::from(uri);

            assert_eq!(uri.to_string(), shown);
            assert_eq!(format!("{uri:?}"), format!("{shown:?}"));
        }
    }

    #[test]
    fn login_is_shown_under_no_key() {
        for (text, shown) in [
            ("u:p@h:9092", "***"),
            ("h:1,u%3Ap%40h:1", "***"),
            ("u\u{ff1a}p\u{ff20}h", "***"),
            ("mongodb%3A//u:p@h", "***"),
            ("mongodb\u{ff1a}//u:p@h", "***"),
            ("mongodb://u:p@h", "mongodb://u:***@h"),
            ("orders@shop", "orders@shop"),
            ("h1:9092,[::1]:9092", "h1:9092,[::1]:9092"),
        ] {
            assert_eq!(shown_text(text), shown, "{text}");
        }
    }

    #[test]
    fn host_that_may_be_a_secret_is_refused_without_it() {
        for hosts in [
            "h",
            "rabbit-0.rabbit.shop.svc:5672",
            "[2001:db8::1]:1,10.0.0.1",
            "b-1234a5b6-78cd-901e-2fa3-3a45b6c178d9.mq.eu-west-1.amazonaws.com",
            "k8s-shop-rabbit-0123456789-abcdef0123456789.elb.us-east-1.amazonaws.com:5671",
            "%2Ftmp%2Fmongodb-27017.sock",
            "OrdersEventsV2Production",
            "Broker01OrdersProduction.shop:9092",
        ] {
            assert_eq!(check_hosts(hosts), Ok(()), "{hosts}");
        }
        for hosts in [
            "u:p4ss@h",
            "h,u%3Ap4ss%40h",
            "p4ss@h",
            "Xp4ss29vLqTz7RmB4wYd8Nc:1",
            "AbCdp4ssEfGhIjKlMn9:1",
            "u\u{ff1a}p4ss\u{ff20}h",
        ] {
            let refused = check_hosts(hosts).unwrap_err();
            assert!(!refused.contains("p4ss"), "{hosts}: {refused}");
        }
        let uri = SecretUri::from("amqp://Xp4ss29vLqTz7RmB4wYd8Nc");
        assert!(uri.check(|_| Ok::<_, String>(())).is_err());
        assert_eq!(
            SecretUri::from("amqp://u:Xp4ss29vLqTz7RmB4wYd8Nc@h").check(|_| Ok::<_, String>(())),
            Ok(())
        );
    }

    #[test]
    fn header_holds_a_secret_by_its_name() {
        for name in [
            "Authorization",
            "proxy-authorization",
            "Cookie",
            "X-Api-Key",
            "x-auth-token",
            "client_secret",
        ] {
            assert!(is_secret_header(name), "{name}");
        }
        for name in ["x-tenant", "content-type", "key_file"] {
            assert!(!is_secret_header(name), "{name}");
        }
    }
}
