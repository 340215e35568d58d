//! Problems (RFC 9457): `application/problem+json` with a stable `code`.

use std::error::Error;
use std::time::Duration;

use axum::Json;
use axum::http::{HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Serialize;
use tracing::{error, warn};
use utoipa::ToSchema;
use uuid::Uuid;

use crate::events::Flaw;
use crate::events::json::MAX_FLAWS;
use crate::ops::origin::ForeignRequest;
use crate::ops::problem_code::ProblemCode;
use crate::store::StoreError;
use crate::store::schema::SchemaError;
use crate::telemetry::chain;

/// The seconds after which a repeated request may succeed.
const RETRY_AFTER_SECONDS: u32 = 1;

/// The length of a UUID with hyphens, the only form that a URN has.
const HYPHENATED_UUID_BYTES: usize = 36;

/// Everything but the unreserved characters of a URI (RFC 3986).
const RESERVED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// An error answer.
#[derive(Clone, Debug)]
pub struct Problem {
    /// The status.
    pub status: StatusCode,
    code: ProblemCode,
    detail: String,
    errors: Vec<Flaw>,
    actual_version: Option<i64>,
    /// Whether the request may have taken effect, so that the answer needs [`retry_advice`].
    is_unconfirmed: bool,
    /// The seconds after which a repeated request may succeed.
    retry_after: Option<u64>,
}

/// A problem (RFC 9457).
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ProblemAnswer {
    /// The documentation of the code.
    #[serde(rename = "type")]
    #[schema(example = "https://github.com/postrider/postrider/blob/main/docs/http.md#invalid")]
    kind: String,
    /// The code in words.
    #[schema(example = "Invalid request")]
    title: &'static str,
    /// The HTTP status.
    #[schema(minimum = 400, maximum = 599, example = 422)]
    status: u16,
    /// For programs: it never changes.
    #[schema(example = "invalid")]
    code: &'static str,
    /// For operators and developers.
    detail: String,
    /// With `invalid`: each field that is wrong.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    errors: Vec<Flaw>,
    /// With `version_conflict`, `duplicate_aggregate` and `stream_ended`: the version that the aggregate
    /// has.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    actual_version: Option<i64>,
    /// The request: `urn:uuid:` and the header `x-request-id`, which the log has too. If the client sent an
    /// id that is not a UUID: `urn:postrider:request:` and the id, percent-encoded.
    #[schema(example = "urn:uuid:4f0c1c3e-5b0e-4f0b-9a51-0d5c5c0e7a11")]
    instance: String,
}

impl Problem {
    fn new(status: StatusCode, code: ProblemCode, detail: impl Into<String>) -> Self {
        let detail = detail.into();
        let errors = Vec::new();
        Self {
            status,
            code,
            detail,
            errors,
            actual_version: None,
            is_unconfirmed: false,
            retry_after: None,
        }
    }

    /// The body is not JSON.
    pub fn malformed(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, ProblemCode::MalformedJson, detail)
    }

    /// No known token.
    pub fn unauthorized() -> Self {
        let detail = "a known token is required: Authorization: Bearer …";
        Self::new(StatusCode::UNAUTHORIZED, ProblemCode::Unauthorized, detail)
    }

    /// A token without the scope.
    pub fn forbidden(name: &str, scope: &str) -> Self {
        let detail = format!("the token {name:?} lacks the scope {scope}");
        Self::new(StatusCode::FORBIDDEN, ProblemCode::Forbidden, detail)
    }

    /// A token whose limits do not permit what it asks for.
    pub fn beyond_limits(name: &str, detail: &str) -> Self {
        let detail = format!("the token {name:?} {detail}");
        Self::new(StatusCode::FORBIDDEN, ProblemCode::Forbidden, detail)
    }

    /// Nothing exists under this path.
    pub fn not_found(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, ProblemCode::NotFound, detail)
    }

    /// The path has other methods.
    pub fn method_not_allowed() -> Self {
        Self::no_method("this path allows other methods; see the header Allow, or /openapi.json")
    }

    /// The path has not this method, and another call does what is asked for.
    pub fn no_method(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::METHOD_NOT_ALLOWED, ProblemCode::MethodNotAllowed, detail)
    }

    /// The state of the resource does not permit it.
    pub fn conflict(code: ProblemCode, detail: impl Into<String>) -> Self {
        Self::new(StatusCode::CONFLICT, code, detail)
    }

    /// The same problem, because a condition in a header is not met.
    pub fn of_condition(self) -> Self {
        Self { status: StatusCode::PRECONDITION_FAILED, ..self }
    }

    /// The stream has ended: what is asked for is not read any more.
    pub fn gone(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::GONE, ProblemCode::StreamEnded, detail)
    }

    /// More bytes than are accepted.
    pub fn too_large(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, ProblemCode::PayloadTooLarge, detail)
    }

    /// A body in another form than JSON in UTF-8.
    pub fn unsupported_media_type(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, ProblemCode::UnsupportedMediaType, detail)
    }

    /// Fields or parameters that are wrong.
    pub fn invalid(flaws: Vec<Flaw>) -> Self {
        let detail = match flaws.as_slice() {
            [one] => one.to_string(),
            several if several.len() > MAX_FLAWS => {
                format!("more than {MAX_FLAWS} fields are wrong")
            }
            several => format!("{} fields are wrong", several.len()),
        };
        Self {
            errors: flaws,
            ..Self::new(StatusCode::UNPROCESSABLE_ENTITY, ProblemCode::Invalid, detail)
        }
    }

    /// One field or parameter that is wrong.
    pub fn wrong(field: impl Into<String>, detail: impl Into<String>) -> Self {
        Self::invalid(vec![Flaw::new(field, detail)])
    }

    /// More concurrent requests than are accepted.
    pub fn overloaded(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, ProblemCode::Overloaded, detail)
    }

    /// Something that the request requires is unavailable at present.
    pub fn unavailable(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, ProblemCode::Unavailable, detail)
    }

    /// A request that was begun, and whose outcome is unknown.
    pub fn unconfirmed(detail: impl Into<String>) -> Self {
        Self::unavailable(detail).of_begun()
    }

    /// The same problem of a request that may have taken effect.
    pub fn of_begun(self) -> Self {
        Self { is_unconfirmed: true, ..self }
    }

    /// The same problem, with the version of the aggregate.
    pub fn at_version(self, version: i64) -> Self {
        Self { actual_version: Some(version), ..self }
    }

    /// The same problem, which may be gone after this time.
    pub fn retry_after(self, after: Duration) -> Self {
        Self { retry_after: Some(after.as_secs() + u64::from(after.subsec_nanos() > 0)), ..self }
    }

    /// A failure of MongoDB: a transient one is worth a retry, a permanent one needs an operator.
    pub fn of_failure(
        is_permanent: bool,
        error: &(dyn Error + 'static),
        detail: impl Into<String>,
    ) -> Self {
        if is_permanent {
            return Self::fault(error);
        }
        warn!(error = chain(error), "failed to answer a request");
        Self::unavailable(detail)
    }

    /// A collection that cannot be used. The error names the remedy and quotes nothing. Nothing was
    /// written.
    pub fn of_schema(error: &SchemaError) -> Self {
        let detail = error.to_string();
        match error {
            SchemaError::Store(source) => Self::of_failure(source.is_permanent(), source, detail),
            SchemaError::Name { .. } => Self::wrong("name", detail),
            _ => Self::unusable(detail),
        }
    }

    fn unusable(detail: String) -> Self {
        warn!(error = detail, "failed to answer a request");
        Self::unavailable(detail)
    }

    /// An error that only the log contains.
    pub fn fault(error: &(dyn Error + 'static)) -> Self {
        error!(error = chain(error), "failed to answer a request");
        Self::internal()
    }

    /// A fault of Postrider or of the setup of MongoDB; the log has it under the request's id.
    pub fn internal() -> Self {
        let detail = "internal error; search the server log for the request id in instance";
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, ProblemCode::Internal, detail)
    }

    /// The answer to the request with this id.
    pub fn render(self, request_id: &str, retry_advice: &str) -> Response {
        let status = self.status;
        let detail = if self.is_unconfirmed {
            format!("{}; {retry_advice}", self.detail)
        } else {
            self.detail
        };
        let body = ProblemAnswer {
            kind: self.code.link(),
            title: self.code.title(),
            status: status.as_u16(),
            code: self.code.as_str(),
            detail,
            errors: self.errors,
            actual_version: self.actual_version,
            instance: instance(request_id),
        };
        let mut response = (status, Json(body)).into_response();
        let headers = response.headers_mut();
        let kind = HeaderValue::from_static("application/problem+json");
        headers.insert(header::CONTENT_TYPE, kind);
        match status {
            StatusCode::UNAUTHORIZED => {
                let scheme = HeaderValue::from_static("Bearer realm=\"postrider\"");
                headers.insert(header::WWW_AUTHENTICATE, scheme);
            }
            StatusCode::SERVICE_UNAVAILABLE => {
                headers.insert(header::RETRY_AFTER, RETRY_AFTER_SECONDS.into());
            }
            _ => {
                if let Some(seconds) = self.retry_after {
                    headers.insert(header::RETRY_AFTER, seconds.into());
                }
            }
        }
        response
    }
}

