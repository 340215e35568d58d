//! Ends and appends.

use bson::doc;
use futures_util::future::join_all;
use postrider::context::CollectionKind;
use postrider::events::{
    AppendError, EndError, Expected, PendingRecords, StreamEnding, UnitError, UnitOutcome,
};
use postrider::names::{AggregateId, AggregateName};

use crate::ending::util::{end, erase, other_store};
use crate::events::unit::replayed;
use crate::events::util::{TestStore, append, exactly, id, name};

fn ended<T: std::fmt::Debug>(answer: Result<T, EndError>) -> i64 {
    match answer {
        Err(EndError::Append(AppendError::StreamEnded { version })) => version,
        other => panic!("{other:?}"),
    }
}

#[fixture::test]
async fn end_is_an_append_of_a_reserved_event() {
    let test = TestStore::new().await;
    test.store.append(append("1", "a").tenant("t")).await.unwrap();

    let done = end(&test.store, "1", "e").await.unwrap();

    assert_eq!((done.version, done.size, done.replayed), (2, 1, false));
    let stream = test.streams("order").await.remove(1);
    assert!(stream.get_bool("ended").unwrap());
    assert_eq!(stream.get_str("tenantId").unwrap(), "t");
    let event = stream.get_array("body").unwrap()[0].as_document().unwrap();
    assert_eq!(event.get_str("name").unwrap(), "postrider.StreamEnded");
    let body = doc! { "reason": "it is over", "actor": "ops" };
    assert_eq!(event.get_document("body").unwrap(), &body);
    // Wow takes the aggregate for deleted.
    let class = "me.ahoo.wow.api.event.DefaultAggregateDeleted";
    assert_eq!(event.get_str("bodyType").unwrap(), class);
    let record = test.records("1").await.remove(1);
    assert_eq!(record.get_str("type").unwrap(), "postrider.StreamEnded");
    assert_eq!(record.get_document("payload").unwrap(), &body);
    assert_eq!(record.get_str("tenantId").unwrap(), "t");
}

/// Wow stores no owner as an empty text; other programs store what a client may not send.
#[fixture::test]
async fn stream_is_ended_and_erased_whatever_ids_it_has() {
    let test = TestStore::new().await;
    let streams = test.store.context().collection(CollectionKind::Events, "order");
    for (aggregate, ids) in [
        ("1", doc! { "ownerId": "", "tenantId": "x".repeat(300) }),
        ("2", doc! { "ownerId": 7, "tenantId": "" }),
    ] {
        test.store.append(append(aggregate, "a")).await.unwrap();
        let stored = doc! { "aggregateId": aggregate };
        streams.update_one(stored.clone(), doc! { "$set": ids.clone() }).await.unwrap();

        end(&test.store, aggregate, "e").await.unwrap();

        let newest = streams.find_one(stored).sort(doc! { "version": -1 }).await.unwrap().unwrap();
        let texts = ids.iter().filter(|(_, id)| id.as_str().is_some());
        for (field, id) in texts {
            assert_eq!(newest.get(field), Some(id), "{aggregate}");
        }
    }
    let erased = erase(&test.store, "x").await.unwrap();
    assert_eq!(erased.version, 3);
}

#[fixture::test]
async fn ended_stream_refuses_appends_whatever_they_expect() {
    let test = TestStore::new().await;
    test.store.append(append("1", "a")).await.unwrap();
    end(&test.store, "1", "e").await.unwrap();

    for store in [test.store.clone(), other_store(&test).await] {
        for expected in [
            Expected::Any,
            Expected::None,
            Expected::Exists,
            Expected::Exact(0),
            Expected::Exact(1),
            Expected::Exact(2),
            Expected::Exact(9),
        ] {
            let refused = store.append(append("1", "b").expecting(expected)).await.unwrap_err();
            let is_ended = matches!(refused, AppendError::StreamEnded { version: 2 });
            assert!(is_ended, "{expected}: {refused:?}");
        }
    }
    assert_eq!(test.streams("order").await.len(), 2);
    assert_eq!(test.records("1").await.len(), 2);
    // Others are as before.
    assert_eq!(test.store.append(append("2", "b")).await.unwrap().version, 1);
}

