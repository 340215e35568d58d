//! Failures in the middle of units of work.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use bson::doc;
use postrider::events::UnitError;

use crate::events::unit::{committed, left, own, work};
use crate::events::util::{TestStore, another, append, behind_a_proxy, versions};
use crate::support::fault_proxy::ProxyFault;
use crate::support::outbox::eventually;

#[fixture::test]
async fn panicked_or_dropped_work_leaves_nothing() {
    let test = TestStore::new().await;
    test.store.append(append("0", "first")).await.unwrap();
    for panics in [true, false] {
        let (store, own) = (test.store.clone(), own(&test.store));
        let mine = own.clone();
        let (reached, is_there) = tokio::sync::oneshot::channel();
        let reached = Mutex::new(Some(reached));
        let running = tokio::spawn(async move {
            let outcome = store.unit_of_work(async |mut unit| {
                work(&mut unit, &mine).await?;
                reached.lock().unwrap().take().unwrap().send(()).unwrap();
                if panics {
                    // A panic without its hook.
                    std::panic::resume_unwind(Box::new("as it is meant"));
                }
                std::future::pending::<()>().await;
                Ok(())
            });
            drop(outcome.await);
        });
        is_there.await.unwrap();
        running.abort();
        let ended = running.await.unwrap_err();

        assert_eq!(ended.is_panic(), panics);
        assert_eq!(left(&test).await, (0, 1, 1));
        // Without an abort MongoDB would lock its document for a minute.
        let again = own.insert_one(doc! { "_id": "own" }).into_future();
        tokio::time::timeout(Duration::from_secs(20), again).await.unwrap().unwrap();
        own.delete_one(doc! { "_id": "own" }).await.unwrap();
    }
}

#[fixture::test]
async fn unit_is_retried_when_mongodb_ended_its_transaction() {
    let test = TestStore::new().await;
    test.store.append(append("1", "first")).await.unwrap();
    let (own, runs) = (own(&test.store), AtomicU32::new(0));
    let database = test.outbox.admin.database();

    let outcome = test.store.unit_of_work(async |mut unit| {
        own.insert_one(doc! { "_id": "own" }).session(unit.session()).await?;
        if runs.fetch_add(1, Ordering::Relaxed) < 2 {
            let kill = doc! { "killSessions": [unit.session().id().clone()] };
            database.run_command(kill).await?;
        }
        // Noticed by the work, or by the commit only.
        if runs.load(Ordering::Relaxed) == 1 {
            own.find_one(doc! {}).session(unit.session()).await?;
        }
        unit.append(append("1", "r")).await
    });
    let (_, appended) = committed(outcome.await.unwrap());

    assert_eq!(runs.load(Ordering::Relaxed), 3);
    assert_eq!(appended[0].version, 2);
    assert_eq!(left(&test).await, (1, 2, 2));
}

/// An uncommitted document of another transaction is a write conflict (112), and no failure.
#[fixture::test]
async fn unit_waits_for_an_uncommitted_append() {
    for commits in [true, false] {
        let test = TestStore::new().await;
        let (own, runs) = (own(&test.store), AtomicU32::new(0));
        test.store.append(append("1", "first")).await.unwrap();
        own.insert_one(doc! { "_id": "other" }).await.unwrap();
        let mut session = test.outbox.admin.client().start_session().await.unwrap();
        session.start_transaction().await.unwrap();
        own.insert_one(doc! { "_id": "own" }).session(&mut session).await.unwrap();

        let unit = test.store.unit_of_work(async |mut unit| {
            runs.fetch_add(1, Ordering::Relaxed);
            work(&mut unit, &own).await
        });
        let ending = async {
            eventually("a second try", || async { runs.load(Ordering::Relaxed) > 1 }).await;
            if commits {
                session.commit_transaction().await.unwrap()
            } else {
                session.abort_transaction().await.unwrap()
            }
        };
        let (outcome, ()) = tokio::join!(unit, ending);

        match (commits, outcome) {
            (true, Err(UnitError::Own(_))) => assert_eq!(left(&test).await, (2, 1, 1)),
            (false, Ok(outcome)) => {
                assert_eq!(committed(outcome).0, 2);
                assert_eq!(left(&test).await, (2, 2, 3));
            }
            (_, other) => panic!("{other:?}"),
        }
    }
}

#[fixture::test]
async fn concurrent_units_and_appends_leave_no_gap() {
    let test = TestStore::new().await;
    let client = postrider::store::connect::client(&test.outbox.uri).await.unwrap();
    let stores = [test.store.clone(), another(&test.outbox, client)];
    test.store.append(append("1", "first")).await.unwrap();
    let racing = (0..24).map(|number| {
        let store = stores[number % 2].clone();
        // Each in a task of its own, as in applications.
        tokio::spawn(async move {
            let request = number.to_string();
            if number % 3 == 0 {
                return store.append(append("1", &request)).await.unwrap();
            }
            let own = own(&store);
            let outcome = store.unit_of_work(async |mut unit| {
                let appended = unit.append(append("1", &request)).await?;
                own.insert_one(doc! { "at": appended.version }).session(unit.session()).await?;
                Ok(())
            });
            committed(outcome.await.unwrap()).1.remove(0)
        })
    });

    let answers = futures_util::future::join_all(racing).await;

    let mut got: Vec<i64> = answers.into_iter().map(|answer| answer.unwrap().version).collect();
    got.sort_unstable();
    assert_eq!(got, (2..=25).collect::<Vec<_>>());
    assert_eq!(versions(&test.store, "1").await, (1..=25).collect::<Vec<_>>());
    assert_eq!(left(&test).await, (16, 25, 25));
}

/// All of it is written once, whatever message is lost.
#[fixture::test]
async fn unit_is_committed_once_when_its_connection_is_cut() {
    for (text, is_answer) in [
        ("commitTransaction", true),
        ("commitTransaction", false),
        ("outbox_records", true),
        ("order_event_stream", false),
        ("\0own\0", true),
    ] {
        let test = TestStore::new().await;
        let (proxy, _, store) = behind_a_proxy(&test.outbox).await;
        store.append(append("0", "first")).await.unwrap();
        if is_answer {
            proxy.on_answer_to(text, ProxyFault::Close)
        } else {
            proxy.on_request(text, ProxyFault::Close)
        }

        let running = tokio::spawn(async move {
            let own = own(&store);
            store.unit_of_work(async |mut unit| work(&mut unit, &own).await).await
        });
        eventually("it is caught", || async { proxy.has_caught() }).await;
        proxy.open();
        let (version, _) = committed(
            running.await.unwrap().unwrap_or_else(|error| panic!("{text} {is_answer}: {error:?}")),
        );

        assert_eq!(version, 1, "{text}");
        assert_eq!(left(&test).await, (1, 2, 3), "{text}");
    }
}
