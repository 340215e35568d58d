//! Repeated units of work.

use bson::doc;
use postrider::context::{ContextSettings, RequestIds};
use postrider::events::{Append, AppendError, Appended, EventStore, UnitError, UnitOutcome};
use postrider::outbox::NewRecord;

use crate::events::unit::{committed, left, own, replayed, work};
use crate::events::util::{TestStore, another_with, append, exactly};

async fn two(store: &EventStore, one: Append, two: Append) -> Result<UnitOutcome<()>, UnitError> {
    let own = own(store);
    let outcome = store.unit_of_work(async |mut unit| {
        unit.append(one.clone()).await?;
        unit.append(two.clone()).await?;
        own.insert_one(doc! { "of": "this run" }).session(unit.session()).await?;
        unit.enqueue(NewRecord::new("Plain", doc! {}))?;
        Ok(())
    });
    outcome.await
}

fn as_replays(answers: impl IntoIterator<Item = Appended>) -> Vec<Appended> {
    answers.into_iter().map(|answer| Appended { replayed: true, ..answer }).collect()
}

#[fixture::test]
async fn repeated_unit_is_a_replay_with_the_first_answers() {
    let test = TestStore::new().await;
    let store = &test.store;
    let (a, b) = (exactly("1", "a", 0), exactly("1", "b", 1));
    let (_, first) = committed(two(store, a.clone(), b.clone()).await.unwrap());
    let before = left(&test).await;

    let again = replayed(two(store, a, b).await.unwrap());
    // With any expectation, in any order.
    let any = replayed(two(store, append("1", "b"), append("1", "a")).await.unwrap());
    let part = two(store, append("1", "a"), append("2", "c")).await.unwrap_err();

    assert_eq!(again, as_replays(first.clone()));
    assert_eq!(any, as_replays(first.into_iter().rev()));
    assert!(matches!(&part, UnitError::Append(AppendError::DuplicateRequest { .. })), "{part:?}");
    assert_eq!(left(&test).await, before);
}

/// The work must fail when it inserts the same document again.
#[fixture::test]
async fn work_that_fails_on_its_own_insert_is_a_replay() {
    let test = TestStore::new().await;
    let own = own(&test.store);
    let done = || test.store.unit_of_work(async |mut unit| work(&mut unit, &own).await);

    let (version, first) = committed(done().await.unwrap());
    let again = replayed(done().await.unwrap());

    assert_eq!(version, 1);
    assert_eq!(again, as_replays(first));
    assert_eq!(left(&test).await, (1, 1, 2));
}

#[fixture::test]
async fn unit_refuses_a_global_request_id_of_another_aggregate() {
    let test = TestStore::new().await;
    let settings = ContextSettings {
        request_ids: RequestIds::Global,
        ..ContextSettings::new(&test.outbox.database)
    };
    let store = another_with(&test.outbox, test.outbox.admin.client().clone(), settings);
    store.append(append("1", "r")).await.unwrap();

    let there = two(&store, append("2", "r"), append("3", "s")).await.unwrap_err();
    let twin = two(&store, append("2", "t"), append("3", "t")).await.unwrap_err();

    assert_eq!(there.to_string(), "aggregate \"1\" has already used this request id");
    assert_eq!(twin.to_string(), "aggregate \"2\" has already used this request id");
    assert_eq!(left(&test).await, (0, 1, 1));
}