#[fixture::test]
async fn earlier_requests_get_their_first_answer_after_the_end() {
    let test = TestStore::new().await;
    let first = test.store.append(append("1", "a")).await.unwrap();
    let unit = async || {
        test.store.unit_of_work(async |mut unit| unit.append(append("1", "u")).await).await
    };
    unit().await.unwrap();
    let over = end(&test.store, "1", "e").await.unwrap();
    let erased = erase(&test.store, "x").await.unwrap();

    for store in [test.store.clone(), other_store(&test).await] {
        let again = store.append(append("1", "a")).await.unwrap();
        assert_eq!((again.version, again.replayed, &again.records), (1, true, &first.records));
        let again = end(&store, "1", "e").await.unwrap();
        assert_eq!((again.version, again.replayed, &again.records), (3, true, &over.records));
        let again = erase(&store, "x").await.unwrap();
        assert_eq!((again.version, again.replayed, &again.id), (4, true, &erased.id));
        assert_eq!(ended(end(&store, "1", "other").await), 4);
        assert_eq!(ended(erase(&store, "other").await), 4);
    }
    assert_eq!(replayed(unit().await.unwrap())[0].version, 2);
    assert_eq!(test.streams("order").await.len(), 4);
}

#[fixture::test]
async fn request_id_of_another_kind_of_append_is_refused() {
    let test = TestStore::new().await;
    test.store.append(append("1", "a")).await.unwrap();
    let is_duplicate = |error: AppendError| matches!(error, AppendError::DuplicateRequest { .. });
    let of_end = |error: EndError| match error {
        EndError::Append(error) => is_duplicate(error),
        other => panic!("{other}"),
    };

    assert!(of_end(end(&test.store, "1", "a").await.unwrap_err()));
    assert!(of_end(erase(&test.store, "a").await.unwrap_err()));
    end(&test.store, "1", "e").await.unwrap();
    assert!(of_end(erase(&test.store, "e").await.unwrap_err()));
    assert!(is_duplicate(test.store.append(append("1", "e")).await.unwrap_err()));

    assert_eq!(test.streams("order").await.len(), 2);
}

#[fixture::test]
async fn ended_stream_can_be_erased_once() {
    let test = TestStore::new().await;
    test.store.append(append("1", "a")).await.unwrap();
    end(&test.store, "1", "e").await.unwrap();

    assert_eq!(ended(end(&test.store, "1", "f").await), 2);
    assert_eq!(erase(&test.store, "x").await.unwrap().version, 3);
    assert_eq!(ended(erase(&test.store, "y").await), 3);
    assert_eq!(ended(end(&test.store, "1", "z").await), 3);
}

/// A lane trusts the version that it has cached, until the unique index refuses the next one.
#[fixture::test]
async fn lane_with_a_cached_version_sees_the_end() {
    let test = TestStore::new().await;
    let other = other_store(&test).await;
    for (request, expected) in [("b", Expected::Any), ("c", Expected::Exact(1))] {
        let aggregate = format!("of-{request}");
        test.store.append(append(&aggregate, "a")).await.unwrap();
        end(&other, &aggregate, "e").await.unwrap();

        let late = append(&aggregate, request).expecting(expected);
        let late = test.store.append(late).await.unwrap_err();

        assert!(matches!(late, AppendError::StreamEnded { version: 2 }), "{late:?}");
    }
    assert_eq!(test.streams("order").await.len(), 4);
}

