//! The id of a record is compared as a value.

use bson::raw::RawDocumentBuf;
use bson::{Bson, Regex, doc};
use postrider::ids::raw_text;
use reqwest::Method;

use crate::api::Api;
use crate::support::outbox::{TestOutbox, record};

const RECORDS: &str = "/v1/outbox/records";

#[fixture::test]
async fn record_id_that_is_a_condition_is_refused_and_changes_nothing() {
    let outbox = TestOutbox::new().await;
    let dead = |id: &str| {
        let mut dead = record(id, "k");
        dead.extend(doc! { "status": "dead", "deadAt": bson::DateTime::now() });
        dead
    };
    outbox.insert(["a", "b"].map(dead)).await;
    let api = Api::start(&outbox, &[]).await;
    let regex = Regex { pattern: "^(a+)+$".try_into().unwrap(), options: "".try_into().unwrap() };

    for id in [
        doc! { "$gt": "" }.into(),
        doc! { "$regex": "^(a+)+$" }.into(),
        doc! { "$in": ["a"] }.into(),
        Bson::RegularExpression(regex),
        Bson::Array(vec!["a".into()]),
        Bson::Undefined,
        Bson::JavaScriptCode("sleep(1000)".to_owned()),
    ] {
        let raw = raw_text(&RawDocumentBuf::try_from(&doc! { "_id": &id }).unwrap());
        let path = format!("{RECORDS}/{raw}");
        let calls = [
            (Method::GET, path.clone()),
            (Method::DELETE, path.clone()),
            (Method::DELETE, format!("{path}?confirm=true")),
            (Method::POST, format!("{path}/requeue?redeliver=true")),
        ];
        for (method, path) in calls {
            let answer = api.call(method, &path).await;
            assert_eq!(answer.wrong(), ["id"], "{id}: {answer:?}");
        }
        let listed = api.get(&format!("{RECORDS}?after={raw}")).await;
        assert_eq!(listed.wrong(), ["after"], "{id}: {listed:?}");
    }

    assert_eq!(outbox.count(doc! { "status": "dead" }).await, 2);
    api.stop().await;
}

/// A plain equality finds an array that has the text, too.
#[fixture::test]
async fn key_and_type_of_a_list_are_compared_as_values() {
    let outbox = TestOutbox::new().await;
    let mut other = record("other", "k");
    other.insert("key", bson::bson!(["k"]));
    other.insert("type", bson::bson!(["T"]));
    outbox.insert([record("own", "k"), other]).await;
    let api = Api::start(&outbox, &[]).await;

    for query in ["key=k", "type=T", "status=pending&key=k"] {
        let listed = api.get(&format!("{RECORDS}?{query}")).await;
        let items = listed.body["items"].as_array().unwrap();
        assert_eq!((items.len(), &items[0]["id"]), (1, &"own".into()), "{query}: {listed:?}");
    }
    api.stop().await;
}
