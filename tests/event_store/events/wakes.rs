//! Appends wake the relay of the same process.

use std::time::Duration;

use postrider::context::{Context, ContextSettings};
use postrider::events::EventStore;
use postrider::wakeup::{ScanHint, Wakeup};

use crate::events::util::append;
use crate::support::outbox::TestOutbox;

#[fixture::test]
async fn append_wakes_the_relay_for_its_key() {
    let outbox = TestOutbox::new().await;
    let settings = ContextSettings::new(&outbox.database);
    let context = Context::new(outbox.admin.client().clone(), settings);
    let wake = Wakeup::default();
    let store = EventStore::with_wakeup(context, outbox.admin.clone(), wake.clone());

    store.append(append("order-123", "r")).await.unwrap();

    tokio::time::timeout(Duration::from_secs(5), wake.woken()).await.unwrap();
    let hint = ScanHint::Key { partition: 189, key: "order-123".into() };
    assert_eq!(wake.take().hints, [hint]);
}
