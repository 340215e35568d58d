//! Every operation decides by the server's clock whether a key has expired, also before the TTL monitor
//! runs. `wrong_clock` runs these again in processes with a wrong clock.

use std::time::Duration;

use bson::{Bson, DateTime, bson, doc};
use postrider::prepare::{PrepareError, Ttl};

use crate::home::Home;
use crate::support::outbox::eventually;

const MINUTE: Duration = Duration::from_secs(60);

#[fixture::test]
async fn expired_key_is_prepared_again() {
    let home = Home::new().await;
    let keys = home.keys();
    home.store_expired("ada", "old").await;

    assert!(keys.prepare("ada", &bson!("new"), Ttl::For(MINUTE)).await.unwrap());
    assert!(!keys.prepare("ada", &bson!("newer"), Ttl::For(MINUTE)).await.unwrap());
    assert_eq!(keys.get_value("ada").await.unwrap(), Some(bson!("new")));
}

#[fixture::test]
async fn fields_of_an_expired_key_are_removed() {
    let home = Home::new().await;
    home.store_expired("ada", doc! { "old": 1 }).await;
    home.stored().update_one(doc! {}, doc! { "$set": { "more": 1 } }).await.unwrap();

    home.keys().prepare("ada", &bson!({ "new": 1 }), Ttl::Forever).await.unwrap();

    let stored = home.stored_key("ada").await.unwrap();
    assert_eq!(stored, doc! { "_id": "ada", "value": { "new": 1 } });
}

#[fixture::test]
async fn expired_key_is_not_read() {
    let home = Home::new().await;
    home.store_expired("ada", "old").await;

    assert_eq!(home.keys().get("ada").await.unwrap(), None);
    assert_eq!(home.keys().get_value("ada").await.unwrap(), None);
}

#[fixture::test]
async fn expired_key_is_not_changed() {
    let home = Home::new().await;
    let keys = home.keys();
    let expired = home.store_expired("ada", "old").await;

    assert!(!keys.reprepare("ada", None, &bson!("new"), Ttl::Forever).await.unwrap());
    let known = keys.reprepare("ada", Some(&bson!("old")), &bson!("new"), Ttl::Forever).await;
    assert!(!known.unwrap());

    assert_is_left(&home, expired).await;
}

#[fixture::test]
async fn expired_key_is_not_rolled_back() {
    let home = Home::new().await;
    let expired = home.store_expired("ada", "old").await;

    assert!(!home.keys().rollback("ada").await.unwrap());
    assert!(!home.keys().rollback_value("ada", &bson!("old")).await.unwrap());

    assert_is_left(&home, expired).await;
}

#[fixture::test]
async fn expired_key_is_not_moved() {
    let home = Home::new().await;
    let expired = home.store_expired("ada", "old").await;

    let (old, new) = (bson!("old"), bson!("new"));
    let moved = home.keys().move_key("ada", &old, "bob", &new, Ttl::Forever).await;

    assert!(matches!(moved, Err(PrepareError::NotPrepared)), "{moved:?}");
    assert_eq!(home.stored_key("bob").await, None);
    assert_is_left(&home, expired).await;
}

#[fixture::test]
async fn key_is_moved_to_an_expired_key() {
    let home = Home::new().await;
    let keys = home.keys();
    home.store_expired("bob", "old").await;
    keys.prepare("ada", &bson!(1), Ttl::For(MINUTE)).await.unwrap();

    assert!(keys.move_key("ada", &bson!(1), "bob", &bson!(2), Ttl::For(MINUTE)).await.unwrap());

    assert_eq!(keys.get_value("ada").await.unwrap(), None);
    assert_eq!(keys.get_value("bob").await.unwrap(), Some(bson!(2)));
}

#[fixture::test]
async fn key_with_an_end_is_held_for_every_operation() {
    let home = Home::new().await;
    let keys = home.keys();
    let (one, two) = (bson!(1), bson!(2));

    assert!(keys.prepare("ada", &one, Ttl::For(MINUTE)).await.unwrap());
    assert!(!keys.prepare("ada", &two, Ttl::For(MINUTE)).await.unwrap());
    assert_eq!(keys.get_value("ada").await.unwrap(), Some(one.clone()));
    assert!(keys.reprepare("ada", None, &two, Ttl::For(MINUTE)).await.unwrap());
    assert!(keys.reprepare("ada", Some(&two), &one, Ttl::For(MINUTE)).await.unwrap());
    assert!(keys.move_key("ada", &one, "bob", &two, Ttl::For(MINUTE)).await.unwrap());
    assert!(keys.rollback_value("bob", &two).await.unwrap());
    assert!(keys.prepare("ada", &one, Ttl::For(MINUTE)).await.unwrap());
    assert!(keys.rollback("ada").await.unwrap());
}

