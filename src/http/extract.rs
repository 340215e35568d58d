//! Extracts the parts of a request as types, each with all its flaws.

use std::borrow::Cow;
use std::marker::PhantomData;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::{ConnectInfo, FromRequest, FromRequestParts, RawPathParams, Request};
use axum::http::header::{AUTHORIZATION, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE};
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode};
use bson::Document;
use http_body_util::LengthLimitError;
use percent_encoding::percent_decode_str;
use serde::de::DeserializeOwned;

use crate::events::Flaw;
use crate::events::json::{BodyError, Form, Request as RequestBody, read, read_completed};
use crate::http::answers::Answering;
use crate::http::auth::Scope;
use crate::http::entity_tag::refuse_conditions;
use crate::http::headers::read_valid;
use crate::http::limits::{Confined, Reach, Whole};
pub use crate::http::params::NoParameters;
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
/// Requires [`Scope::Consume`].
#[derive(Clone, Copy, Debug)]
pub struct ConsumeScope;

impl RequiredScope for AppendScope {
    const SCOPE: Scope = Scope::Append;
}
impl RequiredScope for ReadScope {
    const SCOPE: Scope = Scope::Read;
}
impl RequiredScope for AdminScope {
    const SCOPE: Scope = Scope::Admin;
}
impl RequiredScope for ConsumeScope {
    const SCOPE: Scope = Scope::Consume;
}

/// A call by a client that has the scope, with the parameters of its path and its query, and the part of
/// the API that it reaches. The first argument of every handler: the rest of a request is not examined
/// before the scope. A limited token may make it only if it has a [`Reach`] other than [`Whole`].
pub struct Call<S, P = NoParameters, Q = NoParameters, R = Whole> {
    /// The token's name, for logs.
    pub actor: Arc<str>,
    /// The parameters of the path.
    pub path: P,
    /// The parameters of the query.
    pub query: Q,
    /// What the token may reach. The parameters of the path are within it.
    pub reach: R,
    /// The state of the handlers.
    pub state: Api,
    scope: PhantomData<S>,
}

impl FromRequestParts<Api> for Answering {
    type Rejection = Problem;

    async fn from_request_parts(_: &mut Parts, shared: &Api) -> Result<Self, Problem> {
        Ok(Self::new(shared.answers.clone()))
    }
}

impl<S, P, Q, R> FromRequestParts<Api> for Call<S, P, Q, R>
where
    S: RequiredScope,
    P: DeserializeOwned + Confined<R>,
    Q: DeserializeOwned,
    R: Reach,
{
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, shared: &Api) -> Result<Self, Problem> {
        let presented = read_valid(&parts.headers, AUTHORIZATION.as_str());
        let admitted = shared.tokens.admit(S::SCOPE, presented);
        let holder = admitted.inspect_err(|problem| {
            if problem.status == StatusCode::UNAUTHORIZED {
                let peer = parts.extensions.get::<ConnectInfo<SocketAddr>>();
                shared.refused_logins.note(peer.map(|peer| peer.0));
            }
        })?;
        let reach = R::of(&holder)?;
        let path = RawPathParams::from_request_parts(parts, shared).await;
        let path = path.map_err(|_| Problem::wrong("path", "is not valid UTF-8"))?;
        let path = path.iter().map(|(name, text)| (name.to_owned(), text.to_owned())).collect();
        let path = read_path::<P>(path);
        let query = query::<Q>(parts.uri.query().unwrap_or_default());
        let (path, query) = match (path, query) {
            (Ok(path), Ok(query)) => (path, query),
            (path, query) => {
                let flaws = [path.err(), query.err()].into_iter().flatten().flatten();
                return Err(Problem::invalid(flaws.collect()));
            }
        };
        Confined::<R>::check(&path, &reach)?;
        let actor = holder.name.clone();
        Ok(Self { actor, path, query, reach, state: shared.clone(), scope: PhantomData })
    }
}

/// Reads the parameters of a path, decoded.
fn read_path<P: DeserializeOwned>(parameters: Vec<(String, String)>) -> Result<P, Vec<Flaw>> {
    let flaws = parameters.iter().filter_map(|(name, text)| {
        let refused = match text.as_str() {
            "." | ".." => "is a path of its own: proxies and clients would send another one",
            text if text.contains('\0') => "contains U+0000, at which programs in C end a text",
            _ => return None,
        };
        Some(Flaw::new(name, refused))
    });
    let flaws = flaws.collect();
    let parameters = parameters.into_iter().map(|(name, text)| (name, text.into()));
    read(parameters.collect(), Form::Strings, flaws)
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
    check_form(request.headers())?;
    let bytes = bytes(request, shared).await?;
    let text = std::str::from_utf8(&bytes).map_err(|_| Problem::malformed("is not valid UTF-8"))?;
    read_completed(text, complete).map_err(|error| match error {
        BodyError::Syntax(error) => Problem::malformed(format!("invalid JSON: {error}")),
        BodyError::Invalid(flaws) => Problem::invalid(flaws),
    })
}

