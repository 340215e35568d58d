//! Operations whose answer is lost.

use bson::bson;
use postrider::prepare::{PrepareError, PrepareKey, Ttl};

use crate::home::Home;
use crate::support::fault_proxy::FaultProxy;
use crate::support::outbox::TestOutbox;

async fn keys_through(outbox: &TestOutbox) -> (FaultProxy, PrepareKey) {
    let (proxy, collections) = outbox.behind_proxy().await;
    let keys = Home::within(outbox, collections.client()).keys();
    // The collection is created before answers are lost.
    keys.prepare("other", &bson!(1), Ttl::Forever).await.unwrap();
    (proxy, keys)
}

#[fixture::test]
async fn repeated_command_returns_the_first_answer() {
    let outbox = TestOutbox::new().await;
    let (proxy, keys) = keys_through(&outbox).await;
    let (one, two) = (bson!(1), bson!(2));

    proxy.lose_answers_to("update", 1);
    assert!(keys.prepare("ada", &one, Ttl::Forever).await.unwrap());
    proxy.lose_answers_to("update", 1);
    assert!(keys.reprepare("ada", Some(&one), &two, Ttl::Forever).await.unwrap());
    proxy.lose_answers_to("update", 1);
    assert!(keys.reprepare("ada", None, &one, Ttl::Forever).await.unwrap());
    proxy.lose_answers_to("commitTransaction", 1);
    assert!(keys.move_key("ada", &one, "bob", &two, Ttl::Forever).await.unwrap());
    proxy.lose_answers_to("delete", 1);
    assert!(keys.rollback_value("bob", &two).await.unwrap());
    keys.prepare("ada", &one, Ttl::Forever).await.unwrap();
    proxy.lose_answers_to("delete", 1);
    assert!(keys.rollback("ada").await.unwrap());

    assert_eq!(proxy.caught(), 6);
}

#[fixture::test]
async fn unrepeatable_command_is_an_error() {
    let mut outbox = TestOutbox::new().await;
    outbox.uri.push_str("&retryWrites=false");
    let (proxy, keys) = keys_through(&outbox).await;

    proxy.lose_answers_to("update", 1);
    let prepared = keys.prepare("ada", &bson!(1), Ttl::Forever).await;

    assert!(matches!(prepared, Err(PrepareError::Store(_))), "{prepared:?}");
    assert_eq!(keys.get_value("ada").await.unwrap(), Some(bson!(1)), "it may have been done");
}
