//! Calls that read much or for long, many at a time: they delay no appends.

use futures_util::future::{join_all, select_all};
use reqwest::Method;
use serde_json::{Value, json};

use crate::api::{Answer, Api};
use crate::limits::behind_a_small_pool;
use crate::support::fault_proxy::FaultProxy;
use crate::support::outbox::{TestOutbox, eventually};

/// The connections of appends.
const POOL: u32 = 6;

/// The calls that are made at a time: more than there are connections for appends.
const CALLS: usize = 16;

/// The command that begins with this.
fn command(name: &str, collection: &str) -> String {
    let length = char::from(u8::try_from(collection.len() + 1).unwrap());
    format!("{name}\0{length}\0\0\0{collection}\0")
}

async fn append(api: &Api, path: &str, request: usize) {
    let event = json!({ "name": "Placed", "body": { "text": "x".repeat(1_000) } });
    let body = json!({ "requestId": format!("r-{request}"), "events": [event] });
    let path = format!("/v1/aggregates/{path}/events");
    assert_eq!(api.post(&path, &body).await.status, 201);
}

/// Makes these calls, of which MongoDB answers no `silenced` command, and appends and reads meanwhile.
async fn meanwhile(
    api: &Api,
    proxy: &FaultProxy,
    silenced: &str,
    calls: &[(Method, &str, Value)],
    ours: impl AsyncFn(usize),
) {
    let before = proxy.caught();
    proxy.silence(silenced, usize::MAX);
    let calls = calls.iter().cycle().take(CALLS).map(|(method, path, body)| {
        let request = api.request(method.clone(), path);
        let request = if body.is_null() { request } else { request.json(body) };
        Box::pin(Answer::of(request))
    });
    let ours = async {
        eventually("the commands", async || proxy.caught() >= before + 2).await;
        for round in 0..20 {
            ours(before + round).await;
        }
    };
    tokio::select! {
        biased;
        (answer, ..) = select_all(calls) => panic!("answered before the appends: {answer:?}"),
        () = ours => {}
    }
    proxy.silence("", 0);
}

/// Ends the process, whose transactions would otherwise stay open and delay the end of the test.
async fn stop(api: Api, proxy: &FaultProxy) {
    // A silent connection would delay it.
    proxy.cut();
    api.stop().await;
}

#[fixture::test]
async fn reports_delay_neither_appends_nor_reads_of_events() {
    let outbox = TestOutbox::new().await;
    let (api, proxy) = behind_a_small_pool(&outbox, POOL, &["feed.enabled=true"]).await;
    append(&api, "order/o-1", 0).await;
    let get = |path| (Method::GET, path, Value::Null);
    let dry_run = json!({ "dryRun": true });
    let lists = [get("/v1/outbox/records"), get("/v1/outbox/records?status=invalid")];
    let counts = [
        get("/v1/outbox/stats"),
        get("/v1/outbox/groups?by=key"),
        (Method::POST, "/v1/outbox/requeue", dry_run),
    ];
    let subscriptions = [get("/v1/subscriptions"), get("/v1/subscriptions/billing")];

    for (name, collection, calls) in [
        ("find", "outbox_records", &lists[..]),
        ("aggregate", "outbox_records", &counts),
        ("aggregate", "postrider_subscriptions", &subscriptions),
    ] {
        let ours = async |round| {
            append(&api, &format!("order/{collection}-{name}"), round).await;
            assert_eq!(api.get("/v1/aggregates/order/o-1/events").await.status, 200);
        };
        meanwhile(&api, &proxy, &command(name, collection), calls, ours).await;
    }
    stop(api, &proxy).await;
}

#[fixture::test]
async fn pulls_of_one_member_delay_no_appends() {
    let outbox = TestOutbox::new().await;
    let (api, proxy) = behind_a_small_pool(&outbox, POOL, &["feed.enabled=true"]).await;
    for request in 0..20 {
        append(&api, "order/o-1", request).await;
    }
    let subscription = json!({ "name": "billing", "kind": "pull" });
    eventually("the feed", async || {
        api.post("/v1/subscriptions", &subscription).await.status != 503
    })
    .await;
    let pull = "/v1/subscriptions/billing/pull";
    let body = json!({ "member": "m", "wait": "10s" });
    eventually("the positions", async || {
        api.post(pull, &body).await.body["items"].as_array().unwrap().len() == 20
    })
    .await;

    // The same events, each time.
    let pulled = join_all((0..64).map(|_| api.post(pull, &body))).await;
    let first = pulled.iter().find(|answer| answer.status == 200).unwrap();
    for answer in &pulled {
        if answer.status == 200 {
            assert_eq!(answer.body["items"], first.body["items"]);
            assert_eq!(answer.body["lease"], first.body["lease"]);
        } else {
            answer.is(503, "overloaded");
        }
    }

    let page = command("aggregate", "order_event_stream");
    let ours = async |round| append(&api, "person/p-1", round).await;
    meanwhile(&api, &proxy, &page, &[(Method::POST, pull, body.clone())], ours).await;
    stop(api, &proxy).await;
}
