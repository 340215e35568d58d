//! Expected versions and concurrent appends.

use std::collections::BTreeSet;

use futures_util::future::join_all;
use postrider::events::{Append, AppendError, Expected};

use crate::events::util::{TestStore, another, append, exactly, versions};

#[fixture::test]
async fn append_is_refused_at_an_unexpected_version() {
    let test = TestStore::new().await;
    let append = |request: &str, expected| {
        let append = append("1", request).expecting(expected);
        test.store.append(append)
    };
    let refused = |answer: Result<_, AppendError>| answer.unwrap_err().to_string();

    assert_eq!(
        refused(append("a", Expected::Exists).await),
        "version conflict: expected an aggregate that exists, but the aggregate is at version 0"
    );
    assert_eq!(
        refused(append("a", Expected::Exact(3)).await),
        "version conflict: expected version 3, but the aggregate is at version 0"
    );
    assert_eq!(append("a", Expected::None).await.unwrap().version, 1);
    assert_eq!(append("b", Expected::Exact(1)).await.unwrap().version, 2);
    assert_eq!(append("c", Expected::Exists).await.unwrap().version, 3);
    assert_eq!(append("d", Expected::Any).await.unwrap().version, 4);
    for none in [Expected::None, Expected::Exact(0)] {
        assert_eq!(refused(append("e", none).await), "the aggregate already exists, at version 4");
    }
    for stale in [1, 3, 5, 9] {
        assert_eq!(
            refused(append("e", Expected::Exact(stale)).await),
            format!(
                "version conflict: expected version {stale}, but the aggregate is at version 4"
            )
        );
    }
    assert_eq!(versions(&test.store, "1").await, [1, 2, 3, 4]);
}

/// One of several appends that expect the same version wins, in one process or in several.
#[fixture::test]
async fn one_of_a_hundred_appends_wins_a_version() {
    let test = TestStore::new().await;
    let mut stores = vec![test.store.clone()];
    for _ in 0..3 {
        let uri = &test.outbox.uri;
        let client = postrider::store::connect::client(uri).await.unwrap();
        stores.push(another(&test.outbox, client));
    }

    for (aggregate, before) in [("new", 0), ("old", 1)] {
        if before == 1 {
            test.store.append(append(aggregate, "first")).await.unwrap();
        }
        let racers = (0..100).map(|racer| {
            let store = &stores[racer % stores.len()];
            store.append(exactly(aggregate, &format!("r-{racer}"), before))
        });
        let answers = join_all(racers).await;

        let (won, lost): (Vec<_>, Vec<_>) = answers.into_iter().partition(Result::is_ok);
        assert_eq!(won.len(), 1);
        for lost in lost {
            let error = lost.unwrap_err();
            let actual = match error {
                AppendError::DuplicateAggregate { actual } if before == 0 => actual,
                AppendError::VersionConflict { actual, .. } if before == 1 => actual,
                other => panic!("{other}"),
            };
            assert_eq!(actual, before + 1);
        }
        assert_eq!(test.records(aggregate).await.len(), usize::try_from(before).unwrap() + 1);
    }
}

#[fixture::test]
async fn concurrent_appends_at_any_version_leave_no_gap() {
    let test = TestStore::new().await;
    let client = postrider::store::connect::client(&test.outbox.uri).await.unwrap();
    let stores = [test.store.clone(), another(&test.outbox, client)];

    let appends = (0..60).map(|number| stores[number % 2].append(append("1", &number.to_string())));
    let answers = join_all(appends).await;

    let got: BTreeSet<i64> = answers.into_iter().map(|answer| answer.unwrap().version).collect();
    assert_eq!(got, (1..=60).collect());
    assert_eq!(versions(&test.store, "1").await, (1..=60).collect::<Vec<_>>());
    // Records are in the order of versions: a later transaction has read the earlier version.
    let records = test.records("1").await;
    let order = |record: &bson::Document| {
        record.get_document("headers").unwrap().get_i32("aggregate-version").unwrap()
    };
    assert_eq!(records.iter().map(order).collect::<Vec<_>>(), (1..=60).collect::<Vec<_>>());
}

#[fixture::test]
async fn request_sent_many_times_at_once_is_appended_once() {
    let test = TestStore::new().await;
    let client = postrider::store::connect::client(&test.outbox.uri).await.unwrap();
    let stores = [test.store.clone(), another(&test.outbox, client)];
    let expecting: [fn() -> Append; 3] =
        [|| append("any", "r"), || exactly("none", "r", 0), || exactly("exact", "r", 1)];
    test.store.append(append("exact", "first")).await.unwrap();

    for expecting in expecting {
        let appends = (0..40).map(|number| stores[number % 2].append(expecting()));
        let answers: Vec<_> = join_all(appends).await.into_iter().map(Result::unwrap).collect();

        let first: Vec<_> = answers.iter().filter(|answer| !answer.replayed).collect();
        assert_eq!(first.len(), 1);
        assert!(answers.iter().all(|answer| answer.records == first[0].records));
    }
}

#[fixture::test]
async fn stale_version_causes_no_conflict() {
    let test = TestStore::new().await;
    let client = postrider::store::connect::client(&test.outbox.uri).await.unwrap();
    let other = another(&test.outbox, client);
    test.store.append(append("1", "a")).await.unwrap();
    other.append(append("1", "b")).await.unwrap();

    // This store has cached version 1.
    let fits = test.store.append(exactly("1", "c", 2)).await.unwrap();
    other.append(append("1", "d")).await.unwrap();
    let stale = test.store.append(exactly("1", "e", 3)).await.unwrap_err();

    assert_eq!(fits.version, 3);
    assert!(matches!(stale, AppendError::VersionConflict { actual: 4, .. }), "{stale}");
}
