//! A rebuild next to the live generation.

use std::time::{Duration, Instant};

use postrider_projections::{ProjectionError, ReadModelSettings};

use crate::carts::{CartProjector, stored};
use crate::world::{World, live, run, run_generation, settings};

#[fixture::test]
async fn rebuild_equals_the_live_generation_and_takes_its_place() {
    let world = World::new().await;
    let model = world.model();
    let old = run(&model, &CartProjector::default());
    world.append_some(30).await;
    let first = live(&model).await;
    let resolver = model.resolver();
    world.check(&model, first).await;
    assert_eq!(resolver.resolve().await.unwrap().generation(), first);

    // A new revision of the projector, while events are appended.
    let newer = world.model_with(ReadModelSettings { revision: 2, batch_events: 5, ..settings() });
    let second = newer.begin_rebuild().await.unwrap();
    assert_eq!(newer.begin_rebuild().await.unwrap(), second);
    let new = run_generation(&newer, second, &CartProjector::default());
    world.append_some(30).await;
    assert_eq!(newer.switch(second).await.unwrap(), first);
    world.append_some(10).await;

    let contents = world.check(&newer, second).await;
    assert_eq!(world.check(&model, first).await, contents);
    let began = Instant::now();
    while resolver.resolve().await.unwrap().generation() != second {
        assert!(began.elapsed() < Duration::from_secs(5));
        tokio::time::sleep(Duration::from_millis(20)).await;
    }

    // The old one is dropped; its process ends.
    let error = newer.drop_generation(second).await.unwrap_err();
    assert!(matches!(error, ProjectionError::Live { .. }), "{error}");
    newer.drop_generation(first).await.unwrap();
    world.append_some(1).await;
    let error = old.error().await;
    assert!(matches!(error, ProjectionError::NoGeneration { .. }), "{error}");
    assert_eq!(stored(&model.collections(first)).await.len(), 0);
    let status = newer.status().await.unwrap();
    assert_eq!((status.live, status.building, status.generations.len()), (second, None, 1));
    world.check(&newer, second).await;
    new.stop().await;

    // The earlier revision would write something else into it.
    let error = run(&model, &CartProjector::default()).error().await;
    assert!(matches!(error, ProjectionError::OtherRevision { stored: 2, own: 1, .. }), "{error}");
}

#[fixture::test]
async fn switch_waits_while_the_new_generation_is_behind() {
    let world = World::new().await;
    let model = world.model();
    let old = run(&model, &CartProjector::default());
    world.append_some(5).await;
    let first = live(&model).await;
    world.check(&model, first).await;
    let second = model.begin_rebuild().await.unwrap();

    // No process runs it.
    let waiting = tokio::time::timeout(Duration::from_secs(1), model.switch(second)).await;
    assert!(waiting.is_err());
    assert_eq!(live(&model).await, first);

    let new = run_generation(&model, second, &CartProjector::default());
    model.switch(second).await.unwrap();
    assert_eq!(live(&model).await, second);
    for running in [old, new] {
        running.stop().await;
    }
}

#[fixture::test]
async fn switch_back_keeps_another_rebuild_that_has_begun() {
    let world = World::new().await;
    let model = world.model();
    let old = run(&model, &CartProjector::default());
    world.append_some(5).await;
    let first = live(&model).await;
    let second = model.begin_rebuild().await.unwrap();
    let new = run_generation(&model, second, &CartProjector::default());
    model.switch(second).await.unwrap();
    let third = model.begin_rebuild().await.unwrap();

    assert_eq!(model.switch(first).await.unwrap(), second);

    let status = model.status().await.unwrap();
    assert_eq!((status.live, status.building), (first, Some(third)));
    for running in [old, new] {
        running.stop().await;
    }
}

/// After a restore the live generation cannot advance; the rebuild replaces it.
#[fixture::test]
async fn rebuild_replaces_a_generation_of_another_feed() {
    let world = World::new().await;
    let model = world.model();
    let running = run(&model, &CartProjector::default());
    world.append_some(10).await;
    let first = live(&model).await;
    world.check(&model, first).await;
    running.stop().await;
    world.feed.renew().await.unwrap();
    let error = run(&model, &CartProjector::default()).error().await;
    assert!(matches!(error, ProjectionError::WrongFeed { .. }), "{error}");

    let rebuilding = model.clone();
    let stop = tokio_util::sync::CancellationToken::new();
    let until = stop.clone();
    let task =
        tokio::spawn(async move { rebuilding.rebuild(&CartProjector::default(), until).await });

    crate::support::outbox::eventually("the switch", async || live(&model).await != first).await;
    world.append_some(5).await;
    let second = live(&model).await;
    world.check(&model, second).await;
    stop.cancel();
    task.await.unwrap().unwrap();
}

#[fixture::test]
async fn abandoned_rebuild_can_be_dropped_and_begun_again() {
    let world = World::new().await;
    let model = world.model();
    let running = run(&model, &CartProjector::default());
    world.append_some(5).await;
    let first = live(&model).await;
    let second = model.begin_rebuild().await.unwrap();
    let other = world.model_with(ReadModelSettings { revision: 7, ..settings() });
    let error = other.begin_rebuild().await.unwrap_err();
    assert!(matches!(error, ProjectionError::OtherRevision { .. }), "{error}");

    model.drop_generation(second).await.unwrap();

    let error = model.run_generation(second, &CartProjector::default(), Default::default()).await;
    assert!(matches!(error.unwrap_err(), ProjectionError::NoGeneration { .. }));
    let third = other.begin_rebuild().await.unwrap();
    assert!(third > second && live(&model).await == first);
    running.stop().await;
}
