//! Concurrent operations, of which one succeeds.

use std::time::Duration;

use bson::bson;
use postrider::prepare::{PrepareKey, Ttl};

use crate::home::Home;

const RACERS: i32 = 100;

/// The successful ones of a hundred callers.
async fn winners<F>(keys: &PrepareKey, race: impl Fn(PrepareKey, i32) -> F) -> Vec<i32>
where
    F: Future<Output = bool> + Send + 'static,
{
    let racers: Vec<_> = (0..RACERS).map(|racer| tokio::spawn(race(keys.clone(), racer))).collect();
    let mut winners = Vec::new();
    for (racer, ended) in (0..).zip(racers) {
        if ended.await.unwrap() {
            winners.push(racer);
        }
    }
    winners
}

#[fixture::test]
async fn one_of_a_hundred_callers_prepares_a_new_key() {
    let home = Home::new().await;
    let keys = home.keys();
    for round in 0..5 {
        let key = format!("ada-{round}");
        let race = |keys: PrepareKey, racer| {
            let key = key.clone();
            async move {
                keys.prepare(&key, &bson!(racer), Ttl::For(Duration::from_secs(60))).await.unwrap()
            }
        };

        let winners = winners(&keys, race).await;

        assert_eq!(winners.len(), 1, "{winners:?}");
        assert_eq!(keys.get_value(&key).await.unwrap(), Some(bson!(winners[0])));
    }
}

#[fixture::test]
async fn one_of_a_hundred_callers_prepares_an_expired_key() {
    let home = Home::new().await;
    let keys = home.keys();
    home.store_expired("ada", "old").await;

    let winners = winners(&keys, |keys, racer| async move {
        keys.prepare("ada", &bson!(racer), Ttl::Forever).await.unwrap()
    })
    .await;

    assert_eq!(winners.len(), 1, "{winners:?}");
    assert_eq!(keys.get_value("ada").await.unwrap(), Some(bson!(winners[0])));
}

#[fixture::test]
async fn one_of_a_hundred_callers_changes_a_key() {
    let home = Home::new().await;
    let keys = home.keys();
    keys.prepare("ada", &bson!({ "a": 1, "b": 2 }), Ttl::Forever).await.unwrap();

    let winners = winners(&keys, |keys, racer| async move {
        let old = bson!({ "b": 2, "a": 1 });
        keys.reprepare("ada", Some(&old), &bson!(racer), Ttl::Forever).await.unwrap()
    })
    .await;

    assert_eq!(winners.len(), 1, "{winners:?}");
    assert_eq!(keys.get_value("ada").await.unwrap(), Some(bson!(winners[0])));
}

#[fixture::test]
async fn one_of_a_hundred_callers_rolls_a_key_back() {
    let home = Home::new().await;
    let keys = home.keys();
    keys.prepare("ada", &bson!(1), Ttl::Forever).await.unwrap();

    let winners = winners(&keys, |keys, racer| async move {
        match racer % 2 {
            0 => keys.rollback("ada").await.unwrap(),
            _ => keys.rollback_value("ada", &bson!(1)).await.unwrap(),
        }
    })
    .await;

    assert_eq!(winners.len(), 1, "{winners:?}");
}