#[fixture::test]
async fn duration_counts_from_the_servers_time() {
    let home = Home::new().await;
    let keys = home.keys();
    for otherwise in [false, true] {
        let before = home.now().await;
        if otherwise {
            let ttl = Ttl::For(MINUTE);
            assert!(keys.reprepare("ada", None, &bson!(1), ttl).await.unwrap());
        } else {
            assert!(keys.prepare("ada", &bson!(1), Ttl::For(MINUTE)).await.unwrap())
        }
        let after = home.now().await;

        let end = keys.get("ada").await.unwrap().unwrap().ttl_at.unwrap();
        let end = end.timestamp_millis() - 60_000;
        // The estimate of the server's time is accurate to a round trip.
        let range = before.timestamp_millis() - 1_000..=after.timestamp_millis() + 1_000;
        assert!(range.contains(&end), "{end} is not within {range:?}");
    }
}

#[fixture::test]
async fn key_expires_at_its_end() {
    let home = Home::new().await;
    let keys = home.keys();
    keys.prepare("ada", &bson!(1), Ttl::For(Duration::from_millis(400))).await.unwrap();
    let end = home.stored_key("ada").await.unwrap().get_datetime("ttlAt").unwrap().to_owned();

    eventually("the key's end", || async { keys.get("ada").await.unwrap().is_none() }).await;

    let now = home.now().await;
    assert!(now.timestamp_millis() >= end.timestamp_millis() - 100, "{now} is before {end}");
    assert!(keys.prepare("ada", &bson!(2), Ttl::Forever).await.unwrap());
}

#[fixture::test]
async fn end_is_stored_as_given() {
    let home = Home::new().await;
    let keys = home.keys();
    let time = DateTime::from_millis(home.now().await.timestamp_millis() + 3_600_000);

    keys.prepare("ada", &bson!(1), Ttl::At(time)).await.unwrap();

    assert_eq!(keys.get("ada").await.unwrap().unwrap().ttl_at, Some(time));
    let stored = home.stored_key("ada").await.unwrap();
    assert_eq!(stored, doc! { "_id": "ada", "value": 1, "ttlAt": time });
}

#[fixture::test]
async fn past_end_expires_a_key_at_once() {
    let home = Home::new().await;
    let keys = home.keys();
    let past = Ttl::At(DateTime::from_millis(1_000));

    assert!(keys.prepare("ada", &bson!(1), past).await.unwrap());
    assert_eq!(keys.get("ada").await.unwrap(), None);

    keys.prepare("bob", &bson!(1), Ttl::Forever).await.unwrap();
    assert!(keys.reprepare("bob", None, &bson!(1), past).await.unwrap());
    assert_eq!(keys.get("bob").await.unwrap(), None);
}

#[fixture::test]
async fn expired_key_is_prepared_with_the_same_value() {
    let home = Home::new().await;
    home.store_expired("ada", 1).await;

    let same = Ttl::At(DateTime::from_millis(1_000));
    assert!(home.keys().prepare("ada", &bson!(1), same).await.unwrap());
}

#[fixture::test]
async fn change_of_a_key_sets_another_end() {
    let home = Home::new().await;
    let keys = home.keys();
    keys.prepare("ada", &bson!(1), Ttl::For(MINUTE)).await.unwrap();

    keys.reprepare("ada", Some(&bson!(1)), &bson!(1), Ttl::Forever).await.unwrap();

    let stored = home.stored_key("ada").await.unwrap();
    assert_eq!(stored, doc! { "_id": "ada", "value": 1 });
}

#[fixture::test]
async fn for_ever_of_the_wow_framework_is_for_ever() {
    let home = Home::new().await;
    let keys = home.keys();
    let ends: [Bson; 5] = [
        DateTime::from_millis(148_204_944_000_000).into(),
        DateTime::from_millis(i64::MAX).into(),
        // TTL indexes ignore these.
        Bson::Null,
        1_000_i64.into(),
        "1970-01-01".into(),
    ];
    for (at, end) in ends.into_iter().enumerate() {
        let key = format!("key-{at}");
        let foreign = doc! { "_id": &key, "value": 1, "ttlAt": &end };
        home.stored().insert_one(foreign).await.unwrap();

        let prepared = keys.get(&key).await.unwrap().unwrap();
        assert_eq!(prepared.ttl_at, None, "{end}");
        assert!(!keys.prepare(&key, &bson!(2), Ttl::Forever).await.unwrap(), "{end}");
        assert!(keys.rollback(&key).await.unwrap(), "{end}");
    }
}

/// Unchanged, or removed by the TTL monitor.
async fn assert_is_left(home: &Home, expired: bson::Document) {
    if let Some(stored) = home.stored_key("ada").await {
        assert_eq!(stored, expired);
    }
}
