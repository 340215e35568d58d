//! Documents and collections that are not as Postrider writes them: they stop nothing else.

use bson::{Bson, Document, doc};
use futures_util::TryStreamExt;
use postrider::events::feed::FeedFilter;
use postrider::events::{EventStream, Range};
use postrider::names::{AggregateId, AggregateName};

use crate::support::outbox::{REPLACED, eventually, insert_broken};
use crate::util::{TestFeed, all, lines, stored};

/// Appends to another aggregate, and waits until it has its position.
async fn another_append_gets_its_position(test: &TestFeed, request: &str) {
    test.append("order", "sound", request, 1).await;
    let sound = || async {
        let stored = stored(test, "order").await;
        stored.iter().filter(|(id, ..)| id == "sound").all(|(.., position)| position.is_some())
    };
    eventually("the position of another append", sound).await;
}

#[fixture::test]
async fn position_of_another_type_stops_no_other_stream() {
    let test = TestFeed::new().await;
    for odd in [Bson::Null, Bson::from("7"), Bson::Double(1.5), Bson::Double(f64::NAN)] {
        let id = format!("odd-{odd:?}");
        test.insert("order", &id, 1, doc! { "position": odd.clone() }).await;
        test.insert("order", &id, 2, doc! {}).await;
    }
    let running = test.sequence();
    another_append_gets_its_position(&test, "a").await;

    // The same by the change stream.
    for odd in [Bson::Null, Bson::from("7"), Bson::Double(1.5)] {
        let id = format!("later-{odd:?}");
        test.insert("order", &id, 1, doc! { "position": odd }).await;
    }

    another_append_gets_its_position(&test, "b").await;
    let events = all(&test.feed).await;
    let sound = events.iter().filter(|event| event.aggregate_id == "sound");
    assert_eq!(sound.count(), 2, "{:?}", lines(&events));
    running.stop().await;
}

#[fixture::test]
async fn odd_document_stops_no_reader() {
    let test = TestFeed::new().await;
    let odd: [Document; 8] = [
        doc! { "_id": bson::oid::ObjectId::new() },
        doc! { "header": Bson::Null },
        doc! { "requestId": 7 },
        doc! { "createTime": 7.0 },
        doc! { "size": 7.5 },
        doc! { "body": "none" },
        doc! { "body": [{ "body": {} }, 7] },
        doc! { "tenantId": 7, "body": [{ "name": "E", "body": "text" }] },
    ];
    for (number, odd) in odd.into_iter().enumerate() {
        test.insert("order", &format!("odd-{number}"), 1, odd).await;
    }
    test.insert("order", "sound", 1, doc! {}).await;
    let running = test.sequence();

    // Each element of an array has a position.
    let events = test.until(9).await;

    let positions: Vec<i64> = events.iter().map(|event| event.position).collect();
    assert_eq!(positions, (1..=9).collect::<Vec<_>>(), "{:?}", lines(&events));
    assert!(events.iter().any(|event| event.aggregate_id == "sound"));
    running.stop().await;
}

