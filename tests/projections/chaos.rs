//! Histories: projectors are killed at any moment and at fail points, MongoDB elects and rolls back,
//! transactions commit late, a rebuild runs. Each generation must be the fold of the events.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bson::doc;
use postrider::events::{Append, EventStore, NewEvent};
use postrider::names::{AggregateId, AggregateName};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::carts::{folded, stored};
use crate::child::{ProjectorProcess, Projects};
use crate::support::outbox::TestOutbox;
use crate::support::replica_set::ReplicaSet;
use crate::world::{World, live};

/// How long faults happen.
const DURATION: Duration = Duration::from_secs(15);

const APPENDERS: usize = 3;
const AGGREGATES: usize = 4;

/// A history: its servers, and who appends.
struct History {
    set: ReplicaSet,
    world: World,
    stop: CancellationToken,
    tasks: JoinSet<()>,
    /// The events of appends that were acknowledged, and of late commits.
    acknowledged: Arc<AtomicUsize>,
}

impl History {
    async fn begin(members: usize) -> Self {
        let set = ReplicaSet::of(members).await;
        set.end_transactions_soon().await;
        let world = World::on(TestOutbox::at(&set.uri()).await);
        world.append("order", "first", &["A"]).await;
        let mut history = Self {
            set,
            world,
            stop: CancellationToken::new(),
            tasks: JoinSet::new(),
            acknowledged: Arc::new(AtomicUsize::new(1)),
        };
        for number in 0..APPENDERS {
            let appending = append(
                history.world.store.clone(),
                number,
                history.stop.clone(),
                history.acknowledged.clone(),
            );
            history.tasks.spawn(appending);
        }
        let committing = commit_late(
            history.world.outbox.client.clone(),
            history.world.outbox.database.clone(),
            history.stop.clone(),
            history.acknowledged.clone(),
        );
        history.tasks.spawn(committing);
        history
    }

    fn start(&self, what: &Projects, fail_points: &str) -> ProjectorProcess {
        ProjectorProcess::start(what, &self.set.uri(), &self.world.outbox.database, fail_points)
    }

    /// Ends the faults; compares each generation with the events.
    async fn judge(mut self) {
        self.stop.cancel();
        while let Some(ended) = self.tasks.join_next().await {
            ended.unwrap();
        }
        let _last = [self.start(&Projects::Live, ""), self.start(&Projects::Live, "")];
        self.world.until_positioned().await;
        let events = self.world.events().await;
        assert!(events.len() >= self.acknowledged.load(Ordering::Relaxed), "events were lost");
        let model = self.world.model();
        let generation = live(&model).await;
        model.caught_up(generation).await.unwrap();
        assert_eq!(stored(&model.collections(generation)).await, folded(&events));
        // What a generation before has applied, it has applied once.
        for status in model.status().await.unwrap().generations {
            let applied = events.iter().filter(|event| event.position <= status.position);
            let stored = stored(&model.collections(status.generation)).await;
            assert_eq!(stored, folded(applied), "generation {}", status.generation);
        }
    }
}

