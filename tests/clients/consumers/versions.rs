//! `examples/consumer_versions.rs`

use bson::{Document, doc};
use postrider::context::{Context, ContextSettings};
use postrider::events::{Append, EventStore, NewEvent};
use postrider::names::{AggregateId, AggregateName};

use crate::consumers::programs::{collection, start};
use crate::consumers::rabbitmq::{ACK, DEAD, QUEUE, settings, until_dead};
use crate::support::fault_proxy::{FaultProxy, ProxyFault};
use crate::support::outbox::TestOutbox;
use crate::support::process::Postrider;
use crate::support::queue::host_of;
use crate::support::rabbitmq::amqp_client::text;
use crate::support::rabbitmq::vhost::Vhost;

async fn append(store: &EventStore, request: &str, events: &[&str]) {
    let (name, id) = (AggregateName::new("order").unwrap(), AggregateId::new("o-1").unwrap());
    let events = events.iter().map(|name| NewEvent::new(*name, doc! {})).collect();
    store.append(Append::new(name, id, request, events)).await.unwrap();
}

async fn state(test: &TestOutbox) -> Document {
    let found = collection(test, "states").find_one(doc! { "_id": "o-1" }).await.unwrap();
    found.unwrap_or_default()
}

#[fixture::test]
async fn event_is_applied_once_and_only_as_the_next_one() {
    let test = TestOutbox::new().await;
    let vhost = Vhost::new().await;
    let amqp = vhost.amqp_client().await;
    let dead_letters =
        [("x-dead-letter-exchange", text("")), ("x-dead-letter-routing-key", text(DEAD))];
    amqp.classic(DEAD).await;
    amqp.queue(QUEUE, &dead_letters).await;
    let context = Context::new(test.client.clone(), ContextSettings::new(&test.database));
    let store = EventStore::new(context, test.admin.clone());
    let mut postrider = Postrider::start(&settings(&test, &vhost));
    append(&store, "r-1", &["A", "B"]).await;
    append(&store, "r-2", &["C"]).await;
    append(&store, "r-3", &["D", "E", "F"]).await;

    // Killed between the write of the first event and its acknowledgement.
    let proxy = FaultProxy::to(&host_of(&vhost.uri())).await;
    proxy.on_request(ACK, ProxyFault::Silence);
    let uri = vhost.uri().replace(&host_of(&vhost.uri()), &proxy.address().to_string());
    let consumer = start("consumer_versions", &test, &[("AMQP_URI", &uri), ("QUEUE", QUEUE)]);
    consumer.eventually("a lost acknowledgement", || async { proxy.has_caught() }).await;
    assert_eq!(applied(&state(&test).await), 1);
    drop(consumer);
    drop(proxy);
    let environment = [("AMQP_URI", &*vhost.uri()), ("QUEUE", QUEUE)];
    let consumer = start("consumer_versions", &test, &environment);
    consumer.eventually("all events", || async { applied(&state(&test).await) == 6 }).await;

    let expected = doc! { "_id": "o-1", "count": 3_i64, "events": ["A", "B", "C", "D", "E", "F"], "index": 2_i64, "version": 3_i64 };
    assert_eq!(state(&test).await, expected);
    // RabbitMQ may serve the next consumer before it learns of the killed one.
    let is_repeated = || async { consumer.stdout().contains(" again") };
    consumer.eventually("a repetition", is_repeated).await;

    // A gap: version 4 was lost.
    let event = |id: &str, version: i32, index: i32, more: Document| {
        let mut headers = doc! { "aggregate-version": version, "event-index": index };
        headers.extend(more);
        doc! { "_id": id, "key": "o-1", "type": id, "payload": {}, "headers": headers, "status": "pending" }
    };
    test.insert([event("gap", 5, 0, doc! { "aggregate-id": "o-1", "event-count": 1 })]).await;
    until_dead(&amqp, "gap").await;
    assert_eq!(consumer.stderr().matches("gap failed, attempt ").count(), 5);
    // No version at all: the program does not end.
    test.insert([
        doc! { "_id": "absent", "key": "o-1", "type": "T", "payload": {}, "status": "pending" },
    ])
    .await;
    until_dead(&amqp, "absent").await;
    // If they are published again, they have all their attempts again.
    let of_dead = doc! { "_id.message": { "$in": ["gap", "absent"] } };
    let failures = collection(&test, "inbox_failures").count_documents(of_dead).await.unwrap();
    assert_eq!(failures, 0);
    assert_eq!(state(&test).await, expected);

    // Messages of an earlier release: without count and without the aggregate's id.
    test.insert([
        event("old-4-0", 4, 0, doc! {}),
        event("old-4-1", 4, 1, doc! {}),
        event("old-5-0", 5, 0, doc! {}),
    ])
    .await;
    consumer.eventually("old events", || async { applied(&state(&test).await) == 9 }).await;
    let last = state(&test).await;
    assert_eq!((last.get_i64("version").unwrap(), last.get_i64("index").unwrap()), (5, 0));
    store.close().await;
    postrider.stop().await;
}

fn applied(state: &Document) -> usize {
    state.get_array("events").map_or(0, Vec::len)
}
