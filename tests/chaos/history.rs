//! One history: a fleet, its load, what befalls them, and the verdict.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::panic::AssertUnwindSafe;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bson::{Document, doc};
use futures_util::future::join_all;
use futures_util::{FutureExt, TryStreamExt};
use mongodb::options::{Acknowledgment, ReadConcern, WriteConcern};
use tokio::sync::Mutex;

use crate::broker::{BOUND, Broker};
use crate::commands::Settles;
use crate::fleet::Instance;
use crate::ledger::{Breach, Tally};
use crate::plan::{Fault, Hurt, Peer, Plan};
use crate::support::history::{Findings, judge};
use crate::support::outbox::{TestOutbox, record};
use crate::support::process::{Ended, Signal, call_with};
use crate::support::producers::Producers;
use crate::support::replica_set::ReplicaSet;
use crate::traffic::{DOOMED, FLAKY, make};
use crate::watch::Watch;

/// For how long a healed fleet may bring no record to its end: much more than a lease and all that
/// is waited for besides.
const PATIENCE: Duration = Duration::from_secs(45);

/// How many of a kind are told.
const SOME: usize = 8;

/// What became of a history.
#[derive(Debug)]
pub struct Verdict {
    pub findings: Findings,
    pub breaches: Vec<Breach>,
    /// What was neither done nor dead when everything had been well for long.
    pub stuck: Vec<String>,
    /// Acknowledged to its producer, and not there.
    pub forgotten: Vec<String>,
    /// Processes that ended otherwise than they were asked to.
    pub oddities: Vec<String>,
    pub records: usize,
    pub tally: Tally,
    /// From the last healing until nothing was left to do.
    pub finished_in: Duration,
}

impl Verdict {
    /// Whether nothing is wrong.
    pub fn is_good(&self) -> bool {
        self.findings.is_kept()
            && self.breaches.is_empty()
            && self.stuck.is_empty()
            && self.forgotten.is_empty()
            && self.oddities.is_empty()
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { records, tally, findings, finished_in, .. } = self;
        let duplicates = findings.duplicates;
        write!(f, "{records} records, {duplicates} duplicates, {tally:?}, healed after ")?;
        write!(f, "{:.1} s", finished_in.as_secs_f64())?;
        some(f, "lost", &self.findings.losses)?;
        some(f, "phantoms", &self.findings.phantoms)?;
        some(f, "out of order", &self.findings.inversions)?;
        some(f, "against a lease", &self.breaches)?;
        some(f, "stuck", &self.stuck)?;
        some(f, "acknowledged and not there", &self.forgotten)?;
        some(f, "processes", &self.oddities)
    }
}

fn some<T: fmt::Debug>(f: &mut fmt::Formatter<'_>, what: &str, all: &[T]) -> fmt::Result {
    if all.is_empty() {
        return Ok(());
    }
    write!(f, "\n{what}: {} in all, {:?}", all.len(), &all[..all.len().min(SOME)])
}

/// A fleet with its servers, producers and books.
pub struct History {
    pub plan: Plan,
    pub outbox: TestOutbox,
    pub broker: Mutex<Broker>,
    set: Mutex<ReplicaSet>,
    instances: Vec<Instance>,
    pub watch: Watch,
}

impl History {
    /// Servers, and processes at work on nothing.
    pub async fn begin(plan: Plan) -> Self {
        let folder = folder(&plan);
        std::fs::write(folder.join("plan"), plan.to_string()).unwrap();
        let setup = &plan.setup;
        let (set, (broker, wires)) =
            tokio::join!(ReplicaSet::start(), Broker::start(setup.kind, setup.instances));
        let outbox = TestOutbox::at(&set.uri()).await;
        let settles = Arc::<Settles>::default();
        let watch = Watch::start(&outbox, settles.clone()).await;
        let mut instances = Vec::new();
        for (number, wire) in wires.into_iter().enumerate() {
            let mut instance = Instance::new(number, &set, wire, &settles, &folder).await;
            let sink = broker.settings(instance.broker());
            instance.configure(&outbox.database, setup, sink);
            if plan.begins_with(number) {
                instance.start().await;
            }
            instances.push(instance);
        }
        let (set, broker) = (Mutex::new(set), Mutex::new(broker));
        Self { plan, outbox, broker, set, instances, watch }
    }

    /// Producers at work while what is planned happens; then everything is healed.
    /// Answers what was acknowledged to the producers.
    pub async fn happen(&self) -> Vec<String> {
        let setup = &self.plan.setup;
        let make = make(&self.plan);
        let producers = Producers::making(&self.outbox, setup.producers, setup.rest, make);
        let start = Instant::now();
        let faults = self.plan.faults.iter().map(async |planned| {
            tokio::time::sleep_until((start + planned.at).into()).await;
            self.befall(&planned.fault).await;
        });
        let end = tokio::time::sleep_until((start + self.plan.duration).into());
        tokio::join!(join_all(faults), end);
        producers.stop().await
    }

