//! Bodies: JSON as it was written, and BSON that says the same.

use axum::extract::{FromRequest, Request};
use axum::http::{HeaderMap, header};
use bson::{Bson, Document};
use serde_json::{Map, Value};

use crate::http::fields::Fields;
use crate::http::problem::{FieldError, Problem};
use crate::http::scan;
use crate::http::state::Shared;

/// Documents within documents that MongoDB takes for certain, whoever wraps them once more.
const DEEPEST: usize = 100;

/// A body that is a JSON object.
#[derive(Debug)]
pub struct Body(pub Fields);

impl FromRequest<Shared> for Body {
    type Rejection = Problem;

    async fn from_request(request: Request, shared: &Shared) -> Result<Self, Problem> {
        if !is_json(request.headers()) {
            return Err(Problem::unsupported_media_type());
        }
        let bytes = bytes(request, shared.max_body).await?;
        let text = std::str::from_utf8(&bytes).map_err(|_| Problem::malformed("is not UTF-8"))?;
        let value: Value = serde_json::from_str(text)
            // It tells the place, and quotes nothing.
            .map_err(|error| Problem::malformed(format!("the body is no JSON: {error}")))?;
        let Value::Object(fields) = value else {
            return Err(Problem::wrong("", "the body is to be an object"));
        };
        Ok(Self(Fields::new(fields, scan::faults(text))))
    }
}

/// That there is no body, but for an empty object: what it asked for would not be done.
#[derive(Debug)]
pub struct NoBody;

impl FromRequest<Shared> for NoBody {
    type Rejection = Problem;

    async fn from_request(request: Request, shared: &Shared) -> Result<Self, Problem> {
        let is_empty = |value: Value| value.as_object().is_some_and(Map::is_empty);
        match bytes(request, shared.max_body).await {
            Ok(bytes) if bytes.is_empty() => Ok(Self),
            Ok(bytes) if serde_json::from_slice(&bytes).is_ok_and(is_empty) => Ok(Self),
            _ => Err(Problem::wrong(
                "",
                "there is to be no body: the path and the query say all of this request",
            )),
        }
    }
}

fn is_json(headers: &HeaderMap) -> bool {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    let kind = kind.unwrap_or_default().split(';').next().unwrap_or_default();
    kind.trim().eq_ignore_ascii_case("application/json")
}

async fn bytes(request: Request, limit: usize) -> Result<axum::body::Bytes, Problem> {
    let too_large = || Problem::too_large(format!("a body has {limit} bytes at most"));
    let length = request.headers().get(header::CONTENT_LENGTH);
    let length = length.and_then(|length| length.to_str().ok()?.parse::<usize>().ok());
    if length.is_some_and(|length| length > limit) {
        return Err(too_large());
    }
    // One byte more than is taken tells a body that is too long from one that broke off.
    match axum::body::to_bytes(request.into_body(), limit).await {
        Ok(bytes) => Ok(bytes),
        Err(error) => {
            let error = error.into_inner();
            let is_length = error.is::<http_body_util::LengthLimitError>();
            Err(if is_length { too_large() } else { Problem::malformed("the body broke off") })
        }
    }
}

/// The same as BSON: integers are int32 or int64, objects stay as written. What BSON has no room
/// for is told by its path.
pub fn bson(path: &str, value: Value, faults: &mut Vec<FieldError>) -> Bson {
    Bsoning { faults }.value(path, value, 0)
}

/// The same of an object.
pub fn document(path: &str, fields: Map<String, Value>, faults: &mut Vec<FieldError>) -> Document {
    match bson(path, Value::Object(fields), faults) {
        Bson::Document(document) => document,
        _ => Document::new(),
    }
}

struct Bsoning<'a> {
    faults: &'a mut Vec<FieldError>,
}

impl Bsoning<'_> {
    fn wrong(&mut self, field: &str, detail: impl Into<String>) -> Bson {
        self.faults.push(FieldError { field: field.to_owned(), detail: detail.into() });
        Bson::Null
    }

    fn value(&mut self, path: &str, value: Value, depth: usize) -> Bson {
        if depth > DEEPEST {
            return self.wrong(path, format!("is nested deeper than {DEEPEST} levels"));
        }
        match value {
            Value::Null => Bson::Null,
            Value::Bool(truth) => Bson::Boolean(truth),
            Value::String(text) => Bson::String(text),
            Value::Number(number) => match (number.as_i64(), number.as_f64()) {
                (Some(integer), _) => match i32::try_from(integer) {
                    Ok(small) => Bson::Int32(small),
                    Err(_) => Bson::Int64(integer),
                },
                // Integers beyond 64 bits were found by the scan.
                (None, float) => Bson::Double(float.unwrap_or(f64::NAN)),
            },
            Value::Array(items) => {
                let items = items.into_iter().enumerate();
                let item = |(at, item)| self.value(&format!("{path}[{at}]"), item, depth + 1);
                Bson::Array(items.map(item).collect())
            }
            Value::Object(fields) => {
                let mut document = Document::new();
                for (name, value) in fields {
                    let path = join(path, &name);
                    if name.contains('\0') {
                        self.wrong(&path, "has a NUL in its name, which BSON cannot hold");
                        continue;
                    }
                    let value = self.value(&path, value, depth + 1);
                    document.insert(name, value);
                }
                Bson::Document(document)
            }
        }
    }
}

/// The path to a field below another.
pub(super) fn join(path: &str, name: &str) -> String {
    match path {
        "" => name.to_owned(),
        path => format!("{path}.{name}"),
    }
}

#[cfg(test)]
mod tests {
    use bson::bson;
    use serde_json::json;

    use super::*;

    fn converted(value: Value) -> (Bson, Vec<FieldError>) {
        let mut faults = Vec::new();
        (bson("payload", value, &mut faults), faults)
    }

    #[test]
    fn plain_json_stays_as_written_and_never_becomes_extended_json() {
        let (value, faults) = converted(json!({
            "b": 1, "a": { "$oid": "65a000000000000000000000" },
            "long": 3_000_000_000_i64, "float": 1.0, "null": null, "list": [true, "x"],
        }));

        assert!(faults.is_empty());
        assert_eq!(
            value,
            bson!({
                "b": 1, "a": { "$oid": "65a000000000000000000000" },
                "long": 3_000_000_000_i64, "float": 1.0, "null": null, "list": [true, "x"],
            })
        );
    }

    #[test]
    fn what_bson_has_no_room_for_is_told_by_its_path() {
        let deep = (0..101).fold(json!(1), |inner, _| json!([inner]));
        let fits = (0..100).fold(json!(1), |inner, _| json!([inner]));

        assert!(converted(fits).1.is_empty());
        assert!(converted(deep).1[0].detail.contains("nested"));
        assert_eq!(converted(json!({ "a": { "b\0": 1 } })).1[0].field, "payload.a.b\0");
    }
}
