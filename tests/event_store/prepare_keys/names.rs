//! Invalid keys and values.

use bson::{Bson, bson};
use postrider::names::InvalidName;
use postrider::prepare::{PrepareError, PrepareName, Ttl};

use crate::home::Home;

#[test]
fn invalid_name_is_refused() {
    assert_eq!(PrepareName::new("1st"), Err(InvalidName::Name));
    assert_eq!(PrepareName::new(""), Err(InvalidName::Name));
    assert!(PrepareName::new("user.name-idx_2").is_ok());
}

#[fixture::test]
async fn invalid_key_is_refused_by_every_operation() {
    let home = Home::new().await;
    let keys = home.keys();
    let one = bson!(1);
    for wrong in [String::new(), "ß".repeat(256)] {
        let outcomes = [
            keys.prepare(&wrong, &one, Ttl::Forever).await,
            keys.get(&wrong).await.map(|_| true),
            keys.reprepare(&wrong, None, &one, Ttl::Forever).await,
            keys.rollback(&wrong).await,
            keys.rollback_value(&wrong, &one).await,
            keys.move_key(&wrong, &one, "right", &one, Ttl::Forever).await,
            keys.move_key("right", &one, &wrong, &one, Ttl::Forever).await,
        ];
        for outcome in outcomes {
            assert!(matches!(outcome, Err(PrepareError::Key(InvalidName::Id))), "{outcome:?}");
        }
    }
    assert!(keys.prepare(&"ß".repeat(255), &one, Ttl::Forever).await.unwrap());
}

#[fixture::test]
async fn value_too_large_is_reported() {
    let home = Home::new().await;
    let keys = home.keys();
    for mib in [16, 17, 50] {
        let value = Bson::from("x".repeat(mib << 20));
        let prepared = keys.prepare("ada", &value, Ttl::Forever).await;
        assert!(matches!(prepared, Err(PrepareError::TooLarge)), "{mib} MiB: {prepared:?}");
    }
    assert_eq!(home.stored_key("ada").await, None);
}

#[fixture::test]
async fn value_of_half_a_document_is_changed() {
    let home = Home::new().await;
    let keys = home.keys();
    let [old, new] = ["a", "b"].map(|letter| Bson::from(letter.repeat(7 << 20)));

    assert!(keys.prepare("ada", &old, Ttl::Forever).await.unwrap());
    assert!(keys.reprepare("ada", Some(&old), &new, Ttl::Forever).await.unwrap());
    assert!(keys.rollback_value("ada", &new).await.unwrap());
}

#[fixture::test]
async fn value_too_large_to_be_compared_is_reported() {
    let home = Home::new().await;
    let keys = home.keys();
    let [old, new] = ["a", "b"].map(|letter| Bson::from(letter.repeat(12 << 20)));
    assert!(keys.prepare("ada", &old, Ttl::Forever).await.unwrap());

    let changed = keys.reprepare("ada", Some(&old), &new, Ttl::Forever).await;
    assert!(matches!(changed, Err(PrepareError::TooLarge)), "{changed:?}");
    assert!(keys.reprepare("ada", None, &new, Ttl::Forever).await.unwrap());
    assert!(keys.rollback_value("ada", &new).await.unwrap());
}

#[fixture::test]
async fn value_too_deep_is_reported() {
    let home = Home::new().await;
    let deep = (0..190).fold(bson!(1), |inner, _| bson!([inner]));

    let prepared = home.keys().prepare("ada", &deep, Ttl::Forever).await;

    assert!(matches!(prepared, Err(PrepareError::TooDeep)), "{prepared:?}");
}