    async fn befall(&self, fault: &Fault) {
        let rest = |lasts| tokio::time::sleep(lasts);
        match *fault {
            Fault::Join { process } => self.instances[process].start().await,
            Fault::Kill { process, down } => {
                self.instances[process].kill().await;
                rest(down).await;
                self.instances[process].start().await;
            }
            Fault::Suspend { process, lasts } => {
                self.instances[process].signal(Signal::STOP).await;
                rest(lasts).await;
                self.instances[process].signal(Signal::CONT).await;
            }
            Fault::Leave { process, away } => {
                self.instances[process].leave().await;
                rest(away).await;
                self.instances[process].start().await;
            }
            Fault::Clock { process, minutes, lasts } => {
                self.instances[process].set_clock(minutes);
                rest(lasts).await;
                self.instances[process].set_clock(0);
            }
            Fault::Link { process, to, how, lasts } => {
                self.instances[process].hurt(to, how, true);
                rest(lasts).await;
                self.instances[process].hurt(to, how, false);
            }
            Fault::Broker { killed, down } => {
                let mut broker = self.broker.lock().await;
                broker.stop(killed).await;
                rest(down).await;
                broker.start_again().await;
            }
            Fault::StepDown => _ = self.set.lock().await.step_down().await,
            Fault::Rollback { lasts } => self.roll_back(lasts).await,
            Fault::Unbound { lasts } => {
                self.broker.lock().await.bind(FLAKY, false).await;
                rest(lasts).await;
                self.broker.lock().await.bind(FLAKY, true).await;
            }
            Fault::Requeue { lasts } => {
                self.broker.lock().await.bind(DOOMED, true).await;
                self.operator(&["outbox", "requeue", "--all", "--yes", "--type", DOOMED]).await;
                rest(lasts).await;
                self.broker.lock().await.bind(DOOMED, false).await;
            }
            Fault::Pause { lasts } => {
                self.operator(&["relay", "pause"]).await;
                rest(lasts).await;
                while self.operator(&["relay", "resume"]).await.code != Some(0) {}
            }
            Fault::Discard => self.discard().await,
        }
    }

    /// An operator at the command line. He may meet a failover, and tries again another time.
    async fn operator(&self, arguments: &[&str]) -> Ended {
        let uri = self.outbox.uri.replacen("/?", &format!("/{}?", self.outbox.database), 1);
        let settings = [format!("mongo.uri={uri}"), "sinks.out.kind=stdout".to_owned()];
        call_with(&settings, arguments).await
    }

    /// What can never be delivered is discarded.
    async fn discard(&self) {
        self.operator(&["outbox", "discard", "--all", "--yes", "--reason", "refused:"]).await;
    }

    /// The primary, cut off, takes writes that no majority ever has, and loses them.
    async fn roll_back(&self, lasts: Duration) {
        let mut set = self.set.lock().await;
        let (old, others) = (set.primary().await, set.secondaries().await);
        for other in &others {
            set.stop_replication(*other).await;
        }
        let alone = WriteConcern::builder().w(Acknowledgment::from(1)).journal(true).build();
        // Keys of producers may be in hand; what is quiet would be taken at once.
        let quiet = (0..8).map(|_| format!("quiet-{}", uuid::Uuid::new_v4().simple()));
        let phantoms = Producers::keys(self.plan.setup.producers).chain(quiet).map(|key| {
            let id = uuid::Uuid::new_v4().simple();
            record(&format!("{key}/phantom-{id}"), &key)
        });
        let records = self.outbox.records();
        let inserting = records.insert_many(phantoms).write_concern(alone);
        // An insertion that comes to the next primary is none that is rolled back.
        let _ = tokio::time::timeout(Duration::from_secs(2), inserting.into_future()).await;
        tokio::time::sleep(lasts).await;
        set.kill(old);
        for other in &others {
            set.restart_replication(*other).await;
        }
        set.primary_other_than(old).await;
        set.restart(old).await;
        set.secondaries().await;
    }

    /// Hurts or heals a link of the first process.
    pub fn hurt(&self, to: Peer, how: Hurt, is_hurt: bool) {
        self.instances[0].hurt(to, how, is_hurt);
    }

    /// Signals the first process.
    pub async fn signal(&self, signal: Signal) {
        self.instances[0].signal(signal).await;
    }

