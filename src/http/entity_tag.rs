//! Versions as entity tags (RFC 9110): `ETag` of answers, `If-None-Match` of reads, and the conditions
//! of writes.

use axum::http::{HeaderMap, HeaderName, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use utoipa::IntoParams;

use crate::events::{Expected, Flaw};
use crate::http::answers::Turn;
use crate::http::headers::read_single;
use crate::http::problem::Problem;

const IF_MATCH: &str = "If-Match";
const IF_NONE_MATCH: &str = "If-None-Match";

/// The header of an answer that shows a version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EntityTag(pub i64);

impl EntityTag {
    /// The header with this tag.
    pub fn header(self) -> [(HeaderName, String); 1] {
        [(header::ETAG, self.text())]
    }

    fn text(self) -> String {
        format!("\"{}\"", self.0)
    }

    /// Whether the client of a read has this version already, by `If-None-Match`.
    pub fn is_known_to(self, headers: &HeaderMap) -> bool {
        let own = self.text();
        let values = headers.get_all(header::IF_NONE_MATCH).iter();
        let texts = values.filter_map(|value| value.to_str().ok());
        // The comparison is weak, and no version has a comma.
        let mut tags = texts.flat_map(|text| text.split(',')).map(str::trim);
        tags.any(|tag| tag == "*" || tag.strip_prefix("W/").unwrap_or(tag) == own)
    }

    /// Answers a read: 304 to a client that has this version already.
    ///
    /// # Errors
    ///
    /// Those of [`Turn::json`].
    pub fn answer<T: Serialize>(
        self,
        headers: &HeaderMap,
        turn: Turn,
        body: &T,
    ) -> Result<Response, Problem> {
        if self.is_known_to(headers) {
            return Ok(self.not_modified());
        }
        Ok((self.header(), turn.json(body)?).into_response())
    }

    /// The answer to a client that has this version already.
    pub fn not_modified(self) -> Response {
        (StatusCode::NOT_MODIFIED, self.header()).into_response()
    }
}

/// The condition of a read.
#[derive(Debug, IntoParams)]
#[into_params(parameter_in = Header)]
#[expect(dead_code, reason = "describes a header")]
pub struct ReadCondition {
    /// The `ETag` of an earlier answer: if the version is still the same, the answer is 304, without a body.
    #[param(rename = "If-None-Match", value_type = String, required = false, example = "\"7\"")]
    if_none_match: Option<String>,
}

/// The condition of an append.
#[derive(Debug, IntoParams)]
#[into_params(parameter_in = Header)]
#[expect(dead_code, reason = "describes headers")]
pub struct AppendCondition {
    /// In place of `expectedVersion`: the version that the aggregate must have, in quotes, or `*`: the
    /// aggregate must exist. Otherwise the answer is 412.
    #[param(
        rename = "If-Match", value_type = String, required = false, example = "\"7\"",
        pattern = "^(\\*|\"(0|[1-9][0-9]{0,17})\")$"
    )]
    if_match: Option<String>,
    /// In place of `expectedVersion`: with `*` the aggregate must not exist. Otherwise the answer is 412.
    #[param(
        rename = "If-None-Match", value_type = String, required = false, example = "*",
        pattern = "^\\*$"
    )]
    if_none_match: Option<String>,
}

/// Reads the condition of an append from `If-Match` or `If-None-Match`.
///
/// # Errors
///
/// Both headers, or another value than those of [`AppendCondition`].
pub fn append_condition(headers: &HeaderMap) -> Result<Option<Expected>, Flaw> {
    let (matched, unmatched) =
        (read_single(headers, IF_MATCH)?, read_single(headers, IF_NONE_MATCH)?);
    let expected = match (matched, unmatched) {
        (None, None) => return Ok(None),
        (Some(_), Some(_)) => {
            return Err(Flaw::new(IF_NONE_MATCH, "conflicts with If-Match; remove one"));
        }
        (None, Some("*")) => Expected::None,
        (None, Some(_)) => {
            return Err(Flaw::new(IF_NONE_MATCH, "must be *: the aggregate must not exist"));
        }
        (Some("*"), None) => Expected::Exists,
        (Some(tag), None) => Expected::Exact(version(tag).ok_or_else(|| {
            let refused =
                "must be one version in double quotes, such as \"7\", or *: the aggregate must \
                 exist; a weak tag or several tags are not accepted";
            Flaw::new(IF_MATCH, refused)
        })?),
    };
    Ok(Some(expected))
}

/// The flaws of a request without conditions that has one: it must not be ignored.
pub fn refuse_conditions(headers: &HeaderMap) -> Vec<Flaw> {
    let given = [IF_MATCH, IF_NONE_MATCH].into_iter().filter(|name| headers.contains_key(*name));
    let refused = "this call accepts no condition; remove the header";
    given.map(|name| Flaw::new(name, refused)).collect()
}

fn version(tag: &str) -> Option<i64> {
    let digits = tag.strip_prefix('"')?.strip_suffix('"')?;
    let version = digits.parse::<i64>().ok()?;
    // Without signs and leading zeros.
    (version >= 0 && version.to_string() == digits).then_some(version)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(*name, value.parse().unwrap());
        }
        headers
    }

    #[test]
    fn condition_of_an_append_is_an_expected_version() {
        for (pairs, expected) in [
            (&[][..], None),
            (&[("if-match", "\"7\"")], Some(Expected::Exact(7))),
            (&[("if-match", "\"0\"")], Some(Expected::Exact(0))),
            (&[("if-match", "*")], Some(Expected::Exists)),
            (&[("if-none-match", "*")], Some(Expected::None)),
        ] {
            assert_eq!(append_condition(&headers(pairs)), Ok(expected), "{pairs:?}");
        }
    }

    #[test]
    fn other_conditions_of_an_append_are_refused() {
        for (pairs, field) in [
            (&[("if-match", "7")][..], "If-Match"),
            (&[("if-match", "W/\"7\"")], "If-Match"),
            (&[("if-match", "\"7\", \"8\"")], "If-Match"),
            (&[("if-match", "\"7\""), ("if-match", "\"7\"")], "If-Match"),
            (&[("if-match", "\"-1\"")], "If-Match"),
            (&[("if-match", "\"+1\"")], "If-Match"),
            (&[("if-match", "\"-0\"")], "If-Match"),
            (&[("if-match", "\"007\"")], "If-Match"),
            (&[("if-match", "\"\"")], "If-Match"),
            (&[("if-match", "\"9223372036854775808\"")], "If-Match"),
            (&[("if-match", "\"abc\"")], "If-Match"),
            (&[("if-none-match", "\"7\"")], "If-None-Match"),
            (&[("if-none-match", "*"), ("if-match", "*")], "If-None-Match"),
        ] {
            let flaw = append_condition(&headers(pairs)).unwrap_err();

            assert_eq!(flaw.field, field, "{pairs:?}");
        }
    }

    #[test]
    fn version_is_known_by_any_of_the_tags() {
        for (value, is_known) in [
            ("\"7\"", true),
            ("W/\"7\"", true),
            ("\"6\", W/\"7\"", true),
            ("*", true),
            ("\"6\"", false),
            ("7", false),
            ("", false),
        ] {
            let headers = headers(&[("if-none-match", value)]);

            assert_eq!(EntityTag(7).is_known_to(&headers), is_known, "{value}");
        }
        assert!(!EntityTag(7).is_known_to(&HeaderMap::new()));
    }
}
