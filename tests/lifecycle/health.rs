//! `postrider healthcheck`, as a container's engine runs it.

use std::net::SocketAddr;

use bson::doc;
use tokio::net::TcpListener;

use crate::support::fault_proxy::FaultProxy;
use crate::support::outbox::TestOutbox;
use crate::support::ports::free_port;
use crate::support::process::{Ended, Postrider, Signal, call_with};
use crate::support::queue::{mongo_settings, stdout_sink};
use crate::util::{mongo_through, proxy_to_mongodb, says, with};

/// Runs the health check with this `ops.listen`.
async fn healthcheck(listen: &str, arguments: &[&str]) -> Ended {
    let setting = format!("ops.listen={listen}");
    call_with(&[setting], &[&["healthcheck"], arguments].concat()).await
}

/// `ops.listen` of a `run` that listens on all addresses.
fn everywhere(address: SocketAddr) -> String {
    format!("0.0.0.0:{}", address.port())
}

#[fixture::test]
async fn a_live_process_is_healthy_and_later_ready() {
    let outbox = TestOutbox::new().await;
    let proxy = proxy_to_mongodb(FaultProxy::closed_to).await;
    let settings = [mongo_through(&proxy, &outbox.database), stdout_sink()].concat();
    let mut postrider = Postrider::start(&with(settings, &["ops.listen=0.0.0.0:0"]));
    let listen = everywhere(postrider.address().await);

    let live = healthcheck(&listen, &[]).await.with_code(0);
    let unready = healthcheck(&listen, &["--ready"]).await.with_code(1);
    proxy.open();
    postrider.until_ready().await;
    let ready = healthcheck(&listen, &["--ready"]).await.with_code(0);

    assert!(live.stdout.contains("/livez: 200 {\"status\":\"ok\"}"), "{live}");
    says(&unready, &["/readyz: 503", "\"store\":{\"status\":\"down\""]);
    assert!(ready.stdout.contains("/readyz: 200"), "{ready}");
    assert_eq!(ready.stdout.lines().count(), 1, "{ready}");
    postrider.stop().await;
}

/// They have addresses and users of servers. A client of the network has another `Host`, as Prometheus has,
/// or, after DNS rebinding, a page.
#[fixture::test]
async fn readyz_has_its_details_under_a_loopback_host_only() {
    let proxy = proxy_to_mongodb(FaultProxy::closed_to).await;
    let settings = [mongo_through(&proxy, "unused"), stdout_sink()].concat();
    let mut postrider = Postrider::start(&settings);
    let server = proxy.address().to_string();
    let names_server = |report: &serde_json::Value| report.to_string().contains(&server);
    postrider.until_report("the address of MongoDB", names_server).await;
    let address = postrider.address().await;
    let client = reqwest::Client::new();

    for host in ["evil.example:9464", "10.1.2.3:9464", "postrider.shop.svc"] {
        let request = client.get(format!("http://{address}/readyz")).header("host", host);
        let answer = request.send().await.unwrap();

        assert_eq!(answer.status(), 503, "{host}");
        let report: serde_json::Value = answer.json().await.unwrap();
        let store = serde_json::json!({ "status": "down", "detail": "" });
        assert_eq!((&report["status"], &report["parts"]["store"]), (&"down".into(), &store));
        assert!(!names_server(&report), "{report}");
    }
    postrider.stop().await;
}

/// Without the search the log, `/readyz` and the metrics said that all is well.
#[fixture::test]
async fn index_that_deletes_pending_records_is_reported_while_it_runs() {
    let outbox = TestOutbox::new().await;
    let settings = [mongo_settings(&outbox.database), stdout_sink()].concat();
    let mut postrider = Postrider::start(&with(settings, &["relay.audit_interval=1s"]));
    let schema = |status: &'static str| {
        move |report: &serde_json::Value| report["parts"]["schema"]["status"] == status
    };
    postrider.until_metric("postrider_schema_hazards", |hazards| hazards == 0.0).await;
    postrider.until_report("no hazard", schema("ok")).await;

    let index =
        doc! { "name": "foreign", "key": { "createdAt": 1 }, "expireAfterSeconds": i32::MAX };
    let create = doc! { "createIndexes": "outbox_records", "indexes": [index] };
    let database = outbox.client.database(&outbox.database);
    database.run_command(create).await.unwrap();
    postrider.until_metric("postrider_schema_hazards", |hazards| hazards == 1.0).await;
    postrider.until_report("the hazard", schema("degraded")).await;
    let (code, report) = postrider.readyz().await;
    postrider.until_logged("index foreign of outbox_records").await;
    outbox.records().drop_index("foreign").await.unwrap();
    postrider.until_report("no hazard any more", schema("ok")).await;

    let detail = report["parts"]["schema"]["detail"].as_str().unwrap();
    assert!(code == 200 && detail.contains("index foreign of outbox_records deletes"), "{detail}");
    postrider.stop().await;
}

#[fixture::test]
async fn a_process_that_hangs_or_has_ended_is_not_healthy() {
    let outbox = TestOutbox::new().await;
    let settings = [mongo_settings(&outbox.database), stdout_sink()].concat();
    let mut postrider = Postrider::start(&settings);
    let listen = postrider.address().await.to_string();
    postrider.until_ready().await;

    postrider.signal(Signal::STOP);
    let hanging = healthcheck(&listen, &[]).await.with_code(1);
    postrider.signal(Signal::CONT);
    postrider.stop().await;
    let ended = healthcheck(&listen, &[]).await.with_code(1);

    says(&hanging, &["/livez: no response within 3s"]);
    says(&ended, &["/livez: ", "refused"]);
}

#[fixture::test]
async fn a_closed_port_or_another_server_is_not_healthy() {
    let stranger = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let listen = stranger.local_addr().unwrap().to_string();
    tokio::spawn(async move {
        while let Ok((stream, _)) = stranger.accept().await {
            stream.try_write(b"220 mail.example.com ESMTP\r\n").unwrap();
        }
    });

    healthcheck(&listen, &[]).await.with_code(1);
    healthcheck(&format!("127.0.0.1:{}", free_port()), &[]).await.with_code(1);
}

#[fixture::test]
async fn healthcheck_reads_only_the_address_from_the_configuration() {
    let listen = format!("ops.listen=127.0.0.1:{}", free_port());
    let settings = ["mongo.uri=nonsense", "sinks.a.kind=rabbitmq", "sinks.a.uri=nonsense", &listen];
    let settings = settings.map(str::to_owned);

    call_with(&settings, &["run"]).await.with_code(2);
    says(&call_with(&settings, &["healthcheck"]).await.with_code(1), &["refused"]);
    for listen in ["127.0.0.1:0", "nonsense", "127.0.0.1"] {
        says(&healthcheck(listen, &[]).await.with_code(2), &["ops.listen = ", listen]);
    }
}