    /// Lets the fleet finish, as long as it has no break of this length; ends it, and judges.
    pub async fn end(&self, acknowledged: &[String], patience: Duration) -> Verdict {
        let healed = Instant::now();
        for kind in BOUND {
            self.broker.lock().await.bind(kind, true).await;
        }
        let (mut left, mut moved) = (usize::MAX, healed);
        while moved.elapsed() < patience && !self.finished() {
            let now = self.watch.ledger.lock().unwrap().open().len();
            if now != left {
                (left, moved) = (now, Instant::now());
            }
            if self.plan.setup.blocks {
                // What died holds its key for a person.
                self.discard().await;
                self.operator(&["outbox", "requeue", "--all", "--yes"]).await;
            }
            tokio::time::sleep(Duration::from_millis(300)).await;
        }
        let finished_in = healed.elapsed();
        let mut oddities = Vec::from_iter(self.imbalance(patience).await);
        for (number, instance) in self.instances.iter().enumerate() {
            let code = instance.leave().await;
            if code != Some(0) {
                oddities.push(format!("process {number}: the last stop ended with {code:?}"));
            }
            oddities.append(&mut *instance.oddities.lock().await);
        }
        self.until_watched().await;
        let arrivals = self.broker.lock().await.arrivals().await;
        let ledger = self.watch.ledger.lock().unwrap();
        let committed = ledger.committed();
        let known: HashSet<&str> = committed.iter().map(|record| record.id.as_str()).collect();
        let forgotten = acknowledged.iter().filter(|id| !known.contains(id.as_str()));
        Verdict {
            findings: judge(&committed, &arrivals),
            breaches: ledger.breaches.clone(),
            stuck: ledger.open(),
            forgotten: forgotten.cloned().collect(),
            oddities,
            records: committed.len(),
            tally: ledger.tally,
            finished_in,
        }
    }

    /// What is wrong with the division of the partitions when it has had this much time.
    async fn imbalance(&self, patience: Duration) -> Option<String> {
        let deadline = Instant::now() + patience;
        loop {
            let listed = self.operator(&["partitions", "--output", "json"]).await;
            let mut owned: HashMap<String, usize> = HashMap::new();
            for partition in listed.json().as_array().unwrap() {
                *owned.entry(partition["instanceId"].to_string()).or_default() += 1;
            }
            let fair = 256 / self.instances.len();
            let is_fair = owned.values().all(|count| [fair, fair + 1].contains(count));
            if is_fair && owned.len() == self.instances.len() {
                return None;
            }
            if Instant::now() > deadline {
                return Some(format!("partitions are divided like this: {owned:?}"));
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// Whether nothing is left to do.
    pub fn finished(&self) -> bool {
        let ledger = self.watch.ledger.lock().unwrap();
        ledger.open().is_empty() && (!self.plan.setup.blocks || ledger.dead() == 0)
    }

    /// Until the ledger says what the database does.
    async fn until_watched(&self) {
        let deadline = Instant::now() + Duration::from_secs(30);
        loop {
            let found = self.statuses().await;
            let ledger = self.watch.ledger.lock().unwrap().statuses();
            if found == ledger {
                return;
            }
            let odd: Vec<_> =
                found.iter().filter(|(id, status)| ledger.get(*id) != Some(status)).collect();
            assert!(Instant::now() < deadline, "the ledger lacks {odd:?}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    async fn statuses(&self) -> HashMap<String, String> {
        let records = self.outbox.records();
        let find = records.find(doc! {}).projection(doc! { "status": 1 });
        let found = find.read_concern(ReadConcern::majority()).await.unwrap();
        let found: Vec<Document> = found.try_collect().await.unwrap();
        let text = |record: &Document, field| record.get_str(field).unwrap().to_owned();
        found.iter().map(|record| (text(record, "_id"), text(record, "status"))).collect()
    }
}

/// Runs the history of a plan from its beginning to its end. One that breaks the promise ends the
/// test, and tells by what it can be repeated and where its logs lie.
pub async fn keeps_the_promise(plan: Plan) -> Verdict {
    let (seed, seconds) = (plan.seed, plan.duration.as_secs());
    let text = plan.to_string();
    let folder = folder(&plan);
    let running = async move {
        let history = History::begin(plan).await;
        let acknowledged = history.happen().await;
        history.end(&acknowledged, PATIENCE).await
    };
    let verdict = match AssertUnwindSafe(running).catch_unwind().await {
        Ok(verdict) if verdict.is_good() => {
            let _ = std::fs::remove_dir_all(folder);
            return verdict;
        }
        Ok(verdict) => verdict.to_string(),
        Err(_) => "the history did not come to its end: see above".to_owned(),
    };
    panic!(
        "{verdict}\nwith this plan:\n{text}\nlogs: {}\nagain: make chaos SEED={seed} DURATION={seconds}",
        folder.display(),
    );
}

fn folder(plan: &Plan) -> PathBuf {
    let above = std::env::var_os("CHAOS_LOGS").map_or_else(std::env::temp_dir, PathBuf::from);
    let id = std::process::id();
    let folder: &Path = &above.join(format!("postrider-chaos-{}-{id}", plan.seed));
    std::fs::create_dir_all(folder).unwrap();
    folder.to_owned()
}
