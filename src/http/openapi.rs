//! `/openapi.json`: what the calls say of themselves, and what holds for all of them.

use serde_json::{Value, json};
use utoipa::OpenApi;
use utoipa::openapi::OpenApi as Description;

use crate::http::problem::{FieldError, ProblemBody};
use crate::http::schemas::{RECORD_ID, anything, list_of, object};
use crate::http::{events, outbox, prepare, snapshots};
use crate::outbox::list::{Chapter, Sort};
use crate::outbox::stats::GroupBy;

/// See [`AggregateName`](crate::names::AggregateName).
const AGGREGATE_NAME: &str = "^(?!system\\.)[a-zA-Z][a-zA-Z0-9_.-]{0,63}$";

#[derive(OpenApi)]
#[openapi(components(schemas(ProblemBody, FieldError)))]
struct Common;

/// The whole description as JSON.
pub fn described(calls: Description) -> String {
    let mut whole = Common::openapi();
    whole.merge(calls);
    // Nothing in it can fail to serialise.
    let mut whole = serde_json::to_value(whole).unwrap_or_default();
    whole["info"] = json!({
        "title": "Postrider",
        "version": env!("CARGO_PKG_VERSION"),
        "description": "Transactional outbox relay and event store for MongoDB.",
        "license": { "name": "Apache-2.0", "identifier": "Apache-2.0" },
    });
    whole["components"]["securitySchemes"] = json!({
        "token": { "type": "http", "scheme": "bearer", "description": "one of api.tokens" },
    });
    whole["components"]["schemas"]["Json"] = anything();
    whole["components"]["schemas"]["JsonObject"] = object();
    whole["components"]["schemas"]["Append"] = events::append_body();
    whole["components"]["schemas"]["EventStream"] = events::event_stream();
    whole["components"]["schemas"]["EventStreams"] = list_of("EventStream");
    whole["components"]["schemas"]["SaveSnapshot"] = snapshots::save_body();
    whole["components"]["schemas"]["Snapshot"] = snapshots::snapshot();
    whole["components"]["schemas"]["Prepare"] = prepare::prepare_body();
    whole["components"]["schemas"]["Reprepare"] = prepare::reprepare_body();
    whole["components"]["schemas"]["Prepared"] = prepare::prepared();
    whole["components"]["schemas"]["NewRecord"] = outbox::new_record();
    whole["components"]["schemas"]["Requeue"] = outbox::requeue();
    whole["components"]["headers"] = json!({
        "RequestId": {
            "description": "the client's own x-request-id where it is sane, else a new one",
            "required": true,
            "schema": { "type": "string" },
        },
    });
    for (path, calls) in whole["paths"].as_object_mut().into_iter().flatten() {
        for (_, call) in calls.as_object_mut().into_iter().flatten() {
            common(path, call);
        }
    }
    format!("{whole:#}\n")
}

/// What every call has: a token, a request id, and problems.
fn common(path: &str, call: &mut Value) {
    call["security"] = json!([{ "token": [] }]);
    let has_body = !call["requestBody"].is_null();
    if has_body {
        call["requestBody"]["required"] = true.into();
    }
    for parameter in call.get_mut("parameters").and_then(Value::as_array_mut).into_iter().flatten()
    {
        let schema = match parameter["name"].as_str() {
            Some("id" | "after") if path.starts_with("/v1/outbox") => {
                json!({ "type": "string", "pattern": RECORD_ID })
            }
            Some("name") => json!({ "type": "string", "pattern": AGGREGATE_NAME }),
            Some("id") => json!({ "type": "string", "minLength": 1, "maxLength": 255 }),
            Some("key") if path.starts_with("/v1/prepare") => {
                json!({ "type": "string", "minLength": 1, "maxLength": 255 })
            }
            Some("fromTime" | "toTime") => json!({ "anyOf": [
                { "type": "integer", "minimum": 0, "maximum": i64::MAX },
                { "type": "string", "format": "date-time" },
            ] }),
            Some("status") => json!({ "type": "string", "enum": Chapter::WORDS }),
            Some("sort") => json!({ "type": "string", "enum": Sort::WORDS }),
            Some("by") => json!({ "type": "string", "enum": GroupBy::WORDS }),
            _ => continue,
        };
        parameter["schema"] = schema;
    }
    let mut problems = vec!["401", "403", "421", "422", "500", "503"];
    problems.extend(has_body.then_some(["400", "413", "415"]).into_iter().flatten());
    if let Some(responses) = call["responses"].as_object_mut() {
        for status in problems {
            responses.entry(status).or_insert_with(|| problem(status));
        }
        for (status, response) in responses.iter_mut() {
            let is_problem = status.starts_with(['4', '5']);
            if is_problem {
                response["content"] = json!({ "application/problem+json": {
                    "schema": { "$ref": "#/components/schemas/ProblemBody" },
                } });
            }
            response["headers"]["x-request-id"] =
                json!({ "$ref": "#/components/headers/RequestId" });
            let more = match status.as_str() {
                "401" => Some(("WWW-Authenticate", json!({ "type": "string" }))),
                "503" => Some(("Retry-After", json!({ "type": "integer" }))),
                _ => None,
            };
            if let Some((name, schema)) = more {
                response["headers"][name] = json!({ "required": true, "schema": schema });
            }
        }
        responses.sort_keys();
    }
}

fn problem(status: &str) -> Value {
    json!({ "description": match status {
        "400" => "`malformed_json`",
        "401" => "`unauthorized`: no known token",
        "403" => "`forbidden`: the token lacks the scope; `foreign_origin`: another site's page asks, and no token is configured",
        "421" => "`foreign_host`: `Host` is not loopback, and no token is configured",
        "413" => "`payload_too_large`",
        "415" => "`unsupported_media_type`",
        "422" => "`invalid`: `errors` names each field",
        "503" => "`unavailable` or `overloaded`: try again after Retry-After",
        _ => "`internal`",
    } })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::blessed::compare;

    #[test]
    fn the_file_in_the_repository_is_what_is_served() {
        compare("schema/openapi.json", &described(crate::http::calls().into_openapi()));
    }
}
