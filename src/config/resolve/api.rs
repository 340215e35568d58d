//! The rules of `api`: where the HTTP API listens, and who may use it.

use std::collections::HashSet;
use std::path::PathBuf;
use std::time::Duration;

use crate::config::load::without_line_end;
use crate::config::resolve::Rules;
use crate::config::token::Token;
use crate::config::tree::{Api, Config};
use crate::http::auth::{Scope, Tokens};
use crate::ops::origin::is_loopback;

/// What the HTTP API is built from.
#[derive(Clone, Debug)]
pub struct ApiPlan {
    /// Its address.
    pub listen: String,
    /// Who may do what; none: everybody everything.
    pub tokens: Tokens,
    /// Whether something else guards it, so that neither tokens nor a loopback `Host` are required.
    pub allow_unauthenticated: bool,
    /// Certificate and private key.
    pub tls: Option<TlsFiles>,
    /// The largest request body.
    pub max_body: usize,
    /// Connections at a time.
    pub max_connections: usize,
    /// Requests at a time.
    pub max_concurrent: usize,
    /// What a request may take.
    pub timeout: Duration,
}

/// Where certificate and private key are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// The chain in PEM, the server's own first.
    pub certificate: PathBuf,
    /// The private key in PEM.
    pub key: PathBuf,
}

impl Rules {
    /// The API, where it is enabled.
    pub(super) fn api(&mut self, config: &Config) -> Option<ApiPlan> {
        let api = &config.api;
        if !api.enabled {
            return None;
        }
        self.unless(
            (1 << 10..=64 << 20).contains(&api.max_body),
            "api.max_body",
            "must be between 1KiB and 64MiB",
        );
        for (key, number) in [
            ("api.max_connections", api.max_connections),
            ("api.max_concurrent", api.max_concurrent),
        ] {
            self.unless((1..=100_000).contains(&number), key, "must be between 1 and 100000");
        }
        self.unless(
            api.timeout >= Duration::from_millis(100),
            "api.timeout",
            "must be at least 100ms",
        );
        let tokens = self.tokens(api);
        let tls = self.tls(api);
        if let Some(host) = self.host("api.listen", &api.listen)
            && !is_loopback(host)
        {
            self.unless(
                !api.tokens.is_empty() || api.allow_unauthenticated,
                "api.listen",
                "is beyond loopback, where tokens are required, with TLS too; set api.tokens, or \
                 127.0.0.1:8080, or api.allow_unauthenticated = true",
            );
        }
        Some(ApiPlan {
            listen: api.listen.clone(),
            tokens,
            allow_unauthenticated: api.allow_unauthenticated,
            tls,
            max_body: usize::try_from(api.max_body).unwrap_or(usize::MAX),
            max_connections: api.max_connections,
            max_concurrent: api.max_concurrent,
            timeout: api.timeout,
        })
    }

    fn tls(&mut self, api: &Api) -> Option<TlsFiles> {
        match (&api.tls.cert_file, &api.tls.key_file) {
            (None, None) => None,
            (Some(certificate), Some(key)) => {
                Some(TlsFiles { certificate: certificate.into(), key: key.into() })
            }
            (Some(_), None) => {
                self.wrong("api.tls.key_file", "is not set, and api.tls.cert_file is");
                None
            }
            (None, Some(_)) => {
                self.wrong("api.tls.cert_file", "is not set, and api.tls.key_file is");
                None
            }
        }
    }

    fn tokens(&mut self, api: &Api) -> Tokens {
        let mut tokens = Tokens::default();
        let mut names = HashSet::new();
        for (at, token) in api.tokens.iter().enumerate() {
            let key = |part: &str| format!("api.tokens.{at}{part}");
            let (name, secret, scopes) = match token {
                Token::Text(text) => {
                    (format!("token {}", at + 1), Some(text.expose().to_owned()), Scope::ALL.into())
                }
                Token::Table(table) => {
                    self.unless(!table.name.is_empty(), key(".name"), "is empty");
                    let secret = match (&table.token, &table.token_file) {
                        (Some(token), None) => Some(token.expose().to_owned()),
                        (None, Some(file)) => self.token_in(&key(".token_file"), file),
                        (Some(_), Some(_)) => {
                            self.wrong(key(""), "has token and token_file; keep one of the two");
                            continue;
                        }
                        (None, None) => {
                            self.wrong(key(""), "has no token; set token or token_file");
                            continue;
                        }
                    };
                    let scopes = match &table.scopes {
                        None => Scope::ALL.into(),
                        Some(scopes) => self.scopes(&key(".scopes"), scopes),
                    };
                    (table.name.clone(), secret, scopes)
                }
            };
            if !names.insert(name.clone()) {
                self.wrong(key(".name"), format!("{name:?} is the name of another token too"));
            }
            let Some(secret) = secret else { continue };
            // What a header can carry, and no other character: it could never be presented.
            let legal = !secret.is_empty() && secret.bytes().all(|byte| byte.is_ascii_graphic());
            self.unless(
                legal,
                key(""),
                "is empty or has other characters than ASCII letters, digits and signs",
            );
            if !tokens.add(&name, &secret, scopes) {
                self.wrong(key(""), "is another token over again");
            }
        }
        tokens
    }

