//! Text that may hold a password, which no output shows.

use std::fmt;
use std::path::Path;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize, Serializer};

use crate::files;
use crate::properties::HIDDEN;
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
            return Ok(());
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
            Some((user, rest)) if user.contains(':') => {
                (user.split_once(':').map(|(name, _)| format!("{name}:{HIDDEN}@")), rest)
            }
            Some(_) => (None, rest),
            // What stands where a port belongs may be a password, and the host is missing.
            None => match before_invalid_port(rest) {
                Some(name) => return format!("{scheme}://{name}:{HIDDEN}"),
                None => (None, rest),
            },
        };
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
    use super::SecretUri;

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
        ] {
            let uri = SecretUri::from(uri);

            assert_eq!(uri.to_string(), shown);
            assert_eq!(format!("{uri:?}"), format!("{shown:?}"));
        }
    }
}