/// MongoDB stores such bytes, and some drivers write them.
#[fixture::test]
async fn bytes_that_are_not_text_stop_no_reader() {
    let test = TestFeed::new().await;
    let body = |name: &str, field: &str, text: &str| doc! { "body": [{ "id": "e", "name": name, "body": { field: text, "n": 7 } }] };
    let odd = [
        (body("MARK", "t", "x"), "body.0.name"),
        (body("E", "t", "MARK"), "body.0.body.t"),
        (body("E", "MARK", "x"), r"body.0.body.\xff\xfe\xfd\xfc"),
        (doc! { "header": { "h": "MARK" } }, "header.h"),
        (doc! { "tenantId": "MARK" }, "tenantId"),
        (doc! { "requestId": "MARK" }, "requestId"),
        (doc! { "extra": "MARK" }, "extra"),
        // These have no id or no aggregate, and so no position.
        (doc! { "_id": "MARK" }, ""),
        (doc! { "aggregateId": "aMARK", "requestId": "other" }, ""),
    ];
    for (number, (fields, _)) in odd.iter().enumerate() {
        let stream = crate::util::stream("order", &format!("odd-{number}"), 1, fields.clone());
        insert_broken(&test.streams("order"), &stream).await;
    }
    // A predecessor that can have no position stops its own aggregate alone.
    test.insert("order", "odd-7", 2, doc! {}).await;
    test.insert("order", "sound", 1, doc! {}).await;
    // So stores a shell its numbers, which the driver does not decode.
    let foreign = doc! { "key": { "extra": 1.0 }, "name": "foreign", "expireAfterSeconds": 1e9 };
    let streams = test.streams("order");
    let index = doc! { "createIndexes": streams.name(), "indexes": [foreign] };
    test.database().run_command(index).await.unwrap();
    let running = test.sequence();

    let events = test.until(8).await;

    let positions: Vec<i64> = events.iter().map(|event| event.position).collect();
    assert_eq!(positions, (1..=8).collect::<Vec<_>>(), "{:?}", lines(&events));
    for (number, (_, path)) in odd.iter().enumerate().take(7) {
        let id = AggregateId::new(&format!("odd-{number}")).unwrap();
        let found = events.iter().find(|event| event.aggregate_id == id.as_str()).unwrap();
        let paths: Vec<_> =
            found.invalid.iter().map(|field| field.split(':').next().unwrap()).collect();
        // (Some drivers leave an unknown field alone.)
        assert!(paths == [*path] || (*path == "extra" && paths.is_empty()), "{found:?}");
        // And the stream of the aggregate alone.
        let range = Range::default();
        let order = AggregateName::new("order").unwrap();
        let loaded = test.store.load(&order, &id, &range).await.unwrap();
        let loaded: Vec<EventStream> = loaded.try_collect().await.unwrap();
        assert_eq!((loaded.len(), &loaded[0].invalid), (1, &found.invalid));
        assert_eq!(loaded[0].body[0].body, found.body);
    }
    // The one without an aggregate, which is the first one, is not in the list and does not shorten it.
    let order = AggregateName::new("order").unwrap();
    for limit in [9, 10, 100] {
        let ids = test.store.aggregate_ids(&order, None, limit, None).await.unwrap();
        assert_eq!((ids.len(), ids[8].as_str()), (9, "sound"), "{limit}");
    }
    let of = |number: usize| {
        let id = format!("odd-{number}");
        events.iter().find(|event| event.aggregate_id == id).unwrap()
    };
    assert_eq!(of(0).name, REPLACED);
    assert_eq!(of(1).body, doc! { "t": REPLACED, "n": 7 });
    assert_eq!(of(3).header, doc! { "h": REPLACED });
    running.stop().await;
}

/// An append without events shares its position with the append before it.
#[fixture::test]
async fn append_without_events_hides_no_event_from_a_reader() {
    let test = TestFeed::new().await;
    test.insert("order", "0", 1, doc! { "createTime": 1 }).await;
    for number in 1..5 {
        // In the index of positions they are in front of the one before them.
        let empty = doc! { "createTime": Bson::Null, "body": [], "size": 0 };
        let running = test.sequence();
        let id = number.to_string();
        test.insert("order", &id, 1, doc! { "createTime": 1 }).await;
        test.until(number + 1).await;
        test.insert("order", &format!("empty-{number}"), 1, empty).await;
        eventually("a position", async || {
            stored(&test, "order").await.iter().all(|(.., position)| position.is_some())
        })
        .await;
        running.stop().await;
    }

    for limit in 1..4 {
        let (mut after, mut read) = (0, Vec::new());
        while after < 5 {
            let page = test.feed.page(None, after, &FeedFilter::default(), limit).await.unwrap();
            after = page.next;
            read.extend(page.items.iter().map(|event| event.position));
        }
        assert_eq!(read, [1, 2, 3, 4, 5], "{limit}");
    }
}

/// A validator of another program, or a document at the limit of MongoDB.
#[fixture::test]
async fn document_that_mongodb_does_not_change_stops_no_other_stream() {
    let test = TestFeed::new().await;
    test.append("order", "sound", "a", 1).await;
    let database = test.outbox.client.database(&test.outbox.database);
    let strict =
        doc! { "$or": [{ "aggregateId": { "$ne": "refused" } }, { "position": Bson::Null }] };
    database
        .run_command(doc! { "collMod": "order_event_stream", "validator": strict })
        .await
        .unwrap();
    for version in 1..4 {
        test.insert("order", "refused", version, doc! {}).await;
    }
    let running = test.sequence();
    another_append_gets_its_position(&test, "b").await;

    database.run_command(doc! { "collMod": "order_event_stream", "validator": {} }).await.unwrap();
    another_append_gets_its_position(&test, "c").await;
    running.stop().await;
    let again = test.sequence();
    let events = test.until(6).await;
    let refused = events.iter().filter(|event| event.aggregate_id == "refused");
    assert_eq!(refused.map(|event| event.version).collect::<Vec<_>>(), [1, 2, 3]);
    again.stop().await;
}

