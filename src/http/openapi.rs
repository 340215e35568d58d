//! Builds `/openapi.json` from the declarations of the calls.

use serde_json::Value;
use utoipa::OpenApi;
use utoipa::openapi::path::Operation;
use utoipa::openapi::schema::{AllOfBuilder, ObjectBuilder, Ref, Type};
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityRequirement, SecurityScheme};
use utoipa::openapi::{
    ContentBuilder, HeaderBuilder, OpenApi as Description, RefOr, Response, ResponseBuilder,
};

use crate::events::Flaw;
use crate::events::query::json::{ConditionOptions, Operator};
use crate::http::problem::ProblemAnswer;
use crate::http::{outbox, prepare};

/// The parts that no call declares.
#[derive(OpenApi)]
#[openapi(
    info(
        title = "Postrider",
        description = "Postrider is a transactional outbox relay and an event store for MongoDB. The documentation of the API is docs/http.md.",
        license(name = "Apache-2.0", identifier = "Apache-2.0"),
    ),
    servers((url = "http://127.0.0.1:8080", description = "the default of api.listen")),
    tags(
        (name = "events", description = "Append events to aggregates and read them; end and erase streams (docs/events.md)."),
        (name = "snapshots", description = "Save and read the state of an aggregate as of a version."),
        (name = "queries", description = "Find events and snapshots by conditions (docs/queries.md)."),
        (name = "feed", description = "Read the events of all aggregates in one order (docs/feed.md)."),
        (name = "subscriptions", description = "Readers of the feed whose positions Postrider stores (docs/subscriptions.md)."),
        (name = "prepare", description = "Reserve keys, such as user names, for one of many clients."),
        (name = "outbox", description = "Enqueue, inspect, requeue and discard records of the outbox."),
        (name = "fleet", description = "Instances, partitions, and the pause of all relays."),
        (name = "wow", description = "Queries in the form of the Wow framework, with api.wow_routes = true."),
    ),
    // (Those of conditions, which contain themselves, are not found by themselves.)
    components(schemas(ProblemAnswer, Flaw, Operator, ConditionOptions))
)]
struct Common;

/// Problems of every call.
const PROBLEMS: [(&str, &str); 6] = [
    ("401", "`unauthorized`: no token, or an unknown one"),
    (
        "403",
        "`forbidden`: the token lacks the scope, or is limited to less; `foreign_origin`: the request comes from a page of another site, and no token is configured",
    ),
    ("421", "`foreign_host`: `Host` is not loopback, and no token is configured"),
    ("422", "`invalid`: `errors` names each field"),
    ("500", "`internal`: an error of the server; the log has more"),
    (
        "503",
        "`unavailable` or `overloaded`: repeat the request after `Retry-After`, with the same id",
    ),
];

/// Problems of every call with a body.
const BODY_PROBLEMS: [(&str, &str); 3] = [
    ("400", "`malformed_json`: the body is not JSON"),
    ("413", "`payload_too_large`: the body exceeds `api.max_body`"),
    (
        "415",
        "`unsupported_media_type`: the body must be `application/json` in UTF-8, without `Content-Encoding`",
    ),
];

/// The description as JSON.
pub fn describe(calls: Description) -> String {
    let mut whole = Common::openapi();
    whole.merge(calls);
    for item in whole.paths.paths.values_mut() {
        let calls = [&mut item.get, &mut item.put, &mut item.post, &mut item.delete];
        calls.into_iter().flatten().for_each(complete);
    }
    if let Some(components) = &mut whole.components {
        let token = HttpBuilder::new()
            .scheme(HttpAuthScheme::Bearer)
            .description(Some("One of `api.tokens`. Without configured tokens none is needed."))
            .build();
        components.add_security_scheme("token", SecurityScheme::Http(token));
        // Rules about several members, which derives cannot express.
        for (name, rule) in [
            ("PrepareRequest", prepare::one_end_schema()),
            ("ReprepareRequest", prepare::one_end_schema()),
            ("RecordRequest", outbox::one_payload_schema()),
        ] {
            if let Some(members) = components.schemas.remove(name) {
                let both = AllOfBuilder::new().item(members).item(rule).into();
                components.schemas.insert(name.to_owned(), both);
            }
        }
    }
    // Its serialisation cannot fail.
    let mut whole = serde_json::to_value(whole).unwrap_or_default();
    require_headers(&mut whole);
    format!("{whole:#}\n")
}

