//! Moves of values between keys.

use std::time::Duration;

use bson::{bson, doc};
use postrider::prepare::{PrepareError, Ttl};

use crate::home::Home;
use crate::support::command_recorder::CommandRecorder;
use crate::support::outbox::{TestOutbox, eventually};

#[fixture::test]
async fn key_is_moved_with_its_value() {
    let home = Home::new().await;
    let keys = home.keys();
    keys.prepare("ada", &bson!({ "a": 1, "b": 2 }), Ttl::Forever).await.unwrap();

    let known = bson!({ "b": 2, "a": 1 });
    assert!(keys.move_key("ada", &known, "bob", &bson!(7), Ttl::Forever).await.unwrap());

    assert_eq!(home.stored_key("ada").await, None);
    assert_eq!(home.stored_key("bob").await, Some(doc! { "_id": "bob", "value": 7 }));
}

#[fixture::test]
async fn key_is_not_moved_to_a_held_key() {
    let home = Home::new().await;
    let keys = home.keys();
    keys.prepare("ada", &bson!(1), Ttl::Forever).await.unwrap();
    keys.prepare("bob", &bson!(2), Ttl::Forever).await.unwrap();

    assert!(!keys.move_key("ada", &bson!(1), "bob", &bson!(3), Ttl::Forever).await.unwrap());

    assert_eq!(keys.get_value("ada").await.unwrap(), Some(bson!(1)));
    assert_eq!(keys.get_value("bob").await.unwrap(), Some(bson!(2)));
}

#[fixture::test]
async fn absent_key_is_not_moved() {
    let home = Home::new().await;
    let keys = home.keys();
    keys.prepare("ada", &bson!(1), Ttl::Forever).await.unwrap();

    for (old, value) in [("nobody", bson!(1)), ("ada", bson!(2))] {
        let moved = keys.move_key(old, &value, "bob", &bson!(3), Ttl::Forever).await;
        assert!(matches!(moved, Err(PrepareError::NotPrepared)), "{moved:?}");
    }

    assert_eq!(home.stored_key("bob").await, None);
    assert_eq!(keys.get_value("ada").await.unwrap(), Some(bson!(1)));
}

#[fixture::test]
async fn key_that_expires_after_the_read_is_not_moved() {
    let outbox = TestOutbox::new().await;
    let keys = Home::within(&outbox, &outbox.client).keys();
    let recorder = CommandRecorder::on(&outbox).await;
    let slow = Home::within(&outbox, recorder.collections.client()).keys();
    // The schema has been checked.
    assert!(!slow.rollback("nobody").await.unwrap());
    let watched = keys.clone();
    recorder.after(
        |command| command.name == "find",
        move || async move {
            let ended = || async { watched.get("ada").await.unwrap().is_none() };
            eventually("the key's end", ended).await;
        },
    );
    keys.prepare("ada", &bson!(1), Ttl::For(Duration::from_secs(1))).await.unwrap();

    let moved = slow.move_key("ada", &bson!(1), "bob", &bson!(2), Ttl::Forever).await;

    assert!(recorder.has_paused());
    assert!(matches!(moved, Err(PrepareError::NotPrepared)), "{moved:?}");
    assert_eq!(keys.get("bob").await.unwrap(), None);
}

#[fixture::test]
async fn key_is_not_moved_to_itself() {
    let home = Home::new().await;
    let keys = home.keys();
    keys.prepare("ada", &bson!(1), Ttl::Forever).await.unwrap();

    let moved = keys.move_key("ada", &bson!(1), "ada", &bson!(2), Ttl::Forever).await;

    assert!(matches!(moved, Err(PrepareError::SameKey)), "{moved:?}");
    assert_eq!(keys.get_value("ada").await.unwrap(), Some(bson!(1)));
}

#[fixture::test]
async fn concurrent_moves_of_one_key_succeed_once() {
    let home = Home::new().await;
    let keys = home.keys();
    keys.prepare("ada", &bson!("ada"), Ttl::Forever).await.unwrap();

    let moves = (0..10).map(|mover| {
        let keys = keys.clone();
        tokio::spawn(async move {
            let (new, value) = (format!("bob-{mover}"), bson!(mover));
            keys.move_key("ada", &bson!("ada"), &new, &value, Ttl::Forever).await
        })
    });
    let mut moved = 0;
    for ended in futures_util::future::join_all(moves).await {
        match ended.unwrap() {
            Ok(true) => moved += 1,
            Err(PrepareError::NotPrepared) => {}
            other => panic!("{other:?}"),
        }
    }

    assert_eq!(moved, 1);
    assert_eq!(home.stored().count_documents(doc! {}).await.unwrap(), 1);
}

#[fixture::test]
async fn concurrent_moves_to_one_key_succeed_once() {
    let home = Home::new().await;
    let keys = home.keys();
    for mover in 0..10 {
        keys.prepare(&format!("ada-{mover}"), &bson!(mover), Ttl::Forever).await.unwrap();
    }

    let moves = (0..10).map(|mover| {
        let keys = keys.clone();
        tokio::spawn(async move {
            let (old, value) = (format!("ada-{mover}"), bson!(mover));
            keys.move_key(&old, &value, "bob", &value, Ttl::Forever).await.unwrap()
        })
    });
    let ended = futures_util::future::join_all(moves).await;
    let moved = ended.into_iter().filter_map(Result::ok).filter(|moved| *moved).count();

    assert_eq!(moved, 1);
    // Nine old keys and the new one.
    assert_eq!(home.stored().count_documents(doc! {}).await.unwrap(), 10);
    assert!(keys.get("bob").await.unwrap().is_some());
}