#[fixture::test]
async fn document_at_the_limit_of_mongodb_stops_no_other_stream() {
    let test = TestFeed::new().await;
    let mut large = crate::util::stream("order", "large", 1, doc! { "header": { "h": "" } });
    let size = bson::serialize_to_vec(&large).unwrap().len();
    large.insert("header", doc! { "h": "x".repeat((16 << 20) - size) });
    test.streams("order").insert_one(large).await.unwrap();
    let running = test.sequence();

    another_append_gets_its_position(&test, "a").await;
    running.stop().await;
}

/// A long stream, none of whose versions has a position, behind one that is missing.
#[fixture::test]
async fn long_stream_with_a_missing_version_gets_no_position_behind_it() {
    let test = TestFeed::new().await;
    let running = test.sequence();
    for version in [1, 2] {
        test.insert("order", "gap", version, doc! {}).await;
    }
    test.until(2).await;
    running.stop().await;
    // The last one is found first: what is in front of it is read from the stream.
    let streams = (4..2_600).map(|version| {
        crate::util::stream("order", "gap", version, doc! { "createTime": 5_000 - version })
    });
    test.streams("order").insert_many(streams).await.unwrap();
    let running = test.sequence();
    another_append_gets_its_position(&test, "a").await;

    let events = test.until(3).await;
    let gap = |events: &[postrider::events::feed::FeedEvent]| {
        let of_gap = events.iter().filter(|event| event.aggregate_id == "gap");
        of_gap.map(|event| event.version).collect::<Vec<_>>()
    };
    assert_eq!(gap(&events), [1, 2]);
    test.insert("order", "gap", 3, doc! {}).await;
    let events = test.until(2_600).await;
    assert_eq!(gap(&events), (1..2_600).collect::<Vec<_>>());
    running.stop().await;
}

#[fixture::test]
async fn index_that_was_dropped_is_created_again() {
    let test = TestFeed::new().await;
    let running = test.sequence();
    test.append("order", "1", "a", 1).await;
    test.append("customer", "1", "a", 1).await;
    test.until(2).await;

    test.streams("order").drop_index("position_1_createTime_1").await.unwrap();
    running.stop().await;
    let again = test.sequence();
    test.append("customer", "1", "b", 1).await;
    eventually("positions", async || {
        stored(&test, "customer").await.iter().all(|(.., position)| position.is_some())
    })
    .await;
    eventually("the index", async || {
        let names = test.streams("order").list_index_names().await.unwrap();
        names.iter().any(|name| name == "position_1_createTime_1")
    })
    .await;
    test.append("order", "1", "b", 1).await;

    let events = test.until(4).await;
    assert_eq!(events.len(), 4, "{:?}", lines(&events));
    again.stop().await;
}

#[fixture::test]
async fn collection_that_was_dropped_and_renamed_stops_no_other() {
    let test = TestFeed::new().await;
    let running = test.sequence();
    test.append("order", "1", "a", 2).await;
    test.append("customer", "1", "a", 1).await;
    test.append("invoice", "1", "a", 1).await;
    test.until(4).await;

    test.streams("order").drop().await.unwrap();
    let database = &test.outbox.database;
    let rename = doc! {
        "renameCollection": format!("{database}.customer_event_stream"),
        "to": format!("{database}.client_event_stream"),
    };
    test.outbox.client.database("admin").run_command(rename).await.unwrap();
    running.stop().await;
    let again = test.sequence();
    test.append("invoice", "1", "b", 1).await;
    test.until(5).await;

    // The collections exist again, by another program, and have no index.
    test.insert("order", "2", 1, doc! {}).await;
    test.insert("customer", "2", 1, doc! {}).await;
    let events = test.until(7).await;
    let positions: Vec<i64> = events.iter().map(|event| event.position).collect();
    assert_eq!(positions, [3, 4, 5, 6, 7], "{:?}", lines(&events));
    again.stop().await;
}

