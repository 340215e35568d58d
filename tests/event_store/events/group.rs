//! Appends that share a transaction.

use bson::doc;
use futures_util::future::join_all;
use postrider::events::AppendError;
use tokio::sync::oneshot;

use crate::events::util::{TestStore, another, append, event, exactly, versions};
use crate::support::command_recorder::{Command, CommandRecorder};

fn is_commit(command: &Command) -> bool {
    command.name == "commitTransaction"
}

#[fixture::test]
async fn appends_during_a_transaction_share_the_next_one() {
    let test = TestStore::new().await;
    let recorder = CommandRecorder::on(&test.outbox).await;
    let store = another(&test.outbox, recorder.collections.client().clone());
    store.append(append("1", "first")).await.unwrap();
    let before = recorder.commands("commitTransaction").len();
    let (release, held) = oneshot::channel::<()>();
    recorder.after(is_commit, || async {
        held.await.unwrap();
    });

    // To one aggregate, so that all use one lane.
    let under_way = tokio::spawn({
        let store = store.clone();
        async move { store.append(append("1", "under way")).await.unwrap() }
    });
    crate::support::outbox::eventually("the first is committed", || async {
        recorder.has_paused()
    })
    .await;
    let waiting: Vec<_> = (0..50)
        .map(|number| {
            let store = store.clone();
            tokio::spawn(async move { store.append(append("1", &number.to_string())).await })
        })
        .collect();
    tokio::task::yield_now().await;
    release.send(()).unwrap();
    let answers = join_all(waiting).await;

    assert_eq!(under_way.await.unwrap().version, 2);
    assert!(answers.into_iter().all(|answer| answer.unwrap().is_ok()));
    // Some may have arrived after the first one was answered.
    let transactions = recorder.commands("commitTransaction").len() - before;
    assert!((2..=6).contains(&transactions), "{transactions}");
    assert_eq!(versions(&store, "1").await, (1..=52).collect::<Vec<_>>());
}

/// A refused record affects no other append.
#[fixture::test]
async fn refused_append_fails_alone() {
    let test = TestStore::new().await;
    test.store.append(append("0", "first")).await.unwrap();
    // Refused by a validator.
    let validator = doc! { "body.name": { "$ne": "Bad" } };
    let command = doc! { "collMod": "order_event_stream", "validator": validator };
    test.outbox.admin.database().run_command(command).await.unwrap();

    let appends = (0..90).map(|number| {
        let aggregate = (number % 9).to_string();
        let request = number.to_string();
        let append = match number % 10 {
            0 => {
                let mut bad = append(&aggregate, &request);
                bad.events = vec![event("Bad")];
                bad
            }
            1 => exactly(&aggregate, &request, 77),
            _ => append(&aggregate, &request),
        };
        test.store.append(append)
    });
    let answers = join_all(appends).await;

    for (number, answer) in answers.iter().enumerate() {
        match (number % 10, answer) {
            (0, Err(AppendError::Unavailable(_))) | (2.., Ok(_)) => {}
            (1, Err(AppendError::VersionConflict { .. })) => {}
            (_, other) => panic!("{number}: {other:?}"),
        }
    }
    let count = test.streams("order").await.len();
    assert_eq!(count, 1 + 72);
}

#[fixture::test]
async fn appends_to_an_aggregate_keep_their_order() {
    let test = TestStore::new().await;
    // The collection exists, so that appends wait in the queue only.
    test.store.append(append("1", "first")).await.unwrap();
    let mut answers = Vec::new();
    for number in 0..100 {
        let mut answer = Box::pin(test.store.append(append("1", &number.to_string())));
        // One poll puts it into the queue.
        assert!(futures_util::poll!(&mut answer).is_pending());
        answers.push(answer);
    }

    let answers = join_all(answers).await;

    let got: Vec<i64> = answers.into_iter().map(|answer| answer.unwrap().version).collect();
    assert_eq!(got, (2..=101).collect::<Vec<_>>());
}

#[fixture::test]
async fn close_answers_queued_appends_and_refuses_new_ones() {
    let test = TestStore::new().await;
    test.store.append(append("1", "first")).await.unwrap();
    let waiting: Vec<_> = (0..40)
        .map(|number| {
            let mut answer = Box::pin(test.store.append(append("1", &number.to_string())));
            let _ = futures_util::FutureExt::now_or_never(&mut answer);
            answer
        })
        .collect();

    test.store.close().await;
    let late = test.store.append(append("1", "late")).await.unwrap_err();
    let answers = join_all(waiting).await;

    assert!(matches!(late, AppendError::Closed), "{late}");
    assert!(answers.iter().all(Result::is_ok), "{answers:?}");
    assert_eq!(versions(&test.store, "1").await.len(), 41);
}

#[fixture::test]
async fn excess_appends_are_refused_and_queued_ones_answered() {
    let test = TestStore::new().await;
    test.store.append(append("1", "first")).await.unwrap();
    let mut in_queue = Vec::new();
    // The store takes them from the queue meanwhile.
    loop {
        let number = in_queue.len().to_string();
        let mut answer = Box::pin(test.store.append(append("1", &number)));
        match futures_util::FutureExt::now_or_never(&mut answer) {
            Some(Err(AppendError::Overloaded)) => break,
            None => in_queue.push(answer),
            other => panic!("{other:?}"),
        }
        assert!(in_queue.len() < 100_000, "none is turned away");
    }

    let answers = join_all(in_queue).await;

    assert!(answers.iter().all(Result::is_ok));
    assert_eq!(versions(&test.store, "1").await.len(), answers.len() + 1);
}
