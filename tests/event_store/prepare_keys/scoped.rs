//! Work while a key is held.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bson::{DateTime, bson, doc};
use postrider::prepare::{Ttl, UsingError};

use crate::home::Home;

#[fixture::test]
async fn key_is_kept_when_the_work_succeeds() {
    let home = Home::new().await;
    let keys = home.keys();

    let work = async {
        let held = keys.get_value("ada").await.unwrap();
        Ok::<_, String>(held == Some(bson!(1)))
    };
    let done = keys.using_prepared("ada", &bson!(1), Ttl::Forever, work).await;

    assert_eq!(done.unwrap(), Some(true), "the key is held meanwhile");
    assert_eq!(keys.get_value("ada").await.unwrap(), Some(bson!(1)));
}

#[fixture::test]
async fn key_is_rolled_back_when_the_work_fails() {
    let home = Home::new().await;
    let keys = home.keys();

    let using = tokio::spawn(async move {
        let work = async { Err::<(), _>("no such user") };
        keys.using_prepared("ada", &bson!(1), Ttl::Forever, work).await
    });
    let failed = using.await.unwrap();

    let Err(UsingError::Body { error, rolled_back }) = failed else { panic!("{failed:?}") };
    assert_eq!(error, "no such user");
    assert!(rolled_back.unwrap());
    assert_eq!(home.stored_key("ada").await, None);
}

#[fixture::test]
async fn work_does_not_begin_when_the_key_is_held() {
    let home = Home::new().await;
    let keys = home.keys();
    keys.prepare("ada", &bson!(1), Ttl::Forever).await.unwrap();
    let begun = AtomicBool::new(false);

    let work = async {
        begun.store(true, Ordering::SeqCst);
        Err::<(), _>("failed")
    };
    let done = keys.using_prepared("ada", &bson!(1), Ttl::Forever, work).await;

    assert_eq!(done.unwrap(), None);
    assert!(!begun.load(Ordering::SeqCst));
    assert_eq!(keys.get_value("ada").await.unwrap(), Some(bson!(1)), "it is not ours to give back");
}

#[fixture::test]
async fn changed_key_is_not_rolled_back() {
    let home = Home::new().await;
    let keys = home.keys();

    let work = async {
        keys.reprepare("ada", None, &bson!("another's"), Ttl::Forever).await.unwrap();
        Err::<(), _>("failed")
    };
    let failed = keys.using_prepared("ada", &bson!("ours"), Ttl::Forever, work).await;

    let Err(UsingError::Body { rolled_back, .. }) = failed else { panic!("{failed:?}") };
    assert!(!rolled_back.unwrap());
    assert_eq!(keys.get_value("ada").await.unwrap(), Some(bson!("another's")));
}

/// Equal values do not identify a call: a constant, or the same user in another request.
#[fixture::test]
async fn equal_key_of_another_caller_is_not_rolled_back() {
    for ttl in [Ttl::For(Duration::from_secs(600)), Ttl::Forever] {
        let home = Home::new().await;
        let keys = home.keys();

        let work = async {
            expire(&home).await;
            assert!(keys.prepare("ada", &bson!(1), ttl).await.unwrap());
            Err::<(), _>("failed")
        };
        let failed = keys.using_prepared("ada", &bson!(1), ttl, work).await;

        let Err(UsingError::Body { rolled_back, .. }) = failed else { panic!("{failed:?}") };
        assert!(!rolled_back.unwrap());
        assert_eq!(keys.get_value("ada").await.unwrap(), Some(bson!(1)));
    }
}

#[fixture::test]
async fn lost_key_is_reported_after_the_work() {
    let home = Home::new().await;
    let keys = home.keys();

    let late = async {
        expire(&home).await;
        Ok::<_, String>(())
    };
    let late = keys.using_prepared("ada", &bson!(1), Ttl::Forever, late).await;
    assert!(matches!(late, Err(UsingError::Lost { result: () })), "{late:?}");

    let taken = async {
        expire(&home).await;
        assert!(keys.prepare("ada", &bson!(1), Ttl::Forever).await.unwrap());
        Ok::<_, String>(7)
    };
    let taken = keys.using_prepared("ada", &bson!(1), Ttl::Forever, taken).await;
    assert!(matches!(taken, Err(UsingError::Lost { result: 7 })), "{taken:?}");
}

#[fixture::test]
async fn work_may_extend_its_key() {
    let home = Home::new().await;
    let keys = home.keys();
    let ttl = Ttl::For(Duration::from_secs(600));

    let keeps = async {
        let kept = keys.reprepare("ada", Some(&bson!(1)), &bson!(2), Ttl::Forever).await;
        Ok::<_, String>(kept.unwrap())
    };

    assert_eq!(keys.using_prepared("ada", &bson!(1), ttl, keeps).await.unwrap(), Some(true));
    assert_eq!(keys.get_value("ada").await.unwrap(), Some(bson!(2)));
}

/// The key expires.
async fn expire(home: &Home) {
    let past = doc! { "$set": { "ttlAt": DateTime::from_millis(1_000) } };
    home.stored().update_one(doc! { "_id": "ada" }, past).await.unwrap();
}