/// Refuses a body in another form than JSON in UTF-8, as it is.
fn check_form(headers: &HeaderMap) -> Result<(), Problem> {
    let kind = read_valid(headers, CONTENT_TYPE.as_str()).unwrap_or_default();
    let mut parts = kind.split(';').map(str::trim);
    if !parts.next().unwrap_or_default().eq_ignore_ascii_case("application/json") {
        let detail = "the body must be JSON: Content-Type: application/json";
        return Err(Problem::unsupported_media_type(detail));
    }
    for parameter in parts {
        let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
        let charset = value.trim().trim_matches('"');
        if name.trim().eq_ignore_ascii_case("charset") && !is_utf8(charset) {
            let detail =
                format!("the charset {charset:?} is not supported; send the body as UTF-8");
            return Err(Problem::unsupported_media_type(detail));
        }
    }
    for codings in headers.get_all(CONTENT_ENCODING) {
        let codings = String::from_utf8_lossy(codings.as_bytes());
        let mut codings = codings.split(',').map(str::trim).filter(|coding| !coding.is_empty());
        if let Some(coding) = codings.find(|coding| !coding.eq_ignore_ascii_case("identity")) {
            let detail =
                format!("Content-Encoding {coding} is not supported; send the body as it is");
            return Err(Problem::unsupported_media_type(detail));
        }
    }
    Ok(())
}

/// Whether a charset is UTF-8, or a part of it.
fn is_utf8(charset: &str) -> bool {
    ["utf-8", "utf8", "us-ascii"].iter().any(|name| charset.eq_ignore_ascii_case(name))
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
        match bytes(request, shared).await {
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

/// How long after SIGTERM a body may still arrive: that of a client that sends it.
const LATE_BODY_GRACE: Duration = Duration::from_secs(2);

async fn bytes(request: Request, shared: &Api) -> Result<Bytes, Problem> {
    let limit = shared.max_body;
    let too_large = || Problem::too_large(format!("a body must have at most {limit} bytes"));
    let length = read_valid(request.headers(), CONTENT_LENGTH.as_str());
    if length.and_then(|text| text.parse::<usize>().ok()).is_some_and(|length| length > limit) {
        return Err(too_large());
    }
    let stopped = async {
        shared.stop.cancelled().await;
        tokio::time::sleep(LATE_BODY_GRACE).await;
    };
    tokio::select! {
        body = axum::body::to_bytes(request.into_body(), limit) => body.map_err(|error| {
            if error.into_inner().is::<LengthLimitError>() {
                too_large()
            } else {
                Problem::malformed("the body ended early")
            }
        }),
        () = stopped => Err(Problem::unavailable("stopping, and the body has not arrived; retry")),
    }
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

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
        for (name, id, wrong) in [
            ("1x", "", &["name", "id"][..]),
            ("order", ".", &["id"]),
            ("order", "..", &["id"]),
            ("order", "a\0", &["id"]),
            ("..", "\0", &["name", "id"]),
            ("order", "...", &[]),
            ("order", "a/../b", &[]),
        ] {
            let path = [("name", name), ("id", id)];
            let path = path.map(|(name, text)| (name.to_owned(), text.to_owned())).to_vec();

            let flaws = read_path::<AggregatePath>(path).err().unwrap_or_default();

            let fields: Vec<&str> = flaws.iter().map(|flaw| &*flaw.field).collect();
            assert_eq!(fields, wrong, "{name} {id}");
        }
    }

    #[test]
    fn body_in_another_form_is_refused_by_its_name() {
        let refused = |kind: &str, codings: &[&str]| {
            let mut headers = HeaderMap::new();
            headers.insert(CONTENT_TYPE, kind.parse().unwrap());
            for coding in codings {
                headers.append(CONTENT_ENCODING, coding.parse().unwrap());
            }
            check_form(&headers).err().map(|problem| format!("{problem:?}"))
        };
        for kind in [
            "application/json",
            "Application/JSON ; charset=UTF-8",
            "application/json;v=1;charset=\"utf-8\"",
            "application/json; charset=us-ascii;",
        ] {
            for codings in [&[][..], &["identity"], &["Identity, identity", ""]] {
                assert_eq!(refused(kind, codings), None, "{kind} {codings:?}");
            }
        }
        for (kind, codings, named) in [
            ("text/plain", &[][..], "application/json"),
            ("application/json; charset=utf-16", &[], "utf-16"),
            ("application/json; charset=", &[], "charset"),
            ("application/json", &["gzip"], "Content-Encoding gzip is not supported"),
            ("application/json", &["identity", "identity, br"], "Content-Encoding br is"),
            ("application/json", &["g\u{fc}"], "Content-Encoding g\u{fc} is"),
        ] {
            let refused = refused(kind, codings).unwrap();
            assert!(refused.contains(named), "{kind} {codings:?}: {refused}");
        }
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
