//! Commands: bodies of which headers can have members in place of the body.

use axum::extract::{FromRequest, Request};
use axum::http::HeaderMap;
use bson::{Bson, Document};
use utoipa::IntoParams;

use crate::events::json::{
    AppendRequest, EndRequest, EraseRequest, ExpectedVersion, Request as RequestBody,
};
use crate::events::{Expected, Flaw};
use crate::http::entity_tag::{append_condition, refuse_conditions};
use crate::http::extract::read_json;
use crate::http::headers::read_single;
use crate::http::problem::Problem;
use crate::http::state::Api;
use crate::names::check_id;

/// The header in place of `requestId` (draft-ietf-httpapi-idempotency-key-header).
pub const IDEMPOTENCY_KEY: &str = "Idempotency-Key";

const REQUEST_ID: &str = "requestId";
const EXPECTED_VERSION: &str = "expectedVersion";

/// The id of a request, in a header.
#[derive(Debug, IntoParams)]
#[into_params(parameter_in = Header)]
#[expect(dead_code, reason = "describes a header")]
pub struct IdempotencyKey {
    /// In place of `requestId`: the id of the request, in double quotes or without. One of the two is required.
    #[param(
        rename = "Idempotency-Key", value_type = String, required = false, example = "\"place-o-1\"",
        pattern = "^(\"([ !#-\\[\\]-~]|\\\\[\"\\\\]){1,255}\"|[!#-~]{1,255})$"
    )]
    idempotency_key: Option<String>,
}

/// A body with a `requestId`, or a request with the header `Idempotency-Key`.
#[derive(Debug)]
pub struct Command<T>(pub T);

/// The bodies that have a `requestId`.
pub trait HasRequestId: RequestBody {}

impl HasRequestId for EndRequest {}
impl HasRequestId for EraseRequest {}

impl<T: HasRequestId> FromRequest<Api> for Command<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, shared: &Api) -> Result<Self, Problem> {
        let mut flaws = refuse_conditions(request.headers());
        let key = idempotency_key(request.headers());
        let complete = |body: &mut Document| {
            flaws.extend(complete_request_id(body, key));
            flaws
        };
        read_json(request, shared, complete).await.map(Self)
    }
}

/// The body of an append, whose `expectedVersion` can be a condition of the request.
#[derive(Debug)]
pub struct AppendCommand {
    /// The append.
    pub body: AppendRequest,
    /// Whether the expected version is a condition of HTTP, which fails with 412: only a header has it.
    pub is_conditional: bool,
}

impl FromRequest<Api> for AppendCommand {
    type Rejection = Problem;

    async fn from_request(request: Request, shared: &Api) -> Result<Self, Problem> {
        let key = idempotency_key(request.headers());
        let condition = append_condition(request.headers());
        let mut is_conditional = false;
        let complete = |body: &mut Document| {
            is_conditional = !is_given(body, EXPECTED_VERSION) && matches!(condition, Ok(Some(_)));
            let flaws = complete_request_id(body, key);
            flaws.into_iter().chain(complete_expected_version(body, condition)).collect()
        };
        let body = read_json(request, shared, complete).await?;
        Ok(Self { body, is_conditional })
    }
}

/// Reads the header `Idempotency-Key`: a string in quotes, as the draft has it, or the text itself.
fn idempotency_key(headers: &HeaderMap) -> Result<Option<String>, Flaw> {
    let Some(text) = read_single(headers, IDEMPOTENCY_KEY)? else { return Ok(None) };
    let refused =
        || Flaw::new(IDEMPOTENCY_KEY, "must be printable ASCII, in double quotes or without");
    if !text.bytes().all(|byte| (0x20..0x7f).contains(&byte)) {
        return Err(refused());
    }
    let key = match text.strip_prefix('"') {
        Some(quoted) => unquoted(quoted).ok_or_else(refused)?,
        None => text.to_owned(),
    };
    check_id(&key).map_err(|rule| Flaw::new(IDEMPOTENCY_KEY, rule.to_string()))?;
    Ok(Some(key))
}

/// The content of a string of structured fields (RFC 8941) after its first quote. Only `\"` and `\\` are
/// escapes.
fn unquoted(text: &str) -> Option<String> {
    let (mut content, mut chars) = (String::new(), text.chars());
    loop {
        match chars.next()? {
            '"' => return chars.next().is_none().then_some(content),
            '\\' => content.push(chars.next().filter(|next| matches!(next, '"' | '\\'))?),
            other => content.push(other),
        }
    }
}

