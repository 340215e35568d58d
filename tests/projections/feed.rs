//! A read model of the feed.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bson::doc;
use postrider::events::feed::FeedFilter;
use postrider_projections::{GenerationState, ProjectionError, ReadModelSettings};

use crate::carts::{CartProjector, POISON, folded, stored};
use crate::support::outbox::eventually;
use crate::world::{World, live, run, settings};

#[fixture::test]
async fn read_model_is_the_fold_of_events_before_and_during_the_run() {
    let world = World::new().await;
    world.append_some(20).await;
    // Small batches: several transactions.
    let model = world.model_with(ReadModelSettings { batch_events: 4, ..settings() });
    let running = run(&model, &CartProjector::default());
    let generation = live(&model).await;
    world.check(&model, generation).await;

    world.append_some(30).await;

    let carts = world.check(&model, generation).await;
    assert_eq!(carts.len(), 7);
    let status = model.status().await.unwrap();
    assert_eq!((status.generations[0].lag, status.building), (0, None));
    assert_eq!(status.generations[0].state, GenerationState::UpToDate);
    running.stop().await;
}

/// An append with more events than a page of the feed has.
#[fixture::test]
async fn append_larger_than_a_page_is_applied_in_one_call() {
    let world = World::new().await;
    world.append("order", "small", &["A"]).await;
    world.append("order", "large", &["E"; 4_500]).await;
    world.append("order", "small", &["A", "B"]).await;
    world.until_positioned().await;
    let (model, projector) = (world.model(), CartProjector::default());
    let running = run(&model, &projector);
    let generation = live(&model).await;

    let carts = world.check(&model, generation).await;

    assert_eq!(carts["order/large"].events, 4_500);
    assert_eq!(projector.calls.load(Ordering::Relaxed), 3);
    running.stop().await;
}

#[fixture::test]
async fn run_continues_behind_its_checkpoint() {
    let world = World::new().await;
    let (model, projector) = (world.model(), CartProjector::default());
    let first = run(&model, &projector);
    world.append_some(5).await;
    let generation = live(&model).await;
    world.check(&model, generation).await;
    first.stop().await;
    let calls = projector.calls.load(Ordering::Relaxed);
    world.append_some(3).await;

    let second = run(&model, &projector);

    world.check(&model, generation).await;
    assert_eq!(projector.calls.load(Ordering::Relaxed), calls + 3);
    second.stop().await;
}

#[fixture::test]
async fn two_processes_apply_each_event_once() {
    let world = World::new().await;
    let model = world.model_with(ReadModelSettings { batch_events: 2, ..settings() });
    let running: Vec<_> = (0..3).map(|_| run(&model, &CartProjector::default())).collect();
    let generation = live(&model).await;

    world.append_some(60).await;

    world.check(&model, generation).await;
    for running in running {
        running.stop().await;
    }
}

/// The one that stands by takes over when the other one is stopped.
#[fixture::test]
async fn standby_takes_over() {
    let world = World::new().await;
    let model = world.model();
    let (first, second) =
        (run(&model, &CartProjector::default()), run(&model, &CartProjector::default()));
    world.append_some(20).await;
    let generation = live(&model).await;
    world.check(&model, generation).await;

    first.stop().await;
    world.append_some(10).await;

    world.check(&model, generation).await;
    second.stop().await;
}

#[fixture::test]
async fn filter_lets_only_its_events_pass_and_advances() {
    let world = World::new().await;
    let filter = FeedFilter { aggregates: vec!["order".into()], ..FeedFilter::default() };
    let model = world.model_with(ReadModelSettings { filter: filter.clone(), ..settings() });
    let running = run(&model, &CartProjector::default());
    for number in 0..10 {
        world.append(if number % 3 == 0 { "order" } else { "customer" }, "1", &["A", "B"]).await;
    }
    let (generation, head) = (live(&model).await, world.until_positioned().await);

    model.caught_up(generation).await.unwrap();

    let events = world.events().await;
    let orders = events.iter().filter(|event| event.aggregate_name == "order");
    assert_eq!(stored(&model.collections(generation)).await, folded(orders));
    assert_eq!(model.status().await.unwrap().generations[0].position, head);
    running.stop().await;

    // Another filter would lack events.
    let error = run(&world.model(), &CartProjector::default()).error().await;
    assert!(matches!(error, ProjectionError::OtherFilter { .. }), "{error}");
}

#[fixture::test]
async fn ended_and_erased_streams_reach_the_projector() {
    let world = World::new().await;
    let model = world.model();
    let running = run(&model, &CartProjector::default());
    world.append("order", "1", &["A"]).await;
    let (name, id) = ("order".parse_name(), "1".parse_id());
    let ending = postrider::events::StreamEnding::new("end", "over");
    world.store.end(&name, &id, ending).await.unwrap();
    let erasure = postrider::events::StreamEnding::new("erase", "asked for");
    let pending = postrider::events::PendingRecords::Discard;
    world.store.erase(&name, &id, erasure, pending).await.unwrap();
    let generation = live(&model).await;
    world.until_positioned().await;
    model.caught_up(generation).await.unwrap();

    let carts = stored(&model.collections(generation)).await;

    assert_eq!((carts["order/1"].events, carts["order/1"].is_erased), (3, true));
    running.stop().await;
}

