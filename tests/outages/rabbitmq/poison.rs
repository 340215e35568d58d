//! A record that kills its relay, among hundreds that are leased with it.

use std::time::{Duration, Instant};

use bson::{Document, doc};

use crate::metrics_page::{Settled, is_whole_and_clean};
use crate::outage::{Outage, all_settled, settings, to};
use crate::support::history::{judge, read_back};
use crate::support::outbox::TestOutbox;
use crate::support::process::{Postrider, command};
use crate::support::queue_consumer::QueueConsumer;

const POISON: &str = "poison";

/// A relay that dies as by `kill -9` whenever it publishes the poison record.
fn start(outbox: &TestOutbox, uri: &str) -> Postrider {
    let more = [
        "relay.max_attempts=3",
        "relay.lease=2s",
        "sinks.rabbit.timeout=1s",
        "ops.listen=127.0.0.1:0",
    ];
    let mut command = command(&["run", "--set", "log.format=json"]);
    for setting in settings(outbox, uri, &more) {
        command.args(["--set", &setting]);
    }
    command.env("FAILPOINTS", format!("relay::publish {POISON}=return"));
    Postrider::of(command)
}

/// A key of the first partition that is read: what is leased with it is still in flight when it
/// kills.
fn first_key() -> String {
    let keys = (0..).map(|number| format!("key {number}"));
    keys.into_iter().find(|key| postrider::partition::of_key(key) == 0).unwrap()
}

#[fixture::test(long)]
async fn a_record_that_kills_its_relay_dies_and_no_neighbour_does() {
    let outage = Outage::new().await;
    let (outbox, uri) = (&outage.outbox, outage.vhost.uri());
    let arrivals = QueueConsumer::at(&uri, "taken").await;
    let key = first_key();
    let behind = (0..9).map(|number| to("taken", &format!("behind {number}"), &key));
    let others = (0..490).map(|number| {
        // Some of one key, most of a key of their own.
        let key = if number < 90 { number % 9 } else { number };
        to("taken", &format!("other {number:03}"), &format!("other {key}"))
    });
    outbox.insert([to("taken", POISON, &key)]).await;
    outbox.insert(behind.chain(others)).await;

    // As a supervisor would.
    let mut deaths = 0;
    let postrider = loop {
        let mut postrider = start(outbox, &uri);
        let died = tokio::select! {
            ended = postrider.until_ended(Duration::from_secs(60)) => {
                assert_eq!(ended.code, None, "killed: {ended}");
                true
            }
            () = outbox.until_count(doc! { "_id": POISON, "status": "dead" }, 1) => false,
        };
        if !died {
            break postrider;
        }
        deaths += 1;
    };
    // One at a time, each with its own lease and its own majority.
    let patience = Instant::now() + Duration::from_secs(180);
    while outbox.count(doc! { "status": "done" }).await < 499 {
        assert!(Instant::now() < patience, "{}", postrider.stderr());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    arrivals.until(499).await;

    assert_eq!(deaths, 3, "one for each attempt");
    let (done, dead) = all_settled(outbox).await;
    assert_eq!(dead.len(), 1, "{dead:#?}");
    assert_eq!(dead[0].get_str("deadReason").unwrap(), "lease expired: 3 times");
    assert_eq!(dead[0].get_i32("attempt").unwrap(), 3);
    let attempts = |record: &Document| record.get_i32("attempt").unwrap();
    let neighbours = done.iter().filter(|record| attempts(record) >= 2).count();
    assert!(neighbours > 250, "only {neighbours} were leased with it when it killed first");
    // Counted for the two crashes together with it, and not for those of the poison record alone.
    assert!(done.iter().all(|record| attempts(record) <= 3), "{done:#?}");
    judge(&read_back(&outbox.collections).await, &arrivals.seen()).assert_kept();
    // The last process found the poison record exhausted, and delivered the rest.
    let left =
        postrider.metric("postrider_delivery_lag_seconds_count{sink=\"rabbit\"}").await.unwrap();
    let settled = Settled { dead: 1, ..Settled::done(left as u64) };
    is_whole_and_clean(&postrider, &["rabbit"], settled).await;
    outage.end(postrider).await;
}