#[fixture::test]
async fn nothing_follows_an_end_among_concurrent_appends() {
    let test = TestStore::new().await;
    let stores = [test.store.clone(), other_store(&test).await];
    for round in 0..5 {
        let aggregate = format!("r{round}");
        test.store.append(append(&aggregate, "first")).await.unwrap();

        let ending = end(&stores[round % 2], &aggregate, "e");
        let appending = (0..40)
            .map(|number| stores[number % 2].append(append(&aggregate, &number.to_string())));
        let (over, answers) = tokio::join!(ending, join_all(appending));

        let over = over.unwrap().version;
        let streams = test.streams("order").await;
        let of_round =
            |stream: &&bson::Document| stream.get_str("aggregateId").unwrap() == aggregate;
        let streams: Vec<_> = streams.iter().filter(of_round).collect();
        let newest = streams.last().unwrap();
        assert_eq!(newest.get_i32("version").unwrap(), i32::try_from(over).unwrap());
        assert!(newest.get_bool("ended").unwrap());
        let appended = answers.iter().filter(|answer| answer.is_ok()).count();
        assert_eq!(streams.len(), appended + 2);
        for refused in answers.into_iter().filter_map(Result::err) {
            assert!(matches!(refused, AppendError::StreamEnded { .. }), "{refused:?}");
        }
    }
}

#[fixture::test]
async fn unit_of_work_refuses_an_ended_stream() {
    let test = TestStore::new().await;
    let other = other_store(&test).await;
    test.store.append(append("1", "a")).await.unwrap();
    test.store.append(append("2", "a")).await.unwrap();
    end(&test.store, "1", "e").await.unwrap();

    let before: Result<UnitOutcome<_>, _> =
        test.store.unit_of_work(async |mut unit| unit.append(exactly("1", "b", 2)).await).await;
    // The stream ends between the plan and the commit.
    let meanwhile = test.store.unit_of_work(async |mut unit| {
        let planned = unit.append(append("2", "b")).await?;
        // A second run finds it.
        end(&other, "2", "e").await.unwrap();
        Ok(planned.version)
    });
    let meanwhile = meanwhile.await;

    for (refused, version) in [(before.map(drop), 2), (meanwhile.map(drop), 2)] {
        let refused = refused.unwrap_err();
        let UnitError::Append(AppendError::StreamEnded { version: found }) = refused else {
            panic!("{refused:?}")
        };
        assert_eq!(found, version);
    }
    assert_eq!(test.streams("order").await.len(), 4);
}

#[fixture::test]
async fn unknown_aggregate_is_neither_ended_nor_erased() {
    let test = TestStore::new().await;
    let unknown = |answer: EndError| matches!(answer, EndError::UnknownAggregate { .. });
    let request = || StreamEnding::new("r", "gone");
    let (unknown_name, one): (AggregateName, AggregateId) =
        (AggregateName::new("unheard").unwrap(), id("1"));

    let error = test.store.end(&unknown_name, &one, request()).await.unwrap_err();
    assert_eq!(error.to_string(), "unknown aggregate: unheard \"1\" has no events");
    let erased = test.store.erase(&unknown_name, &one, request(), PendingRecords::Discard).await;
    assert!(unknown(erased.unwrap_err()));
    test.store.append(append("2", "a")).await.unwrap();
    assert!(unknown(end(&test.store, "1", "e").await.unwrap_err()));
    assert!(unknown(erase(&test.store, "e").await.unwrap_err()));

    assert_eq!(test.streams("order").await.len(), 1);
    let database = test.outbox.client.database(&test.outbox.database);
    let collections = database.list_collection_names().await.unwrap();
    assert!(!collections.iter().any(|name| name.contains("unheard")), "{collections:?}");
    assert!(!collections.contains(&"postrider_erasures".to_owned()), "{collections:?}");
}

#[fixture::test]
async fn all_flaws_of_an_end_are_reported() {
    let test = TestStore::new().await;
    test.store.append(append("1", "a")).await.unwrap();
    let request = StreamEnding::new("", "x".repeat(1_001)).by("");

    let ended = test.store.end(&name(), &id("1"), request.clone()).await.unwrap_err();
    let erased = test.store.erase(&name(), &id("1"), request, PendingRecords::Deliver).await;

    for error in [ended, erased.unwrap_err()] {
        let EndError::Append(AppendError::Invalid(flaws)) = error else { panic!("{error:?}") };
        let fields: Vec<&str> = flaws.iter().map(|flaw| &*flaw.field).collect();
        assert_eq!(fields, ["requestId", "reason", "actor"]);
    }
    assert_eq!(test.streams("order").await.len(), 1);
}
