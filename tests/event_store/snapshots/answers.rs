//! Saves whose answer is lost.

use bson::doc;
use postrider::snapshot::{Saved, Snapshot};

use crate::home::{Home, id, order};
use crate::support::outbox::TestOutbox;

#[fixture::test]
async fn repeated_save_returns_the_first_answer() {
    let outbox = TestOutbox::new().await;
    let (proxy, collections) = outbox.behind_proxy().await;
    let snapshots = Home::within(&outbox, collections.client()).snapshots();
    snapshots.save(&order(), Snapshot::new(id("other"), 1, doc! {})).await.unwrap();

    for version in [1, 2] {
        proxy.lose_answers_to("update", 1);
        let snapshot = Snapshot::new(id("order-1"), version, doc! {});
        let saved = snapshots.save(&order(), snapshot).await.unwrap();
        assert_eq!(saved, Saved { written: true, version });
    }

    assert_eq!(proxy.caught(), 2);
}