/// A reader from position 0 reads all, even while the state is being created again.
#[fixture::test]
async fn feed_that_is_created_again_knows_its_names() {
    let test = TestFeed::new().await;
    let running = test.sequence();
    test.append("order", "1", "a", 1).await;
    test.append("customer", "1", "a", 1).await;
    test.until(2).await;
    running.stop().await;
    let database = test.outbox.client.database(&test.outbox.database);
    let state = database.collection::<Document>("postrider_feed");
    state.delete_many(doc! {}).await.unwrap();
    let inserted = state.watch().await.unwrap();

    let again = test.sequence();

    let mut inserted = Box::pin(inserted);
    let created = futures_util::StreamExt::next(&mut inserted).await.unwrap().unwrap();
    let created = created.full_document.unwrap();
    assert_eq!(created.get_i64("head").unwrap(), 2);
    assert_eq!(created.get_array("names").unwrap().len(), 2, "{created}");
    again.stop().await;
}

/// A restore brought streams with positions beyond the head, of a name that the state lacks.
#[fixture::test]
async fn renewed_feed_knows_all_names() {
    let test = TestFeed::new().await;
    let running = test.sequence();
    test.append("order", "1", "a", 1).await;
    test.append("customer", "1", "a", 1).await;
    test.until(2).await;
    running.stop().await;
    let database = test.outbox.client.database(&test.outbox.database);
    let state = database.collection::<Document>("postrider_feed");
    let older = doc! { "$set": { "head": 1, "names": ["order"] } };
    state.update_one(doc! {}, older).await.unwrap();

    let renewed = test.feed.renew().await.unwrap();

    assert_eq!((renewed.head, renewed.names.len()), (2, 2));
    assert_eq!(all(&test.feed).await.len(), 2);
}

#[fixture::test]
async fn feed_of_many_names_is_read_in_order() {
    let test = TestFeed::new().await;
    for number in 0..120 {
        test.insert(&format!("name-{number}"), "1", 1, doc! {}).await;
    }
    let running = test.sequence();

    let events = test.until(120).await;

    let positions: Vec<i64> = events.iter().map(|event| event.position).collect();
    assert_eq!(positions, (1..=120).collect::<Vec<_>>());
    running.stop().await;
}

/// Each page has at least one event; a hole of deleted documents is passed.
#[fixture::test]
async fn holes_and_large_appends_are_passed() {
    let test = TestFeed::new().await;
    let running = test.sequence();
    for number in 0..60 {
        let name = ["order", "customer"][number % 2];
        test.append(name, "1", &number.to_string(), if number == 30 { 500 } else { 1 }).await;
    }
    test.until(559).await;
    test.streams("order").delete_many(doc! { "version": { "$lt": 12 } }).await.unwrap();
    test.streams("customer")
        .delete_many(doc! { "version": { "$in": [3, 5, 20, 30] } })
        .await
        .unwrap();
    let expected = all(&test.feed).await.len();
    assert!(expected > 500 && expected < 559);

    for limit in [1, 2, 7, 100, 499, 501, 1_000] {
        let (mut after, mut read) = (0, Vec::new());
        while after < 559 {
            let page = test.feed.page(None, after, &FeedFilter::default(), limit).await.unwrap();
            assert!(page.next > after, "{limit}: {after}");
            after = page.next;
            read.extend(page.items);
        }
        assert_eq!(read.len(), expected, "{limit}");
        assert!(read.is_sorted_by_key(|event| event.position));
    }
    running.stop().await;
}

/// With a guessed head or without names, a page would be empty, and its reader would go past all events.
#[fixture::test]
async fn state_of_another_type_is_an_error_and_skips_no_event() {
    let test = TestFeed::new().await;
    let running = test.sequence();
    test.append("order", "1", "a", 1).await;
    test.until(1).await;
    running.stop().await;
    let known = test.state().find_one(doc! {}).await.unwrap().unwrap();
    for (field, odd) in [("head", Bson::from("1")), ("names", "order".into()), ("feed", 7.into())] {
        let change = doc! { "$set": { field: odd } };
        test.state().update_one(doc! {}, change).await.unwrap();

        let page = test.feed.page(None, 0, &FeedFilter::default(), 10).await;

        let error = format!("{:?}", page.unwrap_err());
        assert!(error.contains(field) && error.contains("postrider_feed"), "{error}");
        test.state().replace_one(doc! {}, &known).await.unwrap();
    }
    assert_eq!(all(&test.feed).await.len(), 1);
}