/// Sets `requestId` from the header, or compares both.
fn complete_request_id(body: &mut Document, key: Result<Option<String>, Flaw>) -> Vec<Flaw> {
    let own = body.get(REQUEST_ID);
    let flaw = match (key, own) {
        (Err(flaw), own) => {
            if own.is_none() {
                // A placeholder: the id is not missing, but invalid.
                body.insert(REQUEST_ID, IDEMPOTENCY_KEY);
            }
            Some(flaw)
        }
        (Ok(None), None) => {
            Some(Flaw::new(REQUEST_ID, "is missing, and the header Idempotency-Key too"))
        }
        (Ok(Some(key)), None | Some(Bson::Null)) => {
            body.insert(REQUEST_ID, key);
            None
        }
        (Ok(Some(key)), Some(Bson::String(own))) => (*own != key).then(|| {
            let detail = "differs from the header Idempotency-Key; remove one of the two";
            Flaw::new(REQUEST_ID, detail)
        }),
        // Of a wrong type, which the reader reports.
        (Ok(_), Some(_)) => None,
    };
    flaw.into_iter().collect()
}

/// Sets `expectedVersion` from the condition, or compares both.
fn complete_expected_version(
    body: &mut Document,
    condition: Result<Option<Expected>, Flaw>,
) -> Option<Flaw> {
    let condition = match condition {
        Ok(Some(condition)) => condition,
        Ok(None) => return None,
        Err(flaw) => return Some(flaw),
    };
    if !is_given(body, EXPECTED_VERSION) {
        body.insert(EXPECTED_VERSION, ExpectedVersion::from(condition));
        return None;
    }
    // One of a wrong type is reported by the reader.
    let own = body.get(EXPECTED_VERSION).and_then(ExpectedVersion::parse)?.expected();
    let is_same = own == condition || (own.is_none() && condition.is_none());
    let header = if condition == Expected::None { "If-None-Match" } else { "If-Match" };
    (!is_same).then(|| {
        let detail = format!("differs from the header {header}; remove one of the two");
        Flaw::new(EXPECTED_VERSION, detail)
    })
}

fn is_given(body: &Document, member: &str) -> bool {
    !matches!(body.get(member), None | Some(Bson::Null))
}

#[cfg(test)]
mod tests {
    use bson::doc;

    use super::*;

    fn key(values: &[&str]) -> Result<Option<String>, Flaw> {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append("idempotency-key", value.parse().unwrap());
        }
        idempotency_key(&headers)
    }

    #[test]
    fn idempotency_key_is_read_with_quotes_and_without() {
        assert_eq!(key(&[]), Ok(None));
        for (value, expected) in [
            ("place-o-1", "place-o-1"),
            ("\"place-o-1\"", "place-o-1"),
            ("\"a \\\"b\\\" \\\\\"", "a \"b\" \\"),
            ("a\"b", "a\"b"),
        ] {
            assert_eq!(key(&[value]), Ok(Some(expected.to_owned())), "{value}");
        }
    }

    #[test]
    fn invalid_idempotency_key_is_refused() {
        let long = "k".repeat(256);
        for values in [
            &[""][..],
            &["\"\""],
            &["\"open"],
            &["\"a\";p=1"],
            &["\"a\\n\""],
            &["größe"],
            &["a", "a"],
            &[&long],
        ] {
            assert_eq!(key(values).unwrap_err().field, IDEMPOTENCY_KEY, "{values:?}");
        }
    }

    #[test]
    fn expected_version_of_body_and_header_must_be_the_same() {
        let complete = |own: Bson, condition| {
            let mut body = doc! { "expectedVersion": own };
            let flaw = complete_expected_version(&mut body, Ok(Some(condition)));
            (body.remove("expectedVersion").unwrap(), flaw.map(|flaw| flaw.field))
        };
        for (own, condition) in [
            (Bson::Int32(7), Expected::Exact(7)),
            (Bson::Int32(0), Expected::None),
            ("none".into(), Expected::Exact(0)),
            ("exists".into(), Expected::Exists),
        ] {
            assert_eq!(complete(own.clone(), condition), (own, None), "{condition:?}");
        }
        for (own, condition) in [
            (Bson::Int32(8), Expected::Exact(7)),
            ("any".into(), Expected::Exact(7)),
            ("none".into(), Expected::Exists),
        ] {
            let field = Some("expectedVersion".to_owned());
            assert_eq!(complete(own.clone(), condition), (own, field), "{condition:?}");
        }
        assert_eq!(complete(Bson::Null, Expected::Exact(7)), (Bson::Int64(7), None));
        assert_eq!(complete(Bson::Null, Expected::None), ("none".into(), None));
    }
}
