//! An erasure with least privileges.

use std::time::Duration;

use bson::doc;
use postrider::context::{Context, ContextSettings};
use postrider::events::{ErasureState, EventStore, PendingRecords};
use postrider::outbox::collections::Collections;
use postrider::schema::roles::{APPEND, Configured};
use postrider::store::connect;

use crate::ending::util::{end, erase_with, secret};
use crate::support::outbox::TestOutbox;
use crate::support::roles::{PASSWORD, privileges_for, uri, user_with};

fn store(client: mongodb::Client, database: &str, auto_init_schema: bool) -> EventStore {
    let settings = ContextSettings { auto_init_schema, ..ContextSettings::new(database) };
    let outbox = Collections::new(client.clone(), database, "");
    EventStore::new(Context::new(client, settings), outbox)
}

#[fixture::test]
async fn role_of_the_append_path_suffices_for_an_erasure() {
    let outbox = TestOutbox::restricted().await;
    let database = &outbox.database;
    let configured = Configured {
        retention: Duration::MAX,
        change_stream: true,
        append: true,
        names: true,
        erasures: true,
    };
    let context = ContextSettings::new(database);
    let privileges = |configured| privileges_for(&APPEND, &context, database, "", configured);
    let own = outbox.client.database(database);
    user_with(&own, "erases", privileges(configured)).await;
    let without = Configured { erasures: false, ..configured };
    user_with(&own, "appends", privileges(without)).await;
    let admin = store(outbox.client.clone(), database, true);
    admin.append(secret("a")).await.unwrap();
    let client = connect::client(&uri("erases", PASSWORD, database)).await.unwrap();
    let erases = store(client, database, false);

    erases.append(secret("b")).await.unwrap();
    end(&erases, "1", "e").await.unwrap();
    let done = doc! { "$set": { "status": "done" } };
    outbox.records().update_one(doc! {}, done).await.unwrap();
    let erased = erase_with(&erases, "x", PendingRecords::Discard).await.unwrap();

    assert_eq!(erased.state, ErasureState::Complete);
    assert_eq!((erased.erased.records, erased.erased.discarded), (1, 4));
    // Appends and ends need less.
    let client = connect::client(&uri("appends", PASSWORD, database)).await.unwrap();
    let appends = store(client, database, false);
    let mut other = secret("c");
    other.id = crate::events::util::id("2");
    appends.append(other).await.unwrap();
    end(&appends, "2", "e").await.unwrap();
}
