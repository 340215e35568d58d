//! The configuration of the connection to MongoDB.

use std::collections::BTreeMap;
use std::path::PathBuf;

use postrider_settings::secret::{SecretUri, read_password};
use postrider_settings::{Rules, TlsConfig, quoted};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::connect::MongoEndpoint;
use crate::uri;

/// The limit of MongoDB for a database's name, in bytes.
const MAX_DATABASE_BYTES: usize = 63;

/// The characters that a database's name cannot have. (A control character is refused in any text.)
const ILLEGAL_CHARACTERS: [char; 6] = ['/', '\\', '.', ' ', '"', '$'];

/// MongoDB's own databases, in any case: it treats names that differ in case alone as the same.
const RESERVED_DATABASES: [&str; 3] = ["admin", "config", "local"];

/// The section `[mongo]`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct MongoConfig {
    /// The URI of MongoDB, as for any driver. Required, unless `mongo.source` selects a named one. Postrider connects to the members of a replica set by the names in `rs.conf()`, which must resolve here; with `directConnection=true` it uses only the host of the URI. Options that have no effect here, such as `compressors` and `socketTimeoutMS`, are ignored with a warning.
    #[schemars(example = &"mongodb://user:password@host1:27017,host2:27017/app?replicaSet=rs0")]
    pub uri: Option<SecretUri>,
    /// The name of the URI that is used if `mongo.uri` is not set.
    pub source: String,
    /// URIs of MongoDB by name, one table each.
    pub sources: BTreeMap<String, MongoSource>,
    /// The database of the outbox, events, snapshots and prepare keys, unless their sections name another one. By default: the database in the URI. Not `admin`, `config` or `local`.
    #[schemars(example = &"app")]
    pub database: Option<String>,
    /// The user, if the URI names none.
    #[schemars(example = &"postrider")]
    pub username: Option<String>,
    /// The file with the user's password, read at the start.
    #[schemars(example = &"/run/secrets/mongodb-password")]
    pub password_file: Option<PathBuf>,
    /// TLS to MongoDB. The table requires TLS and replaces the TLS options of the URI. Without `ca_file` Postrider trusts the public authorities, as compiled in. The driver reads certificate and key from one file: set `key_file` to the same file as `cert_file`.
    pub tls: Option<TlsConfig>,
}

/// A table `[mongo.sources.NAME]`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MongoSource {
    /// A URI of MongoDB; `mongo.source` selects it by its name.
    #[schemars(example = &"mongodb://host/app")]
    pub uri: SecretUri,
}

impl Default for MongoConfig {
    fn default() -> Self {
        Self {
            uri: None,
            source: "mongo".into(),
            sources: BTreeMap::new(),
            database: None,
            username: None,
            password_file: None,
            tls: None,
        }
    }
}

/// The URI in force, and the key that sets it.
#[derive(Clone, Debug)]
pub struct ChosenUri {
    /// The full key.
    pub key: String,
    /// The URI.
    pub uri: SecretUri,
}

impl ChosenUri {
    /// The database that the URI names: the text between the hosts and the options.
    pub fn database(&self) -> Option<&str> {
        let rest = self.uri.expose().split_once("://")?.1;
        let rest = rest.split('?').next()?;
        // Behind the last @: a password may hold a slash that was not escaped.
        let hosts = rest.rsplit('@').next()?;
        let (_, name) = hosts.split_once('/')?;
        (!name.is_empty()).then_some(name)
    }

    /// What an operator should know of the URI: the options that have no effect.
    pub fn warning(&self) -> Option<String> {
        let warning = uri::read(self.uri.expose()).ok()?.warning()?;
        Some(format!("{}: {warning}", self.key))
    }
}