/// Appends one after the other; an append without an answer is asked again.
async fn append(
    store: EventStore,
    number: usize,
    stop: CancellationToken,
    acknowledged: Arc<AtomicUsize>,
) {
    let name = AggregateName::new("order").unwrap();
    for round in 0.. {
        if stop.is_cancelled() {
            return;
        }
        let id = AggregateId::new(&format!("{number}-{}", round % AGGREGATES)).unwrap();
        let count = 1 + round % 3;
        let event = |n: usize| {
            let n = i64::try_from(round * 10 + n).unwrap();
            NewEvent::new("E", doc! { "n": n })
        };
        let events: Vec<NewEvent> = (0..count).map(event).collect();
        let request = format!("{number}-{round}");
        while store
            .append(Append::new(name.clone(), id.clone(), request.as_str(), events.clone()))
            .await
            .is_err()
        {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        acknowledged.fetch_add(count, Ordering::Relaxed);
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Another program, whose transactions commit up to a second late.
async fn commit_late(
    client: mongodb::Client,
    database: String,
    stop: CancellationToken,
    acknowledged: Arc<AtomicUsize>,
) {
    let streams = client.database(&database).collection("order_event_stream");
    for number in 0_i64.. {
        if stop.is_cancelled() {
            return;
        }
        let document = doc! {
            "_id": format!("late/{number}"),
            "contextName": "default",
            "aggregateName": "order",
            "aggregateId": format!("late-{number}"),
            "requestId": "1",
            "version": 1,
            "createTime": 1_000 + number,
            "header": {},
            "size": 1,
            "body": [{ "id": format!("late-{number}"), "name": "Late", "body": { "n": number } }],
        };
        let committed: mongodb::error::Result<()> = async {
            let mut session = client.start_session().await?;
            let majority = postrider::store::connect::majority();
            session.start_transaction().write_concern(majority).await?;
            streams.insert_one(document).session(&mut session).await?;
            let late = rand::random_range(0..1_000);
            tokio::time::sleep(Duration::from_millis(late)).await;
            session.commit_transaction().await
        }
        .await;
        if committed.is_ok() {
            acknowledged.fetch_add(1, Ordering::Relaxed);
        } else {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

/// A fail point at a random passage.
fn fail_point(rng: &mut StdRng) -> String {
    let place = ["before_commit", "after_commit"][rng.random_range(0..2)];
    format!("projections::{place}={}*off->return", rng.random_range(0..20))
}

/// Two processes die at fail points, again and again.
#[fixture::test]
async fn killed_projectors_apply_each_event_once() {
    let mut rng = StdRng::seed_from_u64(1);
    let history = History::begin(1).await;
    let mut running = [0, 1].map(|_| history.start(&Projects::Live, &fail_point(&mut rng)));
    let mut deaths = 0;
    let began = Instant::now();

    while began.elapsed() < DURATION || deaths < 6 {
        assert!(began.elapsed() < Duration::from_secs(120), "{deaths} deaths");
        for process in &mut running {
            if process.has_ended() {
                let ended = process.until_ended().await;
                assert_eq!(ended.code, None, "{ended}");
                deaths += 1;
                *process = history.start(&Projects::Live, &fail_point(&mut rng));
            }
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    drop(running);

    history.judge().await;
}

/// A rebuild is begun, killed, continued and switched to, while events are appended and the process of
/// the live generation is killed too.
#[fixture::test(long)]
async fn rebuild_through_kills_is_the_fold_of_the_events() {
    let mut rng = StdRng::seed_from_u64(2);
    let history = History::begin(1).await;
    let model = history.world.model();
    let mut old = history.start(&Projects::Live, "");
    let first = live(&model).await;
    let mut new = history.start(&Projects::Rebuild, &fail_point(&mut rng));
    let began = Instant::now();

    for kill in 0.. {
        tokio::time::sleep(Duration::from_millis(rng.random_range(500..1_500))).await;
        if live(&model).await != first || kill > 60 {
            break;
        }
        old = history.start(&Projects::Live, &fail_point(&mut rng));
        if new.has_ended() || kill < 3 {
            let point = if kill < 3 { fail_point(&mut rng) } else { String::new() };
            new = history.start(&Projects::Rebuild, &point);
        }
    }
    assert_ne!(live(&model).await, first, "no switch after {:?}", began.elapsed());
    drop((old, new));

    history.judge().await;
}

/// Elections and rollbacks: what is rolled back was in no read model, or is rolled back with its
/// checkpoint.
#[fixture::test(long)]
async fn rollback_of_mongodb_leaves_the_fold_of_the_events() {
    let mut rng = StdRng::seed_from_u64(3);
    let mut history = History::begin(3).await;
    let mut running = [0, 1].map(|_| history.start(&Projects::Live, ""));

    for round in 0..3 {
        tokio::time::sleep(Duration::from_millis(rng.random_range(500..2_000))).await;
        if round == 1 {
            history.set.step_down().await;
        } else {
            let lasts = Duration::from_millis(rng.random_range(300..1_500));
            history.set.roll_back(&history.world.outbox.database, lasts).await;
        }
        let which = rng.random_range(0..2);
        running[which] = history.start(&Projects::Live, "");
    }
    drop(running);

    history.judge().await;
}
