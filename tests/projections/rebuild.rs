//! A rebuild next to the live generation.

use std::time::{Duration, Instant};

use bson::{Bson, Document, doc};
use postrider_projections::{ProjectionError, ReadModelSettings};

use crate::carts::{CartProjector, stored};
use crate::support::outbox::{TestOutbox, eventually};
use crate::support::replica_set::ReplicaSet;
use crate::world::{World, live, run, run_generation, run_rebuild, settings};

/// A server whose commands can fail or wait.
struct Server {
    set: ReplicaSet,
}

impl Server {
    async fn start() -> (Self, World) {
        let set = ReplicaSet::of(1).await;
        let world = World::on(TestOutbox::at(&set.uri()).await);
        (Self { set }, world)
    }

    /// Lets commands fail or wait; returns how often that has happened before.
    async fn disturb(&self, mode: impl Into<Bson>, data: Document) -> i64 {
        let set = doc! { "configureFailPoint": "failCommand", "mode": mode, "data": data };
        self.command(set).await.get_i32("count").unwrap().into()
    }

    /// Waits until it has happened so often.
    async fn until_disturbed(&self, times: i64) {
        let wait =
            doc! { "waitForFailPoint": "failCommand", "timesEntered": times, "maxTimeMS": 30_000 };
        self.command(wait).await;
    }

    async fn end_faults(&self) {
        self.command(doc! { "configureFailPoint": "failCommand", "mode": "off" }).await;
    }

    async fn command(&self, command: Document) -> Document {
        self.set.direct(0).database("admin").run_command(command).await.unwrap()
    }
}

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
    let (model, old, first) = world.running().await;
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

/// The live generation passes the head that the feed had when the switch began.
#[fixture::test]
async fn switch_waits_when_the_live_generation_advances_meanwhile() {
    let (server, world) = Server::start().await;
    let (model, old, first) = world.running().await;
    world.check(&model, first).await;
    let second = model.begin_rebuild().await.unwrap();
    let new = run_generation(&model, second, &CartProjector::default());
    model.caught_up(second).await.unwrap();
    new.stop().await;

    let waits = doc! {
        "failCommands": ["findAndModify"],
        "namespace": format!("{}.postrider_projection_checkpoints", world.outbox.database),
        "blockConnection": true,
        "blockTimeMS": 3_000,
    };
    let before = server.disturb(doc! { "times": 1 }, waits).await;

    let switching = model.clone();
    let mut switching = tokio::spawn(async move { switching.switch(second).await });
    server.until_disturbed(before + 1).await;
    world.append_some(5).await;
    world.check(&model, first).await;

    let waiting = tokio::time::timeout(Duration::from_secs(5), &mut switching).await;
    assert!(waiting.is_err(), "{waiting:?}");
    assert_eq!(live(&model).await, first);
    let new = run_generation(&model, second, &CartProjector::default());
    assert_eq!(switching.await.unwrap().unwrap(), first);
    for running in [old, new] {
        running.stop().await;
    }
}

#[fixture::test]
async fn rebuild_and_switch_continue_after_an_outage() {
    let (server, world) = Server::start().await;
    let (model, old, first) = world.running().await;
    let second = model.begin_rebuild().await.unwrap();
    let fails = |collection: &str| {
        let namespace = format!("{}.{collection}", world.outbox.database);
        doc! { "failCommands": ["find"], "namespace": namespace, "errorCode": 6 }
    };

    let before = server.disturb("alwaysOn", fails("postrider_projection_checkpoints")).await;
    let switching = model.clone();
    let switching = tokio::spawn(async move { switching.switch(second).await });
    // The driver tries a read twice.
    server.until_disturbed(before + 4).await;
    server.end_faults().await;
    // While no process runs the generation, only the rebuild reads this collection.
    let before = server.disturb("alwaysOn", fails("postrider_projections")).await;
    let rebuilding = run_rebuild(&model, &CartProjector::default());
    server.until_disturbed(before + 4).await;
    server.end_faults().await;

    // The rebuild may switch first.
    let was_live = switching.await.unwrap().unwrap();
    assert!([first, second].contains(&was_live), "{was_live:?}");
    assert_eq!(live(&model).await, second);
    world.check(&model, second).await;
    for running in [old, rebuilding] {
        running.stop().await;
    }
}

#[fixture::test]
async fn switch_back_keeps_another_rebuild_that_has_begun() {
    let world = World::new().await;
    let (model, old, first) = world.running().await;
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

    let rebuilding = run_rebuild(&model, &CartProjector::default());

    eventually("the switch", async || live(&model).await != first).await;
    world.append_some(5).await;
    let second = live(&model).await;
    world.check(&model, second).await;
    rebuilding.stop().await;
}

/// Its rebuild has caught up with the feed of before a restore.
#[fixture::test]
async fn switch_refuses_a_generation_of_another_feed() {
    let world = World::new().await;
    let (model, running, first) = world.running().await;
    let second = model.begin_rebuild().await.unwrap();
    let building = run_generation(&model, second, &CartProjector::default());
    world.check(&model, second).await;
    for running in [running, building] {
        running.stop().await;
    }
    world.feed.renew().await.unwrap();

    let caught_up = model.caught_up(second).await.unwrap_err();
    let switched = model.switch(second).await.unwrap_err();
    let rebuilt = model.begin_rebuild().await.unwrap_err();

    for error in [caught_up, switched, rebuilt] {
        assert!(matches!(error, ProjectionError::WrongFeed { .. }), "{error}");
    }
    assert_eq!(live(&model).await, first);
    model.drop_generation(second).await.unwrap();
    let rebuilding = run_rebuild(&model, &CartProjector::default());
    let is_switched = async || live(&model).await > second;
    eventually("the switch", is_switched).await;
    rebuilding.stop().await;
}

#[fixture::test]
async fn abandoned_rebuild_can_be_dropped_and_begun_again() {
    let world = World::new().await;
    let (model, running, first) = world.running().await;
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