impl MongoConfig {
    /// Selects the URI: `mongo.uri`, else the source's, else the connection string of that name.
    pub fn choose_uri(
        &self,
        connection_strings: &BTreeMap<String, SecretUri>,
        rules: &mut Rules,
    ) -> Option<ChosenUri> {
        let source = quoted(&self.source);
        let of_source = || {
            let uri = self.sources.get(&self.source)?.uri.clone();
            Some(ChosenUri { key: format!("mongo.sources.{source}.uri"), uri })
        };
        let of_string = || {
            let uri = connection_strings.get(&self.source)?.clone();
            Some(ChosenUri { key: format!("connection_strings.{source}"), uri })
        };
        let own = self.uri.clone().map(|uri| ChosenUri { key: "mongo.uri".to_owned(), uri });
        let Some(chosen) = own.or_else(of_source).or_else(of_string) else {
            let detail =
                "is not set; set it, for example to mongodb://host:27017/database?replicaSet=rs0";
            rules.wrong("mongo.uri", detail);
            return None;
        };
        // With the login: some mechanisms of the URI need a user.
        if let Err(detail) = chosen.uri.check(|uri| uri::read(&self.with_login(uri))) {
            rules.wrong(&chosen.key, format!("invalid MongoDB URI: {detail}"));
        }
        Some(chosen)
    }

    /// The URI with the user of this section, where it names none itself, and some password.
    fn with_login(&self, uri: &str) -> String {
        let mut endpoint = MongoEndpoint::from(uri);
        if !uri.contains('@') {
            endpoint.username.clone_from(&self.username);
            endpoint.password = self.password_file.as_ref().map(|_| "x".into());
        }
        endpoint.uri_with_login().into_owned()
    }

    /// The server with the login and the TLS files of this section.
    pub fn endpoint(&self, chosen: &ChosenUri, rules: &mut Rules) -> MongoEndpoint {
        let mut endpoint = MongoEndpoint::from(&chosen.uri);
        rules.within("mongo", |rules| {
            if let Some(username) = &self.username {
                let read = uri::read(chosen.uri.expose());
                let credential = read.ok().and_then(|uri| uri.parsed.credential);
                if credential.is_some_and(|it| it.username.is_some()) {
                    let detail = format!("{} also sets a user; remove one of the two", chosen.key);
                    rules.wrong("username", detail);
                }
                endpoint.username = Some(username.clone());
            }
            endpoint.password =
                read_password(self.username.as_deref(), self.password_file.as_deref(), rules);
            if let Some(tls) = &self.tls {
                rules.within("tls", |rules| {
                    tls.validate(rules);
                    rules.require(
                        tls.cert_file.is_none()
                            || tls.key_file.is_none()
                            || tls.cert_file == tls.key_file,
                        "key_file",
                        "must be the same file as mongo.tls.cert_file, since MongoDB's driver \
                         reads both from one file",
                    );
                });
                endpoint.tls = Some(tls.clone());
            }
        });
        endpoint
    }
}

/// Checks the name of a database by MongoDB's documented limits ("Naming Restrictions"), so that the
/// configuration reports what the first write would.
///
/// # Errors
///
/// What is wrong, and what is right.
pub fn check_database_name(name: &str) -> Result<(), String> {
    if name.is_empty() || name.len() > MAX_DATABASE_BYTES {
        return Err(format!("must have between 1 and {MAX_DATABASE_BYTES} bytes; shorten it"));
    }
    if let Some(found) = name.chars().find(|character| ILLEGAL_CHARACTERS.contains(character)) {
        return Err(format!("must not contain the character {found:?}; remove it"));
    }
    if RESERVED_DATABASES.iter().any(|reserved| name.eq_ignore_ascii_case(reserved)) {
        return Err("is a system database of MongoDB, without transactions; use another database"
            .to_owned());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn database_name_is_checked_by_mongodbs_rules() {
        for name in ["app", "é", "a%b", "System", &"a".repeat(63)] {
            assert_eq!(check_database_name(name), Ok(()), "{name}");
        }
        for name in
            ["", "a.b", "a b", "a/b", "a\\b", "a\"b", "$external", "admin", "Local", "CONFIG"]
        {
            assert!(check_database_name(name).is_err(), "{name}");
        }
        assert!(check_database_name(&"é".repeat(32)).is_err());
    }
}
