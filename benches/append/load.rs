//! Reading a stream of 10,000 versions, compared with a bare find of the same documents.

use std::time::Instant;

use bson::{RawDocumentBuf, doc};
use futures_util::TryStreamExt;
use futures_util::future::join_all;
use postrider::context::{CollectionKind, Context, ContextSettings};
use postrider::events::{Append, EventStore, NewEvent, Range};
use postrider::names::{AggregateId, AggregateName};

use crate::body;
use crate::support;

const VERSIONS: usize = 10_000;

pub async fn measure() {
    let collections = support::outbox().await;
    let database = collections.database().name().to_owned();
    let context = Context::new(collections.client().clone(), ContextSettings::new(&database));
    let store = EventStore::new(context.clone(), collections.clone());
    let (name, id) = (AggregateName::new("order").unwrap(), AggregateId::new("1").unwrap());
    for chunk in (0..VERSIONS).collect::<Vec<_>>().chunks(1_000) {
        let appends = chunk.iter().map(|number| {
            let events = vec![NewEvent::new("OrderCreated", body())];
            store.append(Append::new(name.clone(), id.clone(), number.to_string(), events))
        });
        for answer in join_all(appends).await {
            answer.unwrap();
        }
    }
    let bare =
        context.collection(CollectionKind::Events, "order").clone_with_type::<RawDocumentBuf>();
    let (mut ours, mut theirs) = (f64::MAX, f64::MAX);
    for _ in 0..5 {
        let began = Instant::now();
        let found =
            bare.find(doc! { "aggregateId": "1" }).sort(doc! { "version": 1 }).await.unwrap();
        let found: Vec<RawDocumentBuf> = found.try_collect().await.unwrap();
        assert_eq!(found.len(), VERSIONS);
        theirs = theirs.min(began.elapsed().as_secs_f64());

        let began = Instant::now();
        let found = store.load(&name, &id, &Range::default()).await.unwrap();
        let found: Vec<_> = found.try_collect().await.unwrap();
        assert_eq!(found.len(), VERSIONS);
        ours = ours.min(began.elapsed().as_secs_f64());
    }
    println!("a stream of {VERSIONS} versions, read whole, best of 5");
    println!(
        "load {:.0} ms, a bare find without decoding {:.0} ms, ratio {:.2}",
        ours * 1e3,
        theirs * 1e3,
        ours / theirs
    );
    collections.database().drop().await.unwrap();
}