#[fixture::test]
async fn projector_that_fails_for_a_while_is_tried_again() {
    let world = World::new().await;
    let model = world.model();
    let projector = CartProjector { failures: Arc::new(AtomicUsize::new(3)), ..Default::default() };
    let running = run(&model, &projector);
    world.append_some(3).await;

    world.append("order", "1", &["A", POISON]).await;
    world.append_some(3).await;

    let generation = live(&model).await;
    world.check(&model, generation).await;
    assert_eq!(model.status().await.unwrap().generations[0].state, GenerationState::UpToDate);
    running.stop().await;
}

/// Another program has written the document in a transaction that is open: longer than all retries.
#[fixture::test]
async fn write_conflict_in_the_projector_is_not_counted() {
    let world = World::new().await;
    let (model, projector) = (world.model(), CartProjector::default());
    let running = run(&model, &projector);
    world.append("order", "1", &["A"]).await;
    let generation = live(&model).await;
    world.check(&model, generation).await;
    let carts = model.collections(generation).collection::<bson::Document>("carts");
    let mut session = world.outbox.client.start_session().await.unwrap();
    session.start_transaction().await.unwrap();
    let touch = doc! { "$set": { "touched": true } };
    carts.update_one(doc! { "_id": "order/1" }, touch).session(&mut session).await.unwrap();

    world.append("order", "1", &["B"]).await;
    let calls = || projector.calls.load(Ordering::Relaxed);
    eventually("more tries than are counted", async || calls() > 10).await;
    session.abort_transaction().await.unwrap();

    world.check(&model, generation).await;
    running.stop().await;
}

#[fixture::test]
async fn poison_event_stops_the_read_model_before_it() {
    let world = World::new().await;
    let model = world.model();
    let failures = Arc::new(AtomicUsize::new(usize::MAX));
    let projector = CartProjector { failures: failures.clone(), ..Default::default() };
    world.append_some(5).await;
    world.append("order", "bad", &["A", POISON, "B"]).await;
    world.append_some(5).await;
    world.until_positioned().await;
    let events = world.events().await;
    let poison = events.iter().find(|event| event.name == POISON).unwrap();

    let error = run(&model, &projector).error().await;

    let ProjectionError::Poison { position, event, aggregate, attempts, .. } = &error else {
        panic!("{error}")
    };
    assert_eq!((*position, event, aggregate.as_str()), (poison.position, &poison.id, "order/bad"));
    assert_eq!(*attempts, 6);
    let generation = live(&model).await;
    let before = events.iter().filter(|event| event.position < poison.position - 1);
    assert_eq!(stored(&model.collections(generation)).await, folded(before));
    let status = model.status().await.unwrap().generations.remove(0);
    assert_eq!(status.position, poison.position - 2);
    let GenerationState::Stopped(failure) = status.state else { panic!("{status:?}") };
    assert_eq!((failure.position, failure.event), (poison.position, poison.id.clone()));
    let waited = model.caught_up(generation).await.unwrap_err();
    assert!(matches!(waited, ProjectionError::Stopped { .. }), "{waited}");

    // Corrected, it continues there.
    failures.store(0, Ordering::Relaxed);
    let running = run(&model, &projector);
    eventually("the corrected one", async || model.status().await.unwrap().generations[0].lag == 0)
        .await;
    world.check(&model, generation).await;
    running.stop().await;
}

#[fixture::test]
async fn checkpoint_of_another_feed_or_beyond_the_head_is_an_error() {
    let world = World::new().await;
    let (model, running, generation) = world.running().await;
    world.check(&model, generation).await;
    running.stop().await;

    let checkpoints =
        world.database().collection::<bson::Document>("postrider_projection_checkpoints");
    let ahead = doc! { "$set": { "position": 1_000_i64 } };
    checkpoints.update_one(doc! { "_id": "carts.1" }, ahead).await.unwrap();
    let error = run(&model, &CartProjector::default()).error().await;
    assert!(matches!(error, ProjectionError::PositionAhead { position: 1_000, .. }), "{error}");
    assert!(error.to_string().contains("rebuild"), "{error}");
    let error = model.caught_up(generation).await.unwrap_err();
    assert!(matches!(error, ProjectionError::PositionAhead { .. }), "{error}");

    // A document that cannot be read does not mean a beginning.
    let known = checkpoints.find_one(doc! { "_id": "carts.1" }).await.unwrap().unwrap();
    let odd = doc! { "$set": { "position": "third" } };
    checkpoints.update_one(doc! { "_id": "carts.1" }, odd).await.unwrap();
    let error = format!("{:?}", model.caught_up(generation).await.unwrap_err());
    assert!(error.contains("invalid document") && error.contains("carts.1"), "{error}");
    checkpoints.replace_one(doc! { "_id": "carts.1" }, known).await.unwrap();

    world.feed.renew().await.unwrap();
    let error = run(&model, &CartProjector::default()).error().await;
    assert!(matches!(error, ProjectionError::WrongFeed { .. }), "{error}");
    assert!(error.to_string().contains("rebuild"), "{error}");
}

/// The names of tests, parsed.
trait Parsed {
    fn parse_name(&self) -> postrider::names::AggregateName;
    fn parse_id(&self) -> postrider::names::AggregateId;
}

impl Parsed for str {
    fn parse_name(&self) -> postrider::names::AggregateName {
        postrider::names::AggregateName::new(self).unwrap()
    }

    fn parse_id(&self) -> postrider::names::AggregateId {
        postrider::names::AggregateId::new(self).unwrap()
    }
}
