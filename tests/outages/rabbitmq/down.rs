//! A broker that is stopped, paused, or out of memory: no attempts are counted, however long it
//! lasts.

use std::time::{Duration, Instant};

use bson::doc;
use lapin::message::BasicGetMessage;
use lapin::types::AMQPValue;

use crate::metrics_page::{Settled, is_whole_and_clean};
use crate::outage::{
    all_settled, has_no_error, logged, no_errors, settings, to, until_down_with, until_well,
};
use crate::support::history::{Arrival, content, judge, read_back};
use crate::support::outbox::TestOutbox;
use crate::support::process::Postrider;
use crate::support::rabbitmq::amqp_client::{AmqpClient, id};
use crate::support::rabbitmq::node::{Node, turn};

const COUNT: usize = 30;

#[derive(Clone, Copy, Debug)]
enum Fault {
    Stopped,
    Paused,
    OutOfMemory,
    OutOfDisk,
}

impl Fault {
    async fn begins(self, node: &Node) {
        match self {
            Self::Stopped => node.stop().await,
            Self::Paused => node.freeze().await,
            Self::OutOfMemory => node.ctl(&["set_vm_memory_high_watermark", "0.0000001"]).await,
            Self::OutOfDisk => node.ctl(&["set_disk_free_limit", "1000000GB"]).await,
        }
    }

    async fn ends(self, node: &Node) {
        match self {
            Self::Stopped => node.start().await,
            Self::Paused => node.thaw().await,
            Self::OutOfMemory => node.ctl(&["set_vm_memory_high_watermark", "0.9"]).await,
            Self::OutOfDisk => node.ctl(&["set_disk_free_limit", "1MB"]).await,
        }
    }

    /// How `/readyz` describes it.
    fn words(self) -> &'static str {
        match self {
            Self::Stopped => "refused",
            Self::Paused => "no response within 2s",
            Self::OutOfMemory => "memory",
            Self::OutOfDisk => "disk",
        }
    }
}

fn arrival(message: &BasicGetMessage) -> Arrival {
    let headers = message.delivery.properties.headers().as_ref().unwrap();
    let key = match headers.inner().get("message-key") {
        Some(AMQPValue::LongString(key)) => key.to_string(),
        other => panic!("{other:?}"),
    };
    Arrival { id: id(message), key: Some(key), content: content(&message.delivery.data) }
}

async fn run_outage(trouble: Fault, node: &Node, outbox: &TestOutbox, postrider: &Postrider) {
    let before = logged(postrider);
    trouble.begins(node).await;
    let record =
        |n: usize| to("durable", &format!("{trouble:?} {n:02}"), &format!("key {}", n % 10));
    outbox.insert((0..COUNT).map(record)).await;
    // The first detail may be of what was in flight.
    until_down_with(postrider, trouble.words()).await;

    // Twenty times what all attempts and their backoffs take.
    let counted = doc! { "$or": [{ "attempt": { "$gt": 1 } }, { "lastError": { "$ne": null } }] };
    let long = Instant::now() + Duration::from_secs(2);
    while Instant::now() < long {
        assert_eq!(outbox.count(counted.clone()).await, 0, "{trouble:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let waiting = doc! { "status": "pending", "leaseId": null, "attempt": { "$in": [null, 0] } };
    assert_eq!(outbox.count(waiting).await, COUNT as u64, "{trouble:?}: released, not counted");
    assert_eq!(logged(postrider), (before.0 + 1, before.1), "{trouble:?}: {}", postrider.stderr());
    trouble.ends(node).await;

    outbox.until_count(doc! { "status": { "$ne": "done" } }, 0).await;
    until_well(postrider).await;
    assert_eq!(
        logged(postrider),
        (before.0 + 1, before.1 + 1),
        "{trouble:?}: {}",
        postrider.stderr()
    );
}

#[fixture::test]
async fn a_stopped_paused_or_full_broker_counts_no_attempt() {
    let turn = turn().await;
    let outbox = TestOutbox::new().await;
    AmqpClient::on(&turn.node.uri()).await.classic("durable").await;
    let more = ["relay.max_attempts=2", "relay.backoff.initial=50ms"];
    let mut postrider = Postrider::start(&settings(&outbox, &turn.node.uri(), &more));
    until_well(&postrider).await;
    let troubles = [Fault::Stopped, Fault::OutOfMemory, Fault::Paused, Fault::OutOfDisk];

    for trouble in troubles {
        run_outage(trouble, &turn.node, &outbox, &postrider).await;
    }

    let (done, dead) = all_settled(&outbox).await;
    assert!(dead.is_empty() && done.iter().all(has_no_error), "{done:#?}");
    let arrived = AmqpClient::on(&turn.node.uri()).await.take_all("durable").await;
    let arrived: Vec<Arrival> = arrived.iter().map(arrival).collect();
    judge(&read_back(&outbox.collections).await, &arrived).assert_kept();
    no_errors(&postrider);
    let settled = Settled::done((troubles.len() * COUNT) as u64);
    is_whole_and_clean(&postrider, &["rabbit"], settled).await;
    postrider.stop().await;
}
