//! The clauses of the contract of prepare keys.

use std::time::Duration;

use bson::{Bson, DateTime, doc};
use futures_util::future::join_all;
use postrider::prepare::{PrepareError, Ttl, UsingError};

use crate::contract::stores::Keys;

/// An end that has passed.
const ENDED: Ttl = Ttl::At(DateTime::MIN);

fn value(text: &str) -> Bson {
    doc! { "user": text, "n": 1 }.into()
}

/// The same value with its fields in another order.
fn turned(text: &str) -> Bson {
    doc! { "n": 1, "user": text }.into()
}

async fn take(keys: &impl Keys, key: &str, text: &str) -> bool {
    keys.prepare(key, &value(text), Ttl::Forever).await.unwrap()
}

/// The value, read in both ways.
async fn held(keys: &impl Keys, key: &str) -> Option<Bson> {
    let got = keys.get(key).await.unwrap().map(|prepared| prepared.value);
    assert_eq!(keys.get_value(key).await.unwrap(), got);
    got
}

pub async fn key_is_held_until_rollback(keys: &impl Keys) {
    assert_eq!(held(keys, "k").await, None);
    assert!(!keys.rollback("k").await.unwrap());
    for _ in 0..2 {
        assert!(take(keys, "k", "a").await);
        assert!(!take(keys, "k", "a").await);
        assert!(!take(keys, "k", "b").await);
        assert_eq!(held(keys, "k").await, Some(value("a")));
        assert!(take(keys, "other", "b").await);

        assert!(keys.rollback("k").await.unwrap());
        assert!(!keys.rollback("k").await.unwrap());
        assert_eq!(held(keys, "k").await, None);
        assert!(keys.rollback("other").await.unwrap());
    }
}

pub async fn one_of_several_callers_prepares_a_key(keys: &impl Keys) {
    assert!(keys.prepare("expired", &value(""), ENDED).await.unwrap());

    for key in ["new", "expired"] {
        let racers: Vec<String> = (0..100).map(|racer| racer.to_string()).collect();
        let taken = join_all(racers.iter().map(|racer| take(keys, key, racer))).await;

        let won: Vec<_> = racers.iter().zip(&taken).filter(|(_, won)| **won).collect();
        assert_eq!(won.len(), 1, "{key}");
        assert_eq!(held(keys, key).await, Some(value(won[0].0)));
    }
}

pub async fn key_is_changed_only_with_the_expected_value(keys: &impl Keys) {
    let change = async |old: Option<&str>, new: &str| {
        let old = old.map(turned);
        keys.reprepare("k", old.as_ref(), &value(new), Ttl::Forever).await.unwrap()
    };
    assert!(!change(None, "b").await);
    assert!(!change(Some("a"), "b").await);
    assert!(take(keys, "k", "a").await);

    assert!(!change(Some("x"), "b").await);
    assert_eq!(held(keys, "k").await, Some(value("a")));
    assert!(change(Some("a"), "b").await);
    assert_eq!(held(keys, "k").await, Some(value("b")));
    assert!(change(None, "c").await);
    assert_eq!(held(keys, "k").await, Some(value("c")));
}

pub async fn key_is_rolled_back_only_with_the_expected_value(keys: &impl Keys) {
    assert!(!keys.rollback_value("k", &value("a")).await.unwrap());
    assert!(take(keys, "k", "a").await);

    assert!(!keys.rollback_value("k", &value("b")).await.unwrap());
    assert_eq!(held(keys, "k").await, Some(value("a")));
    assert!(keys.rollback_value("k", &turned("a")).await.unwrap());
    assert_eq!(held(keys, "k").await, None);
}

