//! Requests that a web page of another site may have sent, in a browser on this host.

use reqwest::{Method, StatusCode};

use crate::api::{Answer, Api};
use crate::support::outbox::TestOutbox;

const PAUSE: &str = "/v1/relay/pause";

/// Sends a request with these headers instead of its own.
async fn send(api: &Api, method: Method, path: &str, headers: &[(&str, &str)]) -> Answer {
    let request = api.request(method, path);
    let with = |request: reqwest::RequestBuilder, (name, value): &(&str, &str)| {
        request.header(*name, *value)
    };
    Answer::of(headers.iter().fold(request, with)).await
}

#[fixture::test]
async fn loopback_host_and_own_origin_are_required_without_tokens() {
    let outbox = TestOutbox::new().await;
    let api = Api::start(&outbox, &[]).await;
    let own = format!("http://{}", api.address);

    for host in ["evil.example", "evil.example:8080", "10.0.0.1"] {
        for (method, path) in [
            (Method::POST, PAUSE),
            (Method::GET, "/v1/outbox/records"),
            (Method::GET, "/openapi.json"),
        ] {
            send(&api, method, path, &[("host", host)]).await.is(421, "foreign_host");
        }
    }
    for origin in ["http://evil.example", "null", "http://localhost:3000"] {
        send(&api, Method::POST, PAUSE, &[("origin", origin)]).await.is(403, "foreign_origin");
    }
    let both = [("host", "evil.example"), ("origin", "http://evil.example")];
    send(&api, Method::POST, PAUSE, &both).await.is(421, "foreign_host");
    let is_paused = api.get("/v1/instances").await;
    assert!(!is_paused.text.contains("\"paused\":true"), "{is_paused:?}");

    let port = api.address.port();
    for host in [format!("localhost:{port}"), format!("[::1]:{port}"), "127.0.0.9".to_owned()] {
        assert_eq!(send(&api, Method::GET, "/v1/instances", &[("host", &host)]).await.status, 200);
    }
    assert_eq!(send(&api, Method::POST, PAUSE, &[("origin", &own)]).await.status, 200);
    api.stop().await;
}

/// An image or a link of a page has no `Origin`; the browser says whose page it is.
#[fixture::test]
async fn requests_of_other_sites_are_refused_without_origin() {
    let outbox = TestOutbox::new().await;
    let api = Api::start(&outbox, &[]).await;
    let metrics = format!("http://{}/metrics", api.postrider.address().await);

    for (site, status) in
        [("cross-site", 403), ("same-site", 403), ("same-origin", 200), ("none", 200)]
    {
        let image = [("sec-fetch-site", site), ("sec-fetch-dest", "image")];
        for path in ["/v1/outbox/records", "/openapi.json"] {
            let answer = send(&api, Method::GET, path, &image).await;
            assert_eq!(answer.status, status, "{site} {path}: {answer:?}");
        }
        let ops = api.client.get(&metrics).header("sec-fetch-site", site).send().await.unwrap();
        assert_eq!(ops.status().as_u16(), status, "{site}");
    }
    let post = [("sec-fetch-site", "cross-site")];
    send(&api, Method::POST, PAUSE, &post).await.is(403, "foreign_origin");
    api.stop().await;
}

#[fixture::test]
async fn host_and_origin_are_not_checked_with_tokens() {
    let outbox = TestOutbox::new().await;
    let api = Api::start(&outbox, &["api.tokens=[\"t\"]"]).await;
    let named = [
        ("host", "postrider.example"),
        ("origin", "https://console.example"),
        ("sec-fetch-site", "cross-site"),
    ];

    let with = [&named[..], &[("authorization", "Bearer t")]].concat();

    assert_eq!(send(&api, Method::GET, "/v1/instances", &with).await.status, 200);
    send(&api, Method::GET, "/v1/instances", &named).await.is(401, "unauthorized");
    api.stop().await;
}

#[fixture::test]
async fn own_origin_is_required_with_allow_unauthenticated() {
    let outbox = TestOutbox::new().await;
    let api = Api::start(&outbox, &["api.allow_unauthenticated=true"]).await;
    let name = ("host", "postrider.shop.svc");

    assert_eq!(send(&api, Method::GET, "/v1/instances", &[name]).await.status, 200);
    let foreign = [name, ("origin", "https://evil.example")];
    send(&api, Method::POST, PAUSE, &foreign).await.is(403, "foreign_origin");
    let own = [name, ("origin", "https://postrider.shop.svc")];
    assert_eq!(send(&api, Method::POST, PAUSE, &own).await.status, 200);
    api.stop().await;
}

#[fixture::test]
async fn ops_listener_refuses_foreign_origins() {
    let outbox = TestOutbox::new().await;
    let api = Api::start(&outbox, &[]).await;
    let client = reqwest::Client::new();
    let url = format!("http://{}/metrics", api.postrider.address().await);
    let send = async |method: Method, headers: &[(&str, &str)]| {
        let request = client.request(method, &url);
        let with = |request: reqwest::RequestBuilder, (name, value): &(&str, &str)| {
            request.header(*name, *value)
        };
        let answer = headers.iter().fold(request, with).send().await.unwrap();
        (answer.status(), answer.text().await.unwrap())
    };

    // As Prometheus and the kubelet do.
    for host in ["10.1.2.3:9464", "postrider.shop.svc:9464"] {
        for method in [Method::GET, Method::HEAD] {
            assert_eq!(send(method, &[("host", host)]).await.0, StatusCode::OK, "{host}");
        }
        let (status, text) = send(Method::POST, &[("host", host)]).await;
        assert_eq!(status, StatusCode::MISDIRECTED_REQUEST);
        assert!(text.contains("\"code\":\"foreign_host\""), "{text}");
    }
    for method in [Method::GET, Method::POST] {
        let (status, text) = send(method, &[("origin", "http://evil.example")]).await;
        assert_eq!(status, StatusCode::FORBIDDEN);
        assert!(text.contains("\"code\":\"foreign_origin\""), "{text}");
    }
    assert_eq!(send(Method::POST, &[]).await.0, StatusCode::METHOD_NOT_ALLOWED);

    // It shows keys and ids.
    let keys = format!("http://{}/blocked-keys", api.postrider.address().await);
    let by_name = client.get(&keys).header("host", "evil.example:9464").send().await.unwrap();
    assert_eq!(by_name.status(), StatusCode::MISDIRECTED_REQUEST);
    // `Host` is permitted, but no relay runs here.
    let by_address = client.get(&keys).send().await.unwrap();
    assert_eq!(by_address.status(), StatusCode::SERVICE_UNAVAILABLE);
    api.stop().await;
}
