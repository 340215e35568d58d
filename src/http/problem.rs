//! What went wrong, as RFC 9457 has it: `application/problem+json` with a stable `code`.

use std::error::Error;

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use tracing::{error, warn};
use utoipa::ToSchema;

use crate::ops::origin::Foreign;
use crate::schema::SchemaError;
use crate::store::{Meaning, StoreError};
use crate::telemetry::chain;

/// After how many seconds the same again may succeed.
const AGAIN: u32 = 1;

/// What is wrong with one field, query parameter or part of the path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct FieldError {
    /// Its name, or the path to it, such as `events[0].name`; empty for the whole body.
    pub field: String,
    /// What is wrong, and what would be right.
    pub detail: String,
}

/// An answer that tells why there is no other.
#[derive(Clone, Debug)]
pub struct Problem {
    /// The status.
    pub status: StatusCode,
    code: &'static str,
    detail: String,
    errors: Vec<FieldError>,
    actual: Option<i64>,
}

/// A problem as it is sent.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ProblemBody {
    /// `urn:postrider:problem:` and the code.
    #[serde(rename = "type")]
    kind: String,
    /// The status in words.
    title: String,
    /// The HTTP status.
    #[schema(minimum = 400, maximum = 599)]
    status: u16,
    /// For programs: it never changes.
    code: &'static str,
    /// For people.
    detail: String,
    /// With `invalid`: each field that is wrong.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    errors: Vec<FieldError>,
    /// With `version_conflict` and `duplicate_aggregate`: the version that the aggregate has.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    actual: Option<i64>,
    /// As in the header `x-request-id`, and in the log.
    request_id: String,
}

impl Problem {
    fn new(status: StatusCode, code: &'static str, detail: impl Into<String>) -> Self {
        Self { status, code, detail: detail.into(), errors: Vec::new(), actual: None }
    }

    /// The body is no JSON.
    pub fn malformed(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "malformed_json", detail)
    }

    /// No token, or none that we know.
    pub fn unauthorized() -> Self {
        let detail = "a known token is needed: Authorization: Bearer …";
        Self::new(StatusCode::UNAUTHORIZED, "unauthorized", detail)
    }

    /// A token without the scope.
    pub fn forbidden(name: &str, scope: &str) -> Self {
        let detail = format!("the token {name:?} lacks the scope {scope}");
        Self::new(StatusCode::FORBIDDEN, "forbidden", detail)
    }

    /// Nothing there.
    pub fn not_found(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, "not_found", detail)
    }

    /// A path that has other methods.
    pub fn method_not_allowed() -> Self {
        let detail = "this path has other methods: see the header Allow, or /openapi.json";
        Self::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", detail)
    }

    /// What is there stands against it.
    pub fn conflict(code: &'static str, detail: impl Into<String>) -> Self {
        Self::new(StatusCode::CONFLICT, code, detail)
    }

    /// More bytes than are taken.
    pub fn too_large(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, "payload_too_large", detail)
    }

    /// A body of another kind than JSON.
    pub fn unsupported_media_type() -> Self {
        let detail = "the body is to be JSON: Content-Type: application/json";
        Self::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported_media_type", detail)
    }

    /// Fields, parameters or parts of the path that are wrong.
    pub fn invalid(errors: Vec<FieldError>) -> Self {
        let detail = match errors.as_slice() {
            [one] if one.field.is_empty() => one.detail.clone(),
            [one] => format!("{} {}", one.field, one.detail),
            several => format!("{} fields are wrong", several.len()),
        };
        Self { errors, ..Self::new(StatusCode::UNPROCESSABLE_ENTITY, "invalid", detail) }
    }

    /// One field that is wrong.
    pub fn wrong(field: impl Into<String>, detail: impl Into<String>) -> Self {
        Self::invalid(vec![FieldError { field: field.into(), detail: detail.into() }])
    }

    /// More than is worked on at a time.
    pub fn overloaded(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "overloaded", detail)
    }

    /// What it takes is not there at present.
    pub fn unavailable(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable", detail)
    }

    /// The same problem, with the version at which the aggregate is.
    pub fn at_version(self, actual: i64) -> Self {
        Self { actual: Some(actual), ..self }
    }

    /// MongoDB that is away comes back; that it refuses is for a person to mend.
    pub fn of_meaning(
        meaning: Meaning,
        error: &(dyn Error + 'static),
        detail: impl Into<String>,
    ) -> Self {
        match meaning {
            Meaning::Transient => {
                warn!(error = chain(error), "a request was not done");
                Self::unavailable(detail)
            }
            Meaning::Permanent => Self::fault(error),
        }
    }

    /// A collection that can't be used: its own words name the remedy, for whoever may apply it,
    /// and quote nothing. Nothing was written.
    pub fn of_schema(error: &SchemaError) -> Self {
        let told = error.to_string();
        if let SchemaError::Store(source) = error {
            return Self::of_meaning(source.meaning(), source, told);
        }
        Self::unusable(told)
    }

    fn unusable(told: String) -> Self {
        warn!(error = told, "a request was not done");
        Self::unavailable(told)
    }

    /// What the log tells, and the answer does not.
    pub fn fault(error: &(dyn Error + 'static)) -> Self {
        error!(error = chain(error), "a request failed");
        Self::internal()
    }

    /// A fault of ours, or of whoever set MongoDB up; the log has it under the request's id.
    pub fn internal() -> Self {
        let detail = "this is no fault of the request's; the log tells more by its id";
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", detail)
    }

    /// What is wrong with which field, for whoever is not answered over HTTP.
    pub fn into_errors(self) -> Vec<FieldError> {
        self.errors
    }

    /// The answer itself.
    pub fn render(self, request_id: &str) -> Response {
        let status = self.status;
        let body = ProblemBody {
            kind: format!("urn:postrider:problem:{}", self.code),
            title: status.canonical_reason().unwrap_or_default().to_owned(),
            status: status.as_u16(),
            code: self.code,
            detail: self.detail,
            errors: self.errors,
            actual: self.actual,
            request_id: request_id.to_owned(),
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
                headers.insert(header::RETRY_AFTER, AGAIN.into());
            }
            _ => {}
        }
        response
    }
}

/// Without a body as yet: the guard renders it, who knows the request's id.
impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let mut response = self.status.into_response();
        response.extensions_mut().insert(self);
        response
    }
}

impl From<Foreign> for Problem {
    fn from(foreign: Foreign) -> Self {
        Self::new(foreign.status(), foreign.code(), foreign.detail())
    }
}

impl From<StoreError> for Problem {
    fn from(error: StoreError) -> Self {
        if let StoreError::NoIndex { .. } = error {
            return Self::unusable(error.to_string());
        }
        let detail = "MongoDB did not do it; whether a write took effect is unknown, and to repeat \
                      it with the same id is safe";
        Self::of_meaning(error.meaning(), &error, detail)
    }
}
