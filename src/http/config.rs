//! The configuration of the HTTP API.

use std::collections::HashSet;
use std::path::PathBuf;
use std::time::Duration;

use postrider_settings::secret::{SecretText, read_file};
use postrider_settings::units::{HumanDuration, HumanSize};
use postrider_settings::{Glob, Rules, did_you_mean};
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::http::auth::{Scope, Tokens};
use crate::http::tls::TlsFiles;
use crate::http::token_limits::Limits;
use crate::ops::config::listen_host;
use crate::ops::origin::is_loopback;

/// The fewest characters of a token beyond loopback, where it can be guessed from other hosts.
const MIN_REMOTE_TOKEN: usize = 16;

/// The section `[api]`: the HTTP API (docs/http.md).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ApiConfig {
    /// Whether this process serves the API.
    pub enabled: bool,
    /// The address. With port 0 the system chooses a free port; the log names the address. An address beyond loopback requires tokens of at least 16 characters, with TLS too.
    pub listen: String,
    /// The tokens of the clients: texts, which have every scope, or tables such as `{ name = "shop", token_file = "/run/secrets/shop", scopes = ["append", "read"] }`; scopes: `append`, `read`, `admin`, `consume`. `aggregates`, `types`, `destinations`, `tenants` and `subscriptions` limit what a token may reach (docs/http.md#limited-tokens). Without tokens every program on this host can use the API, by requests to a loopback name. `POSTRIDER__API__TOKENS_FILE` names a file with such a list.
    pub tokens: Vec<Token>,
    /// The largest request body.
    #[serde(with = "HumanSize")]
    #[schemars(extend("x-at-least" = "1KiB", "x-at-most" = "64MiB"))]
    pub max_body: usize,
    /// The most connections at a time. A further one takes the place of the oldest one without a complete request; if there is none, it waits. Too few file descriptors lower the limit.
    #[schemars(range(min = 1, max = 100_000))]
    pub max_connections: usize,
    /// The most requests at a time. Further ones are answered with 503 and `Retry-After`.
    #[schemars(range(min = 1, max = 100_000))]
    pub max_concurrent: usize,
    /// How long a request may take until its answer begins. Its header may take at most 10 s of that.
    #[serde(with = "HumanDuration")]
    #[schemars(extend("x-at-least" = "100ms"))]
    pub timeout: Duration,
    /// Whether the API may listen beyond loopback without tokens, and answer any `Host`. Set it only if something else protects the API.
    pub allow_unauthenticated: bool,
    /// Whether the queries of clients of the Wow framework are served, under `/wow` (docs/queries.md#clients-of-wow).
    pub wow_routes: bool,
    /// Certificate chain and private key in PEM, read again when a file changes. Without them: plain HTTP.
    pub tls: ServerTlsConfig,
}

impl Default for ApiConfig {
    fn default() -> Self {
        Self {
            enabled: false,
            listen: "127.0.0.1:8080".into(),
            tokens: Vec::new(),
            max_body: 1 << 20,
            max_connections: 1024,
            // As many bodies of 1 MiB as a small container holds.
            max_concurrent: 256,
            // Longer than an election of MongoDB's members takes.
            timeout: Duration::from_secs(30),
            allow_unauthenticated: false,
            wow_routes: false,
            tls: ServerTlsConfig::default(),
        }
    }
}

/// The section `[api.tls]`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ServerTlsConfig {
    /// The certificate chain, the server's own certificate first.
    #[schemars(example = &"/run/secrets/tls.crt")]
    pub cert_file: Option<PathBuf>,
    /// The private key.
    #[schemars(example = &"/run/secrets/tls.key")]
    pub key_file: Option<PathBuf>,
}