    fn token_in(&mut self, key: &str, file: &str) -> Option<String> {
        match std::fs::read_to_string(file) {
            Ok(text) => Some(without_line_end(&text).to_owned()),
            Err(error) => {
                self.wrong(key, format!("cannot read the file {file:?}: {error}"));
                None
            }
        }
    }

    fn scopes(&mut self, key: &str, names: &[String]) -> Vec<Scope> {
        self.unless(!names.is_empty(), key, "is empty; such a token could do nothing");
        let mut scopes = Vec::new();
        for name in names {
            match Scope::ALL.into_iter().find(|scope| scope.name() == name) {
                Some(scope) => scopes.push(scope),
                None => {
                    self.wrong(
                        key,
                        format!("{name:?} is an unknown scope; must be append, read or admin"),
                    );
                }
            }
        }
        scopes
    }
}

#[cfg(test)]
mod tests {
    use crate::config::load::{Inputs, load};
    use crate::config::problem::Problem;
    use crate::config::resolve::{Resolved, resolve};

    fn with(more: &[&str]) -> Result<Resolved, Vec<Problem>> {
        let least = ["mongo.uri=mongodb://h/db", "sinks.out.kind=stdout", "api.enabled=true"];
        let set = least.iter().chain(more).map(|setting| (*setting).to_owned()).collect();
        resolve(&load(&Inputs { set, ..Inputs::default() }).unwrap())
    }

    #[test]
    fn each_broken_rule_names_its_key_and_no_secret() {
        for (setting, key) in [
            ("api.listen=8080", "api.listen"),
            ("api.max_body=1B", "api.max_body"),
            ("api.max_connections=0", "api.max_connections"),
            ("api.max_concurrent=0", "api.max_concurrent"),
            ("api.timeout=1ms", "api.timeout"),
            ("api.tls.cert_file=/a", "api.tls.key_file"),
            ("api.tls.key_file=/a", "api.tls.cert_file"),
            ("api.tokens=[\"\"]", "api.tokens.0"),
            ("api.tokens=[\"hush hush\"]", "api.tokens.0"),
            ("api.tokens=[\"hush\", \"hush\"]", "api.tokens.1"),
            ("api.tokens=[{name = \"a\"}]", "api.tokens.0"),
            ("api.tokens=[{name = \"\", token = \"hush\"}]", "api.tokens.0.name"),
            ("api.tokens=[{name = \"a\", token = \"hush\", token_file = \"/x\"}]", "api.tokens.0"),
            ("api.tokens=[{name = \"a\", token_file = \"/no/file\"}]", "api.tokens.0.token_file"),
            (
                "api.tokens=[{name = \"a\", token = \"hush\", scopes = [\"all\"]}]",
                "api.tokens.0.scopes",
            ),
            ("api.tokens=[{name = \"a\", token = \"hush\", scopes = []}]", "api.tokens.0.scopes"),
            (
                "api.tokens=[{name = \"a\", token = \"hush\"}, {name = \"a\", token = \"hush2\"}]",
                "api.tokens.1.name",
            ),
        ] {
            let problems = with(&[setting]).unwrap_err();

            let keys: Vec<&str> = problems.iter().map(|problem| problem.key.as_str()).collect();
            assert_eq!(keys, [key], "{setting}");
            assert!(!format!("{problems:?}").contains("hush"), "{problems:?}");
            assert!(with(&[setting, "api.enabled=false"]).is_ok(), "{setting}");
        }
    }

    #[test]
    fn tokens_are_required_beyond_loopback_whatever_tls_does() {
        let tls = ["api.tls.cert_file=/a", "api.tls.key_file=/b"];
        for listen in ["0.0.0.0:1", "[::]:1", "10.0.0.1:1", "example.org:1"] {
            let listen = format!("api.listen={listen}");

            for open in [vec![], vec![tls[0], tls[1]]] {
                let problems = with(&[&[listen.as_str()], &open[..]].concat()).unwrap_err();
                assert_eq!(problems[0].key, "api.listen");
                assert!(problems[0].detail.contains("api.allow_unauthenticated"), "{problems:?}");
            }
            assert!(with(&[&listen, "api.tokens=[\"t\"]"]).is_ok());
            assert!(with(&[&listen, "api.allow_unauthenticated=true"]).is_ok());
        }
        for listen in ["127.0.0.1:1", "127.9.9.9:0", "[::1]:1", "localhost:1", "LOCALHOST:1"] {
            assert!(with(&[&format!("api.listen={listen}")]).is_ok(), "{listen}");
        }
    }

    #[test]
    fn the_former_name_of_a_key_is_answered_with_the_new_one() {
        let inputs = Inputs { set: vec!["api.insecure=true".into()], ..Inputs::default() };

        let error = load(&inputs).unwrap_err().to_string();

        assert!(error.contains("api.allow_unauthenticated"), "{error}");
    }

    #[test]
    fn a_token_may_be_all_of_a_file_but_its_last_newline() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "hush\n").unwrap();
        let tokens =
            format!("api.tokens=[{{name = \"a\", token_file = {:?}}}]", file.path().display());

        let api = with(&[&tokens]).unwrap().api.unwrap();

        assert!(api.tokens.find("hush").is_some());
        assert!(api.tokens.find("hush\n").is_none());
    }
}
