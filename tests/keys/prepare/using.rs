//! Work that is done while a key is held.

use std::sync::atomic::{AtomicBool, Ordering};

use bson::bson;
use postrider::prepare::{Ttl, UsingError};

use crate::home::Home;

#[tokio::test]
async fn the_key_stays_when_the_work_is_done() {
    let home = Home::new().await;
    let keys = home.keys();

    let work = async {
        let held = keys.get_value("ada").await.unwrap();
        Ok::<_, String>(held == Some(bson!(1)))
    };
    let done = keys.using_prepared("ada", &bson!(1), Ttl::Forever, work).await;

    assert_eq!(done.unwrap(), Some(true), "the key is held meanwhile");
    assert_eq!(keys.get_value("ada").await.unwrap(), Some(bson!(1)));
    home.drop().await;
}

#[tokio::test]
async fn the_key_is_rolled_back_when_the_work_fails() {
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
    home.drop().await;
}

#[tokio::test]
async fn the_work_is_not_begun_where_the_key_is_taken() {
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
    home.drop().await;
}

#[tokio::test]
async fn what_is_no_longer_ours_is_not_rolled_back() {
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
    home.drop().await;
}