/// Adds the parts of every call: an id, a token, a request id, and problems.
fn complete(call: &mut Operation) {
    call.operation_id = call.operation_id.as_deref().map(camel_case);
    call.security = Some(vec![SecurityRequirement::new::<_, [&str; 0], &str>("token", [])]);
    let of_body = if call.request_body.is_some() { BODY_PROBLEMS.as_slice() } else { &[] };
    for (status, description) in PROBLEMS.iter().chain(of_body) {
        let answers = &mut call.responses.responses;
        answers.entry((*status).to_owned()).or_insert_with(|| Response::new(*description).into());
    }
    for (status, answer) in &mut call.responses.responses {
        let RefOr::T(answer) = answer else { continue };
        let mut built = ResponseBuilder::from(std::mem::replace(answer, Response::new("")));
        if status.starts_with(['4', '5']) {
            let problem = Ref::from_schema_name("ProblemAnswer");
            let content = ContentBuilder::new().schema(Some(problem)).build();
            built = built.content("application/problem+json", content);
        }
        let header = |kind, description| {
            let schema = ObjectBuilder::new().schema_type(kind);
            HeaderBuilder::new().schema(Some(schema)).description(Some(description)).build()
        };
        let id = "the id of the request: that of the client if it has up to 128 printable characters, else a new one";
        built = built.header("x-request-id", header(Type::String, id));
        built = match status.as_str() {
            "401" => built.header("WWW-Authenticate", header(Type::String, "Bearer")),
            "503" => built.header("Retry-After", header(Type::Integer, "seconds")),
            _ => built,
        };
        *answer = built.build();
    }
}

/// A name of Rust, as the clients that are generated from the description write it.
fn camel_case(name: &str) -> String {
    let mut words = name.split('_');
    let first = words.next().unwrap_or_default().to_owned();
    words.fold(first, |mut name, word| {
        let mut chars = word.chars();
        name.extend(chars.next().map(|first| first.to_ascii_uppercase()));
        name.push_str(chars.as_str());
        name
    })
}

/// Marks all headers of answers as required; utoipa has no field for that.
fn require_headers(whole: &mut Value) {
    fn members<'a>(value: &'a mut Value, name: &str) -> impl Iterator<Item = &'a mut Value> {
        let members = value.get_mut(name).and_then(Value::as_object_mut);
        members.into_iter().flat_map(serde_json::Map::values_mut)
    }
    let items = members(whole, "paths").filter_map(Value::as_object_mut);
    let calls = items.flat_map(serde_json::Map::values_mut);
    for header in calls
        .flat_map(|call| members(call, "responses"))
        .flat_map(|answer| members(answer, "headers"))
    {
        header["required"] = true.into();
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::blessed::compare;

    #[test]
    fn file_in_the_repository_is_current() {
        compare("schema/openapi.json", &describe(crate::http::calls(true).into_openapi()));
    }

    #[test]
    fn every_reference_leads_to_a_schema() {
        fn references(value: &Value, found: &mut BTreeSet<String>) {
            match value {
                Value::Object(members) => {
                    let target = members.get("$ref").and_then(Value::as_str);
                    found.extend(target.map(str::to_owned));
                    members.values().for_each(|value| references(value, found));
                }
                Value::Array(items) => items.iter().for_each(|item| references(item, found)),
                _ => {}
            }
        }
        let text = describe(crate::http::calls(true).into_openapi());
        let whole: Value = serde_json::from_str(&text).unwrap();
        let mut found = BTreeSet::new();

        references(&whole, &mut found);

        assert!(found.len() > 20);
        found.retain(|target| whole.pointer(target.trim_start_matches('#')).is_none());
        assert_eq!(found, BTreeSet::new());
    }

    #[test]
    fn times_in_queries_are_0_or_above() {
        let text = describe(crate::http::calls(true).into_openapi());
        let whole: Value = serde_json::from_str(&text).unwrap();
        let call = &whole["paths"]["/v1/aggregates/{name}/{id}/events"]["get"];
        let parameters = call["parameters"].as_array().unwrap();
        for name in ["fromTime", "toTime"] {
            let parameter = parameters.iter().find(|parameter| parameter["name"] == name).unwrap();
            assert_eq!(parameter["schema"]["anyOf"][1]["minimum"], 0, "{parameter}");
        }
    }

    #[test]
    fn ids_of_calls_are_unique_and_begin_with_a_verb() {
        let text = describe(crate::http::calls(true).into_openapi());
        let whole: Value = serde_json::from_str(&text).unwrap();
        let items = whole["paths"].as_object().unwrap().values();
        let calls = items.flat_map(|item| item.as_object().unwrap().values());

        let mut ids = BTreeSet::new();

        for call in calls {
            let id = call["operationId"].as_str().unwrap();
            let rest = id.trim_start_matches(|c: char| c.is_ascii_lowercase());
            assert!(rest.len() < id.len(), "{id}");
            assert!(rest.starts_with(|c: char| c.is_ascii_uppercase()), "{id}");
            assert!(rest.bytes().all(|byte| byte.is_ascii_alphanumeric()), "{id}");
            assert!(ids.insert(id), "{id}");
        }
        assert!(ids.len() >= 23);
    }

    #[test]
    fn answers_of_calls_have_a_type() {
        let calls = crate::http::calls(true).into_openapi();
        for item in calls.paths.paths.into_values() {
            for call in [item.get, item.put, item.post, item.delete].into_iter().flatten() {
                for (status, answer) in call.responses.responses {
                    let RefOr::T(answer) = answer else { continue };
                    let is_typed = answer.content.values().all(
                        |content| matches!(content, RefOr::T(content) if content.schema.is_some()),
                    );
                    let is_empty = answer.content.is_empty();
                    assert!(is_typed && (is_empty == (status.as_str() >= "204")), "{status}");
                }
            }
        }
    }
}
