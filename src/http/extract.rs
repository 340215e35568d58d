//! Extracts the parts of a request as types, each with all its flaws.

use std::borrow::Cow;
use std::marker::PhantomData;
use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::{FromRequest, FromRequestParts, RawPathParams, Request};
use axum::http::header::{AUTHORIZATION, CONTENT_LENGTH, CONTENT_TYPE};
use axum::http::request::Parts;
use bson::Document;
use http_body_util::LengthLimitError;
use percent_encoding::percent_decode_str;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::events::Flaw;
use crate::events::json::{BodyError, Form, Request as RequestBody, read, read_completed};
use crate::http::auth::Scope;
use crate::http::entity_tag::refuse_conditions;
use crate::http::headers::read_valid;
use crate::http::problem::Problem;
use crate::http::state::Api;

/// A scope as a type: the one that a call requires.
pub trait RequiredScope: Send {
    /// The scope.
    const SCOPE: Scope;
}

/// Requires [`Scope::Append`].
#[derive(Clone, Copy, Debug)]
pub struct AppendScope;
/// Requires [`Scope::Read`].
#[derive(Clone, Copy, Debug)]
pub struct ReadScope;
/// Requires [`Scope::Admin`].
#[derive(Clone, Copy, Debug)]
pub struct AdminScope;

impl RequiredScope for AppendScope {
    const SCOPE: Scope = Scope::Append;
}
impl RequiredScope for ReadScope {
    const SCOPE: Scope = Scope::Read;
}
impl RequiredScope for AdminScope {
    const SCOPE: Scope = Scope::Admin;
}

/// A call by a client that has the scope, with the parameters of its path and its query. The first
/// argument of every handler: the rest of a request is not examined before the scope.
pub struct Call<S, P = NoParameters, Q = NoParameters> {
    /// The token's name, for logs.
    pub actor: Arc<str>,
    /// The parameters of the path.
    pub path: P,
    /// The parameters of the query.
    pub query: Q,
    /// The state of the handlers.
    pub state: Api,
    scope: PhantomData<S>,
}

/// No parameters.
#[derive(Clone, Copy, Debug, Deserialize)]
pub struct NoParameters {}

impl<S: RequiredScope, P: DeserializeOwned, Q: DeserializeOwned> FromRequestParts<Api>
    for Call<S, P, Q>
{
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, shared: &Api) -> Result<Self, Problem> {
        let actor =
            shared.tokens.admit(S::SCOPE, read_valid(&parts.headers, AUTHORIZATION.as_str()))?;
        let path = RawPathParams::from_request_parts(parts, shared).await;
        let path = path.map_err(|_| Problem::wrong("path", "is not valid UTF-8"))?;
        let path = path.iter().map(|(name, text)| (name.to_owned(), text.into())).collect();
        let path = read(path, Form::Strings, Vec::new());
        let query = query(parts.uri.query().unwrap_or_default());
        let (path, query) = match (path, query) {
            (Ok(path), Ok(query)) => (path, query),
            (path, query) => {
                let flaws = [path.err(), query.err()].into_iter().flatten().flatten();
                return Err(Problem::invalid(flaws.collect()));
            }
        };
        Ok(Self { actor, path, query, state: shared.clone(), scope: PhantomData })
    }
}

fn query<Q: DeserializeOwned>(text: &str) -> Result<Q, Vec<Flaw>> {
    let (mut parameters, mut flaws) = (Document::new(), Vec::new());
    for pair in text.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        match (decoded(name), decoded(value)) {
            (Some(name), _) if parameters.contains_key(&name) => {
                flaws.push(Flaw::new(name, "appears twice"));
            }
            (Some(name), Some(value)) => drop(parameters.insert(name, value)),
            (Some(name), None) => flaws.push(Flaw::new(name, "is not valid UTF-8")),
            (None, _) => flaws.push(Flaw::new("", "the name of a parameter is not valid UTF-8")),
        }
    }
    read(parameters, Form::Strings, flaws)
}

fn decoded(text: &str) -> Option<String> {
    let spaces = text.replace('+', " ");
    percent_decode_str(&spaces).decode_utf8().ok().map(Cow::into_owned)
}

/// A body that is a JSON object.
#[derive(Debug)]
pub struct Body<T>(pub T);

