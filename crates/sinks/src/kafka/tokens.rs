//! Bearer tokens for SASL OAUTHBEARER, from a file that another process keeps up to date.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::time::Duration;

use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use bson::DateTime;
use postrider_settings::secret::{read_file, shown_path};
use rdkafka::ClientContext;
use rdkafka::client::OAuthToken;
use rdkafka::consumer::ConsumerContext;
use serde::Deserialize;

/// How long a token is used before the file is read again, if the token does not say when it expires.
const UNKNOWN_LIFETIME: Duration = Duration::from_secs(300);

/// The source of a client's tokens. librdkafka requests the next one when most of the lifetime is over.
#[derive(Clone, Debug)]
pub(super) struct Tokens {
    /// `None` if the client logs in by other means.
    file: Option<PathBuf>,
}

/// The claims of a JSON web token that matter here.
#[derive(Default, Deserialize)]
struct Claims {
    /// Seconds since the epoch.
    exp: Option<f64>,
    #[serde(default)]
    sub: String,
}

impl Tokens {
    pub(super) fn in_file(file: Option<&Path>) -> Self {
        Self { file: file.map(Path::to_owned) }
    }

    /// Reads the token of this moment.
    ///
    /// # Errors
    ///
    /// The file cannot be read or is empty, or its token has expired.
    fn read(&self, now: DateTime) -> Result<OAuthToken, String> {
        let file = self.file.as_deref().ok_or("token_file is not set")?;
        let text = read_file(file)?;
        let flaw = |flaw| format!("the file {:?} {flaw}", shown_path(file));
        if text.expose().is_empty() {
            return Err(flaw("is empty; write a token to it"));
        }
        let claims = claims(text.expose()).unwrap_or_default();
        let now = now.timestamp_millis();
        let expires = match claims.exp {
            Some(seconds) => (seconds * 1e3) as i64,
            None => now.saturating_add(i64::try_from(UNKNOWN_LIFETIME.as_millis()).unwrap_or(0)),
        };
        if expires <= now {
            return Err(flaw("has a token that has expired; renew it"));
        }
        let token = text.expose().to_owned();
        Ok(OAuthToken { token, principal_name: claims.sub, lifetime_ms: expires })
    }
}

/// Returns the claims of a JSON web token. Its signature is for the broker.
fn claims(token: &str) -> Option<Claims> {
    let payload = BASE64_URL_SAFE_NO_PAD.decode(token.split('.').nth(1)?).ok()?;
    serde_json::from_slice(&payload).ok()
}

impl ClientContext for Tokens {
    const ENABLE_REFRESH_OAUTH_TOKEN: bool = true;

    fn generate_oauth_token(&self, _: Option<&str>) -> Result<OAuthToken, Box<dyn Error>> {
        Ok(self.read(DateTime::now())?)
    }
}

impl ConsumerContext for Tokens {}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: DateTime = DateTime::from_millis(1_700_000_000_000);

    fn read(text: &str) -> Result<OAuthToken, String> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        Tokens::in_file(Some(file.path())).read(NOW)
    }

    fn jwt(claims: &str) -> String {
        format!("e30.{}.c2ln", BASE64_URL_SAFE_NO_PAD.encode(claims))
    }

    #[test]
    fn token_is_used_until_it_expires() {
        let token = read(&format!("{}\n", jwt(r#"{"sub":"alice","exp":1700000060}"#))).unwrap();

        assert_eq!(token.token, jwt(r#"{"sub":"alice","exp":1700000060}"#));
        assert_eq!(
            (token.principal_name.as_str(), token.lifetime_ms),
            ("alice", 1_700_000_060_000)
        );
        for without_end in ["opaque", &jwt("{}"), &jwt("no JSON"), "a.%.b"] {
            assert_eq!(read(without_end).unwrap().lifetime_ms, 1_700_000_300_000, "{without_end}");
        }
    }

    #[test]
    fn file_without_a_valid_token_is_refused_without_its_content() {
        for (text, words) in [("\n", "is empty"), (&jwt(r#"{"exp":1700000000}"#), "has expired")] {
            let error = read(text).map(|token| token.token).unwrap_err();

            assert!(error.contains(words) && !error.contains("e30."), "{error}");
        }
    }
}
