//! `/blocked-keys`: the blocked keys and their blockers.

use std::fmt;
use std::sync::{Arc, OnceLock};

use percent_encoding::percent_decode_str;
use serde_json::Value;

/// The keys in an answer by default.
const DEFAULT_KEYS: usize = 100;

/// The most keys in an answer.
const MAX_KEYS: usize = 1_000;

type Source = Box<dyn Fn(Option<&str>, usize) -> Value + Send + Sync>;

/// The table of blocked keys, once a relay runs.
#[derive(Clone, Default)]
pub struct BlockedKeys(Arc<OnceLock<Source>>);

impl fmt::Debug for BlockedKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("BlockedKeys").field(&self.0.get().is_some()).finish()
    }
}

/// Why there is no answer.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum NoAnswer {
    /// The query is invalid.
    Invalid(&'static str),
    /// No relay runs here, or none yet.
    NoRelay,
}

impl BlockedKeys {
    /// Sets the source: a function of a key, or of all keys, and a limit. Called once.
    pub fn set(&self, source: impl Fn(Option<&str>, usize) -> Value + Send + Sync + 'static) {
        let _ = self.0.set(Box::new(source));
    }

    /// The answer to a query such as `key=k&limit=10`.
    pub(super) fn answer(&self, query: &str) -> Result<Value, NoAnswer> {
        let (mut key, mut limit) = (None, DEFAULT_KEYS);
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let value = value.replace('+', " ");
            let value = percent_decode_str(&value).decode_utf8();
            let value = value.map_err(|_| NoAnswer::Invalid("a value is not valid UTF-8"))?;
            match name {
                "key" => key = Some(value.into_owned()),
                "limit" => {
                    let number =
                        value.parse().ok().filter(|number| (1..=MAX_KEYS).contains(number));
                    limit = number
                        .ok_or(NoAnswer::Invalid("limit must be an integer from 1 to 1000"))?;
                }
                _ => return Err(NoAnswer::Invalid("unknown parameter; use key or limit")),
            }
        }
        let source = self.0.get().ok_or(NoAnswer::NoRelay)?;
        Ok(source(key.as_deref(), limit))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn query_accepts_key_and_limit_only() {
        let blocked = BlockedKeys::default();
        assert_eq!(blocked.answer(""), Err(NoAnswer::NoRelay));
        blocked.set(|key, limit| json!([key, limit]));

        assert_eq!(blocked.answer(""), Ok(json!([null, 100])));
        assert_eq!(blocked.answer("key=a%2Fb+c&limit=7"), Ok(json!(["a/b c", 7])));
        for wrong in ["limit=0", "limit=1001", "limit=x", "keys=a", "key=%ff"] {
            assert!(matches!(blocked.answer(wrong), Err(NoAnswer::Invalid(_))), "{wrong}");
        }
    }
}