impl ApiConfig {
    /// Checks the rules of more than one key, and reads the tokens.
    pub fn validate(&self, rules: &mut Rules) -> Tokens {
        let tls = &self.tls;
        match (&tls.cert_file, &tls.key_file) {
            (Some(_), None) => {
                rules.wrong(
                    "tls.key_file",
                    "is not set, but api.tls.cert_file is; set both or neither",
                );
            }
            (None, Some(_)) => {
                rules.wrong(
                    "tls.cert_file",
                    "is not set, but api.tls.key_file is; set both or neither",
                );
            }
            _ => {}
        }
        let host = listen_host(&self.listen);
        let is_remote = host.as_ref().is_ok_and(|host| !is_loopback(host));
        match host {
            Ok(host) => rules.require(
                is_loopback(host) || !self.tokens.is_empty() || self.allow_unauthenticated,
                "listen",
                "accepts remote connections without authentication, with or without TLS; set \
                 api.tokens, bind to 127.0.0.1:8080, or set api.allow_unauthenticated = true if \
                 a proxy authenticates",
            ),
            Err(detail) => rules.wrong("listen", detail),
        }
        read_tokens(&self.tokens, is_remote, rules)
    }

    /// The files of the server's certificate, where it has one.
    pub(super) fn tls_files(&self) -> Option<TlsFiles> {
        let (certificate, key) = (self.tls.cert_file.clone()?, self.tls.key_file.clone()?);
        Some(TlsFiles { certificate, key })
    }
}

fn read_tokens(listed: &[Token], is_remote: bool, rules: &mut Rules) -> Tokens {
    let mut tokens = Tokens::default();
    let mut names = HashSet::new();
    for (at, token) in listed.iter().enumerate() {
        let key = |part: &str| format!("tokens.{at}{part}");
        let (name, secret, scopes, limits) = match token {
            Token::Text(text) => {
                let name = format!("token {}", at + 1);
                (name, Some(text.clone()), Scope::ALL.into(), Limits::default())
            }
            Token::Table(table) => {
                rules.require(!table.name.is_empty(), key(".name"), "must not be empty");
                let secret = match (&table.token, &table.token_file) {
                    (Some(token), None) => Some(token.clone()),
                    (None, Some(file)) => match read_file(file) {
                        Ok(secret) => Some(secret),
                        Err(detail) => {
                            rules.wrong(key(".token_file"), detail);
                            None
                        }
                    },
                    (Some(_), Some(_)) => {
                        rules
                            .wrong(key(""), "has both token and token_file; remove one of the two");
                        continue;
                    }
                    (None, None) => {
                        rules.wrong(key(""), "has no token; set token or token_file");
                        continue;
                    }
                };
                let scopes = match &table.scopes {
                    None => Scope::ALL.into(),
                    Some(scopes) => read_scopes(&key(".scopes"), scopes, rules),
                };
                let limits = read_limits(&key(""), table, rules);
                (table.name.clone(), secret, scopes, limits)
            }
        };
        if !names.insert(name.clone()) {
            rules.wrong(
                key(".name"),
                format!("{name:?} is also the name of another token; change one of the two"),
            );
        }
        let Some(secret) = secret.as_ref().map(SecretText::expose) else { continue };
        // A header can carry no other characters.
        let is_legal = !secret.is_empty() && secret.bytes().all(|byte| byte.is_ascii_graphic());
        let detail = "must contain only ASCII letters, digits and punctuation, and at least one \
                      character";
        rules.require(is_legal, key(""), detail);
        let is_short = secret.len() < MIN_REMOTE_TOKEN;
        rules.require(
            !(is_remote && is_legal && is_short),
            key(""),
            format!(
                "has fewer than {MIN_REMOTE_TOKEN} characters, and api.listen accepts remote \
                 connections; set a longer one, such as the output of openssl rand -hex 32"
            ),
        );
        rules.require(
            tokens.add(&name, secret, scopes, limits),
            key(""),
            "is the same token as another one; set a different token",
        );
    }
    tokens
}

fn read_scopes(key: &str, names: &[String], rules: &mut Rules) -> Vec<Scope> {
    rules.require(
        !names.is_empty(),
        key,
        "must not be empty; remove it for all scopes, or set append, read, admin or consume",
    );
    let mut scopes = Vec::new();
    for name in names {
        match Scope::ALL.into_iter().find(|scope| scope.name() == name) {
            Some(scope) => scopes.push(scope),
            None => {
                let nearest = did_you_mean(name, Scope::ALL.iter().map(|scope| scope.name()));
                let detail = format!(
                    "unknown scope {name:?}; must be append, read, admin or consume{nearest}"
                );
                rules.wrong(key, detail);
            }
        }
    }
    scopes
}

