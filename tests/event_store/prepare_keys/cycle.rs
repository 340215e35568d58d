//! Prepares, reads, changes and rolls back keys.

use bson::{Bson, bson, doc};
use postrider::prepare::{PrepareError, PrepareKey, PrepareName, Prepared, Ttl};

use crate::home::Home;
use crate::support::outbox::insert_broken;

#[fixture::test]
async fn key_is_prepared_once_and_again_after_rollback() {
    let home = Home::new().await;
    let keys = home.keys();

    assert!(keys.prepare("ada", &bson!("first"), Ttl::Forever).await.unwrap());
    assert!(!keys.prepare("ada", &bson!("second"), Ttl::Forever).await.unwrap());
    assert_eq!(keys.get_value("ada").await.unwrap(), Some(bson!("first")));

    assert!(keys.rollback("ada").await.unwrap());
    assert!(!keys.rollback("ada").await.unwrap());
    assert_eq!(keys.get_value("ada").await.unwrap(), None);

    assert!(keys.prepare("ada", &bson!("second"), Ttl::Forever).await.unwrap());
    assert_eq!(keys.get_value("ada").await.unwrap(), Some(bson!("second")));
}

#[fixture::test]
async fn unprepared_key_is_absent() {
    let home = Home::new().await;
    let keys = home.keys();

    assert_eq!(keys.get("nobody").await.unwrap(), None);
    assert!(!keys.rollback("nobody").await.unwrap());
    assert!(!keys.rollback_value("nobody", &Bson::Null).await.unwrap());
    assert!(!keys.reprepare("nobody", None, &bson!(1), Ttl::Forever).await.unwrap());
    assert!(!keys.reprepare("nobody", Some(&Bson::Null), &bson!(1), Ttl::Forever).await.unwrap());
    assert_eq!(home.stored_key("nobody").await, None);
}

#[fixture::test]
async fn key_for_ever_is_stored_without_an_end() {
    let home = Home::new().await;

    home.keys().prepare("ada", &bson!({ "user": 7 }), Ttl::Forever).await.unwrap();

    let stored = home.stored_key("ada").await.unwrap();
    assert_eq!(stored, doc! { "_id": "ada", "value": { "user": 7 } });
}

#[fixture::test]
async fn key_is_changed_only_with_its_value() {
    let home = Home::new().await;
    let keys = home.keys();
    keys.prepare("ada", &bson!("old"), Ttl::Forever).await.unwrap();

    let wrong = keys.reprepare("ada", Some(&bson!("other")), &bson!("new"), Ttl::Forever).await;
    assert!(!wrong.unwrap());
    assert_eq!(keys.get_value("ada").await.unwrap(), Some(bson!("old")));

    let right = keys.reprepare("ada", Some(&bson!("old")), &bson!("new"), Ttl::Forever).await;
    assert!(right.unwrap());
    assert_eq!(keys.get_value("ada").await.unwrap(), Some(bson!("new")));

    assert!(keys.reprepare("ada", None, &bson!("newer"), Ttl::Forever).await.unwrap());
    assert_eq!(keys.get_value("ada").await.unwrap(), Some(bson!("newer")));
}

#[fixture::test]
async fn key_is_rolled_back_only_with_its_value() {
    let home = Home::new().await;
    let keys = home.keys();
    keys.prepare("ada", &bson!("mine"), Ttl::Forever).await.unwrap();

    assert!(!keys.rollback_value("ada", &bson!("yours")).await.unwrap());
    assert!(keys.get("ada").await.unwrap().is_some());
    assert!(keys.rollback_value("ada", &bson!("mine")).await.unwrap());
    assert_eq!(home.stored_key("ada").await, None);
}

#[fixture::test]
async fn key_is_changed_to_the_same_value() {
    let home = Home::new().await;
    let keys = home.keys();
    keys.prepare("ada", &bson!("same"), Ttl::Forever).await.unwrap();

    let same = bson!("same");
    assert!(keys.reprepare("ada", Some(&same), &same, Ttl::Forever).await.unwrap());
    assert!(keys.reprepare("ada", None, &same, Ttl::Forever).await.unwrap());
}

#[fixture::test]
async fn values_have_the_users_type() {
    #[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
    struct Owner {
        user: i64,
        mails: Vec<String>,
    }
    let home = Home::new().await;
    let keys = PrepareKey::<Owner>::new(home.context.clone(), PrepareName::new("mail").unwrap());
    let ada = Owner { user: 7, mails: vec!["ada@example.org".into()] };
    let bob = Owner { user: 8, mails: vec![] };

    assert!(keys.prepare("k", &ada, Ttl::Forever).await.unwrap());
    let prepared = keys.get("k").await.unwrap();
    assert_eq!(prepared, Some(Prepared { value: ada.clone(), ttl_at: None }));
    assert!(keys.reprepare("k", Some(&ada), &bob, Ttl::Forever).await.unwrap());
    assert!(!keys.rollback_value("k", &ada).await.unwrap());
    assert!(keys.rollback_value("k", &bob).await.unwrap());
}

/// MongoDB stores bytes that are not text, and some drivers write them.
#[fixture::test]
async fn key_whose_value_is_not_text_can_be_released() {
    let home = Home::new().await;
    let keys = home.keys();
    keys.prepare("sound", &bson!("x"), Ttl::Forever).await.unwrap();
    let stored = home.stored();
    insert_broken(&stored, &doc! { "_id": "odd", "value": { "t": "MARK" } }).await;

    let error = keys.get("odd").await.unwrap_err();

    assert!(matches!(error, PrepareError::Decode(_)), "{error:?}");
    assert!(!keys.prepare("odd", &bson!("mine"), Ttl::Forever).await.unwrap());
    assert_eq!(keys.get_value("sound").await.unwrap(), Some(bson!("x")));
    assert!(keys.rollback("odd").await.unwrap());
    assert!(keys.prepare("odd", &bson!("mine"), Ttl::Forever).await.unwrap());
}