impl<T: RequestBody> FromRequest<Api> for Body<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, shared: &Api) -> Result<Self, Problem> {
        let flaws = refuse_conditions(request.headers());
        read_json(request, shared, |_| flaws).await.map(Self)
    }
}

/// Reads a body that is a JSON object, after `complete` has added members and found flaws.
pub(super) async fn read_json<T: RequestBody>(
    request: Request,
    shared: &Api,
    complete: impl FnOnce(&mut Document) -> Vec<Flaw>,
) -> Result<T, Problem> {
    let kind = read_valid(request.headers(), CONTENT_TYPE.as_str()).unwrap_or_default();
    let kind = kind.split(';').next().unwrap_or_default();
    if !kind.trim().eq_ignore_ascii_case("application/json") {
        return Err(Problem::unsupported_media_type());
    }
    let bytes = bytes(request, shared.max_body).await?;
    let text = std::str::from_utf8(&bytes).map_err(|_| Problem::malformed("is not valid UTF-8"))?;
    read_completed(text, complete).map_err(|error| match error {
        BodyError::Syntax(error) => Problem::malformed(format!("invalid JSON: {error}")),
        BodyError::Invalid(flaws) => Problem::invalid(flaws),
    })
}

/// No body, or an empty object. Any other body is refused, since it would be ignored.
#[derive(Clone, Copy, Debug)]
pub struct NoBody;

impl FromRequest<Api> for NoBody {
    type Rejection = Problem;

    async fn from_request(request: Request, shared: &Api) -> Result<Self, Problem> {
        let flaws = refuse_conditions(request.headers());
        if !flaws.is_empty() {
            return Err(Problem::invalid(flaws));
        }
        let is_empty = |body: serde_json::Map<String, serde_json::Value>| body.is_empty();
        match bytes(request, shared.max_body).await {
            Ok(bytes) if bytes.is_empty() => Ok(Self),
            Ok(bytes) if serde_json::from_slice(&bytes).is_ok_and(is_empty) => Ok(Self),
            Ok(_) => Err(Problem::wrong(
                "",
                "this request accepts no body; use its path and query parameters",
            )),
            Err(problem) => Err(problem),
        }
    }
}

async fn bytes(request: Request, limit: usize) -> Result<Bytes, Problem> {
    let too_large = || Problem::too_large(format!("a body must have at most {limit} bytes"));
    let length = read_valid(request.headers(), CONTENT_LENGTH.as_str());
    if length.and_then(|text| text.parse::<usize>().ok()).is_some_and(|length| length > limit) {
        return Err(too_large());
    }
    axum::body::to_bytes(request.into_body(), limit).await.map_err(|error| {
        if error.into_inner().is::<LengthLimitError>() {
            too_large()
        } else {
            Problem::malformed("the body ended early")
        }
    })
}

#[cfg(test)]
mod tests {
    use bson::doc;

    use super::*;
    use crate::http::params::AggregatePath;

    #[derive(Debug, Deserialize, PartialEq)]
    struct Parameters {
        key: Option<String>,
        limit: Option<i64>,
    }

    #[test]
    fn parameters_are_decoded() {
        let found: Parameters = query("key=a%2Fb+c&&limit=7").unwrap();

        assert_eq!(found, Parameters { key: Some("a/b c".to_owned()), limit: Some(7) });
        assert_eq!(query::<Parameters>("key=").unwrap().key.as_deref(), Some(""));
    }

    #[test]
    fn all_flaws_of_a_path_are_reported() {
        let path = doc! { "name": "1x", "id": "" };

        let flaws = read::<AggregatePath>(path, Form::Strings, Vec::new()).unwrap_err();

        let fields: Vec<&str> = flaws.iter().map(|flaw| &*flaw.field).collect();
        assert_eq!(fields, ["name", "id"]);
    }

    #[test]
    fn all_flaws_of_a_query_are_reported() {
        for (text, wrong) in [
            ("key=1&key=2", 1),
            ("key=%ff", 1),
            ("%ff=1", 1),
            ("limit=x&key=1&key=1&z=1", 3),
            ("wild%20=x", 1),
        ] {
            assert_eq!(query::<Parameters>(text).unwrap_err().len(), wrong, "{text}");
        }
    }
}
