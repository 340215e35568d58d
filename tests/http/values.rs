//! Values of JSON: their numbers and nesting come back as they were sent, or are refused with their field.

use mongodb::bson::{Bson, Document, doc};
use reqwest::Method;

use crate::api::{Answer, Api, converse};
use crate::support::outbox::TestOutbox;

const EVENTS: &str = "/v1/aggregates/order/o-1/events";
const SNAPSHOT: &str = "/v1/aggregates/order/o-1/snapshot";
const RECORDS: &str = "/v1/outbox/records";
const KEY: &str = "/v1/prepare/username/ada";

/// Numbers, each as it is written again.
const NUMBERS: &str = r#"[0,-1,2147483648,9223372036854775807,0.1,-0.0,1.0,0.30000000000000004,1e+300,5e-324,
    123456789012345.6789,-123456789012345.67890,1E-400,9223372036854775809,1234567890123456789012345678901234,
    9007199254740993.0]"#;

/// The part of each kind of value in a request: its call, what is before it and behind it, and its field.
const PLACES: [(Method, &str, &str, &str, &str); 4] = [
    (
        Method::POST,
        EVENTS,
        r#"{"requestId":"r","events":[{"name":"E","body":{"n":"#,
        "}}]}",
        "events[0].body.n",
    ),
    (Method::PUT, SNAPSHOT, r#"{"version":1,"state":{"n":"#, "}}", "state.n"),
    (Method::POST, RECORDS, r#"{"id":"m-1","type":"T","payload":{"n":"#, "}}", "payload.n"),
    (Method::POST, KEY, r#"{"value":{"n":"#, "}}", "value.n"),
];

async fn send(api: &Api, method: &Method, path: &str, body: String) -> Answer {
    let request = api.request(method.clone(), path).header("content-type", "application/json");
    Answer::of(request.body(body)).await
}

#[fixture::test]
async fn numbers_come_back_as_they_were_sent() {
    let outbox = TestOutbox::new().await;
    let api = Api::start(&outbox, &[]).await;
    let numbers: String = NUMBERS.split_whitespace().collect();

    for (method, path, before, behind, _) in &PLACES {
        let sent = send(&api, method, path, format!("{before}{numbers}{behind}")).await;
        assert!(matches!(sent.status, 200 | 201), "{sent:?}");
    }

    let expected = format!(r#"{{"n":{numbers}}}"#);
    let queried = r#"{"condition":{"operator":"ALL"}}"#.to_owned();
    for (method, path, body) in [
        (Method::GET, EVENTS, String::new()),
        (Method::GET, SNAPSHOT, String::new()),
        (Method::GET, &*format!("{RECORDS}/m-1"), String::new()),
        (Method::GET, KEY, String::new()),
        (Method::POST, "/v1/aggregates/order/events/query", queried.clone()),
        (Method::POST, "/v1/aggregates/order/snapshots/query", queried),
    ] {
        let answer = send(&api, &method, path, body).await;
        assert!(answer.status == 200 && answer.text.contains(&expected), "{path}: {answer:?}");
    }
    let stored = outbox
        .collections
        .database()
        .collection::<Document>("order_snapshot")
        .find_one(doc! {})
        .await;
    let stored = stored.unwrap().unwrap();
    let types = stored.get_document("state").unwrap().get_array("n").unwrap();
    let is_decimal = |number: &Bson| matches!(number, Bson::Decimal128(_));
    assert_eq!(
        types.iter().map(is_decimal).collect::<Vec<_>>(),
        (0..16).map(|at| at > 9).collect::<Vec<_>>()
    );
    api.stop().await;
}

#[fixture::test]
async fn condition_compares_numbers_as_they_are_stored() {
    let outbox = TestOutbox::new().await;
    let api = Api::start(&outbox, &["queries.raw=true"]).await;
    let (method, path, before, behind, _) = &PLACES[1];
    let count = async |condition: &str| {
        let body = format!(r#"{{"condition":{condition}}}"#);
        let answer = send(&api, &Method::POST, "/v1/aggregates/order/snapshots/count", body).await;
        answer.body["count"].as_i64().unwrap_or_else(|| panic!("{condition}: {answer:?}"))
    };
    for (stored, other) in [
        ("123456789012345.6789", "123456789012345.6788"),
        ("0.1", "0.10000000000000001"),
        ("9223372036854775809", "9223372036854775808"),
        ("1e-400", "0.0"),
    ] {
        let saved = send(&api, method, path, format!("{before}{stored}{behind}")).await;
        assert_eq!(saved.status, 200, "{saved:?}");
        for (number, expected) in [(stored, 1), (other, 0)] {
            let of = |operator, value| {
                format!(r#"{{"field":"state.n","operator":"{operator}","value":{value}}}"#)
            };
            let raw = format!(r#"{{"operator":"RAW","value":"{{\"state.n\":{number}}}"}}"#);

            assert_eq!(count(&of("EQ", number)).await, expected, "{stored} {number}");
            assert_eq!(
                count(&of("IN", &format!("[{number}]"))).await,
                expected,
                "{stored} {number}"
            );
            assert_eq!(count(&raw).await, expected, "{stored} {number}");
        }
    }
    api.stop().await;
}

#[fixture::test]
async fn value_that_cannot_be_stored_is_refused_with_its_field() {
    let outbox = TestOutbox::new().await;
    let api = Api::start(&outbox, &[]).await;
    let nested = |levels: usize| format!("{}1{}", r#"{"d":"#.repeat(levels), "}".repeat(levels));
    for (method, path, before, behind, field) in &PLACES {
        for value in ["1e400", "1e-6177", "12345678901234567890123456789012345", r#""\ud800""#] {
            let refused = send(&api, method, path, format!("{before}{value}{behind}")).await;
            assert_eq!(refused.wrong(), [*field], "{value}");
        }
        // The value around it is the first level.
        for levels in [100, 124, 125, 169, 1_000, 20_000] {
            let refused =
                send(&api, method, path, format!("{before}{}{behind}", nested(levels))).await;
            let wrong = refused.wrong();
            assert!(wrong.len() == 1 && wrong[0].starts_with(field), "{levels}: {wrong:?}");
            let detail = refused.body["errors"][0]["detail"].as_str().unwrap();
            assert_eq!(detail, "is nested deeper than 100 levels");
        }
        let accepted = send(&api, method, path, format!("{before}{}{behind}", nested(99))).await;
        assert!(matches!(accepted.status, 200 | 201), "{accepted:?}");
    }
    for path in [EVENTS, SNAPSHOT, KEY, &format!("{RECORDS}/m-1")] {
        let read = api.get(path).await;
        assert!(read.status == 200 && read.text.contains(&nested(99)), "{read:?}");
    }
    api.stop().await;
}

#[fixture::test]
async fn id_that_a_proxy_or_a_consumer_would_change_is_refused() {
    let outbox = TestOutbox::new().await;
    let api = Api::start(&outbox, &[]).await;
    let body = r#"{"requestId":"r","events":[{"name":"E","body":{}}]}"#;
    let head = "host: localhost\r\nconnection: close\r\ncontent-type: application/json\r\n";
    let length = body.len();
    for id in ["%00", "a%00b", ".", "..", "%2e", "%2E%2e", ".%2e"] {
        for (method, path) in [
            ("POST", format!("/v1/aggregates/order/{id}/events")),
            ("GET", format!("/v1/aggregates/order/{id}/events")),
            ("PUT", format!("/v1/aggregates/order/{id}/snapshot")),
            ("POST", format!("/v1/aggregates/order/{id}/erase")),
            ("POST", format!("/v1/prepare/username/{id}")),
            ("GET", format!("/v1/outbox/records/{id}")),
            ("GET", format!("/v1/subscriptions/{id}")),
        ] {
            let request =
                format!("{method} {path} HTTP/1.1\r\n{head}content-length: {length}\r\n\r\n{body}");
            let answer = converse(api.connect().await, &request).await;

            assert!(answer.starts_with("HTTP/1.1 422 "), "{method} {path}: {answer}");
            assert!(answer.contains("\"code\":\"invalid\""), "{method} {path}: {answer}");
        }
    }
    let collections = outbox.collections.database().list_collection_names().await.unwrap();
    assert!(!collections.iter().any(|name| name.starts_with("order")), "{collections:?}");
    for id in ["...", "a..b", ".a", "a%2Fb"] {
        let events = api.post_text(&format!("/v1/aggregates/order/{id}/events"), body).await;
        assert_eq!(events.status, 201, "{id}: {events:?}");
    }
    api.stop().await;
}

#[fixture::test]
async fn body_in_another_form_is_refused_by_its_name() {
    let outbox = TestOutbox::new().await;
    let api = Api::start(&outbox, &[]).await;
    let body = r#"{"requestId":"r","events":[{"name":"E","body":{}}]}"#;
    let send = async |kind: &str, coding: &str| {
        let request = api.request(Method::POST, EVENTS).header("content-type", kind);
        let request = request.header("content-encoding", coding).body(body);
        Answer::of(request).await
    };
    for (kind, coding, named) in [
        ("application/json", "gzip", "Content-Encoding gzip"),
        ("application/json", "identity, br", "Content-Encoding br"),
        ("application/json; charset=utf-16", "identity", "utf-16"),
        ("application/json; charset=\"ISO-8859-1\"", "identity", "ISO-8859-1"),
    ] {
        let refused = send(kind, coding).await;

        refused.is(415, "unsupported_media_type");
        assert!(refused.body["detail"].as_str().unwrap().contains(named), "{refused:?}");
    }
    let accepted = send("application/json; charset=UTF-8", "identity").await;
    assert_eq!(accepted.status, 201, "{accepted:?}");
    api.stop().await;
}
