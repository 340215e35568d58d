//! An address of a broker that accepts connections and is silent, such as a balancer without a backend.

use bson::doc;

use crate::outage::{Outage, settings, to, until_down};
use crate::support::fault_proxy::FaultProxy;
use crate::support::outbox::eventually;
use crate::support::process::Postrider;
use crate::support::rabbitmq::{address, at};

/// Two connections, each with three attempts.
const MAX_ATTEMPTS: usize = 6;

/// Each attempt left a thread and a descriptor behind.
#[fixture::test]
async fn attempts_at_a_silent_address_leave_nothing_behind() {
    let outage = Outage::new().await;
    let proxy = FaultProxy::to_address(address(&outage.vhost.uri())).await;
    proxy.freeze();
    let uri = at(&outage.vhost.uri(), proxy.address());
    let more = ["relay.sink_probe_interval_max=100ms", "sinks.rabbit.timeout=200ms"];
    let postrider = Postrider::start(&settings(&outage.outbox, &uri, &more));
    postrider.until_ready().await;
    until_down(&postrider, "rabbit").await;
    let after = async |attempts: usize| {
        eventually("attempts", async || proxy.accepted() >= attempts).await;
        (postrider.threads("lapin"), postrider.open_files())
    };

    let (_, files) = after(4).await;
    let (threads, more_files) = after(4 + 6 * MAX_ATTEMPTS).await;

    assert!(threads <= MAX_ATTEMPTS, "{threads} threads");
    // (MongoDB's connections are opened on demand.)
    assert!(more_files < files + 3 * MAX_ATTEMPTS, "{files} open files, then {more_files}");
    outage.end(postrider).await;
}

/// Recovery waited until the attempt at the silent address had ended.
#[fixture::test]
async fn broker_that_is_back_is_found_while_an_attempt_is_silent() {
    let outage = Outage::new().await;
    outage.amqp.classic("taken").await;
    let proxy = FaultProxy::to_address(address(&outage.vhost.uri())).await;
    proxy.freeze();
    let uri = at(&outage.vhost.uri(), proxy.address());
    // Longer than a test may take.
    let more = ["sinks.rabbit.timeout=600s", "relay.lease=1200s"];
    let postrider = Postrider::start(&settings(&outage.outbox, &uri, &more));
    eventually("both attempts", async || proxy.accepted() >= 2).await;
    outage.outbox.insert([to("taken", "waits", "k")]).await;

    // The connections that there are stay silent.
    proxy.freeze_existing();
    proxy.thaw();

    outage.outbox.until_count(doc! { "status": "done" }, 1).await;
    outage.end(postrider).await;
}