/// The Wow framework ignores the end in some operations.
pub async fn expired_key_is_absent_for_every_operation(keys: &impl Keys) {
    let expired = async |key: &str| {
        assert!(keys.prepare(key, &value("a"), ENDED).await.unwrap());
    };
    let ttl = Ttl::Forever;

    expired("read").await;
    assert_eq!(held(keys, "read").await, None);
    expired("given back").await;
    assert!(!keys.rollback("given back").await.unwrap());
    assert!(!keys.rollback_value("given back", &value("a")).await.unwrap());
    expired("changed").await;
    assert!(!keys.reprepare("changed", None, &value("b"), ttl).await.unwrap());
    assert!(!keys.reprepare("changed", Some(&value("a")), &value("b"), ttl).await.unwrap());
    assert_eq!(held(keys, "changed").await, None);
    expired("moved").await;
    let moved = keys.move_key(("moved", &value("a")), ("new", &value("a")), ttl).await;
    assert!(matches!(moved, Err(PrepareError::NotPrepared)), "{moved:?}");
    assert_eq!(held(keys, "new").await, None);
    for key in ["read", "given back", "changed", "moved"] {
        assert!(take(keys, key, "b").await, "{key}");
    }
}

pub async fn end_of_a_key_is_returned(keys: &impl Keys) {
    let end = async |key: &str| keys.get(key).await.unwrap().unwrap().ttl_at;
    let due = DateTime::from_millis(4_000_000_000_000);
    assert!(keys.prepare("at", &value("a"), Ttl::At(due)).await.unwrap());
    let hour = Ttl::For(Duration::from_secs(3_600));
    assert!(keys.prepare("for", &value("a"), hour).await.unwrap());
    assert!(take(keys, "ever", "a").await);

    assert_eq!(end("at").await, Some(due));
    assert!(end("for").await.is_some());
    assert_eq!(end("ever").await, None);
    assert!(keys.reprepare("ever", None, &value("b"), Ttl::At(due)).await.unwrap());
    assert_eq!(end("ever").await, Some(due));
}

pub async fn key_is_moved_with_its_value(keys: &impl Keys) {
    assert!(take(keys, "old", "a").await);

    let moved = keys.move_key(("old", &turned("a")), ("new", &value("b")), Ttl::Forever).await;

    assert!(moved.unwrap());
    assert_eq!(held(keys, "old").await, None);
    assert_eq!(held(keys, "new").await, Some(value("b")));
}

pub async fn key_that_cannot_be_moved_is_kept(keys: &impl Keys) {
    assert!(take(keys, "old", "a").await);
    assert!(take(keys, "taken", "b").await);
    let ttl = Ttl::Forever;

    assert!(!keys.move_key(("old", &value("a")), ("taken", &value("a")), ttl).await.unwrap());
    for (key, text) in [("old", "wrong"), ("missing", "a")] {
        let refused = keys.move_key((key, &value(text)), ("new", &value("a")), ttl).await;
        assert!(matches!(refused, Err(PrepareError::NotPrepared)), "{refused:?}");
    }

    assert_eq!(held(keys, "old").await, Some(value("a")));
    assert_eq!(held(keys, "taken").await, Some(value("b")));
    assert_eq!(held(keys, "new").await, None);
}

pub async fn key_is_not_moved_to_itself(keys: &impl Keys) {
    assert!(take(keys, "k", "a").await);

    let refused = keys.move_key(("k", &value("a")), ("k", &value("b")), Ttl::Forever).await;

    assert!(matches!(refused, Err(PrepareError::SameKey)), "{refused:?}");
    assert_eq!(held(keys, "k").await, Some(value("a")));
}

pub async fn key_is_rolled_back_when_its_work_fails(keys: &impl Keys) {
    let ttl = Ttl::Forever;
    let fails = async { Err("no".to_owned()) };
    let failed = keys.using_prepared("k", &value("a"), ttl, fails).await;
    assert!(matches!(&failed, Err(UsingError::Body { error, .. }) if error == "no"), "{failed:?}");
    assert_eq!(held(keys, "k").await, None);

    let works = async { Ok(7) };
    assert_eq!(keys.using_prepared("k", &value("a"), ttl, works).await.unwrap(), Some(7));
    assert_eq!(held(keys, "k").await, Some(value("a")));

    let never = async { panic!("somebody else holds the key") };
    assert_eq!(keys.using_prepared("k", &value("b"), ttl, never).await.unwrap(), None);
    assert_eq!(held(keys, "k").await, Some(value("a")));
}