/// The URI of a request.
fn instance(request_id: &str) -> String {
    if request_id.len() == HYPHENATED_UUID_BYTES && Uuid::try_parse(request_id).is_ok() {
        return format!("urn:uuid:{request_id}");
    }
    format!("urn:postrider:request:{}", utf8_percent_encode(request_id, RESERVED))
}

/// Without a body: the middleware renders it with the request's id.
impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let mut response = self.status.into_response();
        response.extensions_mut().insert(self);
        response
    }
}

impl From<ForeignRequest> for Problem {
    fn from(foreign: ForeignRequest) -> Self {
        Self::new(foreign.status(), foreign.code(), foreign.detail())
    }
}

impl From<StoreError> for Problem {
    fn from(error: StoreError) -> Self {
        if let StoreError::NoIndex { .. } = error {
            return Self::unusable(error.to_string());
        }
        let answer =
            Self::of_failure(error.is_permanent(), &error, "MongoDB did not complete the request");
        Self { is_unconfirmed: !error.is_permanent(), ..answer }
    }
}

/// What the client of an unconfirmed request should do, by the template of its path.
pub fn retry_advice(method: &Method, route: &str) -> &'static str {
    let area = route.strip_prefix("/v1/").unwrap_or_default();
    let is_query =
        route.starts_with("/wow/") || route.ends_with("/query") || route.ends_with("/count");
    // A member that repeats a pull gets the same events again.
    let is_read = is_query || area.ends_with("/pull");
    if method == Method::GET || (method == Method::POST && is_read) {
        "retry"
    } else if area.starts_with("aggregates/") {
        "whether it was written is unknown; retry with the same body, which takes effect once"
    } else if area.starts_with("prepare/") {
        "whether the key was changed is unknown; read it"
    } else if area.ends_with("/ack") || area.ends_with("/park") {
        "whether it was acknowledged is unknown; repeat it, which has no other effect"
    } else if area == "outbox/records" {
        "whether the record was enqueued is unknown; retry with the same id, since without an id a \
         retry enqueues another record"
    } else {
        "whether it took effect is unknown; read the current state before a retry"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instance_is_a_uri_of_the_request_id() {
        let id = "4f0c1c3e-5b0e-4f0b-9a51-0d5c5c0e7a11";
        assert_eq!(instance(id), format!("urn:uuid:{id}"));
        for (given, expected) in [
            ("my-own.id_1~", "my-own.id_1~"),
            ("a/b?c#d%e", "a%2Fb%3Fc%23d%25e"),
            ("4f0c1c3e5b0e4f0b9a510d5c5c0e7a11", "4f0c1c3e5b0e4f0b9a510d5c5c0e7a11"),
        ] {
            assert_eq!(instance(given), format!("urn:postrider:request:{expected}"));
        }
    }

    #[test]
    fn retry_advice_depends_on_the_kind_of_request() {
        for (method, route, expected) in [
            (Method::GET, "/v1/outbox/records", "retry"),
            (Method::POST, "/v1/aggregates/{name}/events/query", "retry"),
            (Method::POST, "/v1/aggregates/{name}/snapshots/count", "retry"),
            (Method::POST, "/wow/{name}/snapshot/list", "retry"),
            (Method::POST, "/v1/subscriptions/{name}/pull", "retry"),
            (Method::POST, "/v1/aggregates/{name}/{id}/events", "same body"),
            (Method::PUT, "/v1/aggregates/{name}/{id}/snapshot", "same body"),
            (Method::DELETE, "/v1/prepare/{name}/{key}", "the key was changed is unknown; read it"),
            (Method::POST, "/v1/subscriptions/{name}/ack", "repeat it"),
            (Method::POST, "/v1/subscriptions/{name}/park", "repeat it"),
            (Method::POST, "/v1/outbox/records", "without an id"),
            (Method::POST, "/v1/outbox/records/{id}/requeue", "read the current state"),
            (Method::POST, "/v1/relay/pause", "read the current state"),
        ] {
            let advice = retry_advice(&method, route);

            assert!(advice.contains(expected), "{route}: {advice}");
            assert_eq!(advice == "retry", expected == "retry", "{route}: {advice}");
        }
    }
}