fn read_limits(key: &str, table: &TokenTable, rules: &mut Rules) -> Limits {
    let mut texts = |name: &str, listed: &Option<Vec<String>>| {
        let listed = listed.as_ref()?;
        let key = format!("{key}.{name}");
        // Records that may name no destination are sent where the routes say.
        rules.require(
            !listed.is_empty() || name == "destinations",
            &key,
            "must not be empty; remove it if the token is not limited by it",
        );
        let is_empty = listed.iter().any(String::is_empty);
        rules.require(!is_empty, &key, "contains an empty text; remove it");
        Some(listed.clone())
    };
    let globs = |listed: Option<Vec<String>>| {
        listed.map(|listed| listed.iter().map(|text| Glob::new(text)).collect())
    };
    Limits {
        aggregates: globs(texts("aggregates", &table.aggregates)),
        types: globs(texts("types", &table.types)),
        destinations: globs(texts("destinations", &table.destinations)),
        tenants: texts("tenants", &table.tenants),
        subscriptions: globs(texts("subscriptions", &table.subscriptions)),
    }
}

/// One of `api.tokens`: a text, which has every scope, or a table.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema)]
#[schemars(untagged)]
pub enum Token {
    /// The token itself.
    Text(SecretText),
    /// A token with a name, scopes and limits.
    Table(TokenTable),
}

/// `{ name, token | token_file, scopes, aggregates, types, destinations, tenants, subscriptions }`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TokenTable {
    /// The client's name, for the log.
    pub name: String,
    /// The token itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<SecretText>,
    /// The file that holds the token, read at the start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token_file: Option<PathBuf>,
    /// The scopes: `append`, `read`, `admin`, `consume`. Without it: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scopes: Option<Vec<String>>,
    /// Globs of aggregate names: the token reads and writes only these events and snapshots.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub aggregates: Option<Vec<String>>,
    /// Globs of types: the token enqueues, reads and changes only these records, and appends only events of these names.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub types: Option<Vec<String>>,
    /// Globs of destinations that records of the token may name. Empty: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub destinations: Option<Vec<String>>,
    /// Tenants: the token reads and writes only their events, snapshots and records.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenants: Option<Vec<String>>,
    /// Globs of names of subscriptions: the token uses only these.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subscriptions: Option<Vec<String>>,
}

impl<'de> Deserialize<'de> for Token {
    /// Reads by the value's type, so that an error names the wrong key of a table and quotes no value.
    fn deserialize<D: Deserializer<'de>>(input: D) -> Result<Self, D::Error> {
        use serde::de::Error;
        match toml::Value::deserialize(input)? {
            toml::Value::String(text) => Ok(Self::Text(SecretText::from(text.as_str()))),
            toml::Value::Table(table) => {
                let is_list = |name: &str| name == "scopes" || Limits::NAMES.contains(&name);
                let wrong_type = table.iter().find(|(name, value)| {
                    let texts = value.as_array().map(|list| list.iter().all(toml::Value::is_str));
                    if is_list(name) { texts != Some(true) } else { !value.is_str() }
                });
                if let Some((name, value)) = wrong_type {
                    let kind = value.type_str();
                    return Err(Error::custom(format!("{name:?} cannot be of type {kind}")));
                }
                let table = TokenTable::deserialize(table);
                table.map(Self::Table).map_err(|error| Error::custom(error.message()))
            }
            other => Err(Error::custom(format!(
                "must be text, or {{ name = \"…\", token = \"…\", scopes = [\"append\", \
                 \"read\"] }}; is of type {}",
                other.type_str()
            ))),
        }
    }
}

impl Serialize for Token {
    fn serialize<S: Serializer>(&self, output: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Text(text) => text.serialize(output),
            Self::Table(table) => table.serialize(output),
        }
    }
}
