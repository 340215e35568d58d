//! One history: instances, their load, their faults, and the verdict.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use bson::{DateTime, Document, doc};
use futures_util::TryStreamExt;
use futures_util::future::join_all;
use mongodb::options::{Acknowledgment, ReadConcern, WriteConcern};
use postrider::schema::Validator;
use tokio::sync::Mutex;
use tokio::task::JoinHandle;

use crate::appends::{self, Append, Appenders};
use crate::broker::{BOUND, Brokers};
use crate::commands::{Settles, id_of};
use crate::feed::FeedWatch;
use crate::instance::{Instance, USER};
use crate::plan::{Fault, Kind, LinkFault, Lost, Peer, Plan, Sickness};
use crate::privileges::{Withdrawals, privileges};
use crate::runs::folder;
use crate::sickness::{Healings, SHORTEST_WAIT};
use crate::support::environment::unique;
use crate::support::outbox::{TestOutbox, eventually, record};
use crate::support::process::Signal;
use crate::support::producers::Producers;
use crate::support::replica_set::ReplicaSet;
use crate::support::roles;
use crate::traffic::{self, DOOMED, FLAKY, invalid};
use crate::verdict::{Seen, Verdict};
use crate::watch::Watch;

/// The pause between two actions of operators at the end.
const TIDY_PAUSE: Duration = Duration::from_secs(2);

/// How long the processes of a calm history may take to divide the partitions before it begins.
const DIVISION_LIMIT: Duration = Duration::from_secs(30);

/// The pause between two checks by the supervisor of processes.
const SUPERVISION_PAUSE: Duration = Duration::from_millis(500);

/// How long a healing waits for its sample record. Every other fault ends before, that of a broker
/// that starts again on a busy machine too.
const SICKNESS_LIMIT: Duration = Duration::from_secs(90);

/// Servers that serve one history after the other.
#[derive(Default)]
pub struct Servers {
    set: Option<ReplicaSet>,
    brokers: Brokers,
}

/// Instances with their servers, producers and ledgers.
pub struct History {
    pub plan: Plan,
    pub outbox: TestOutbox,
    pub broker: Mutex<Brokers>,
    set: Mutex<ReplicaSet>,
    instances: Arc<Vec<Instance>>,
    pub watch: Watch,
    withdrawals: Arc<Withdrawals>,
    /// In a calm history: the owner of each partition when the producers began.
    owners: OnceLock<Owners>,
    /// Since when no record breaks connections.
    unpoisoned: OnceLock<DateTime>,
    healings: Healings,
    feed: Mutex<Option<FeedWatch>>,
    _supervisor: Supervisor,
}

/// Each partition with its owner and its epoch, which every change of the owner increases.
type Owners = BTreeMap<String, [String; 2]>;

/// Starts processes again that ended because privileges were withdrawn, until dropped.
struct Supervisor(JoinHandle<()>);

impl Supervisor {
    fn start(instances: &Arc<Vec<Instance>>) -> Self {
        let instances = instances.clone();
        Self(tokio::spawn(async move {
            loop {
                tokio::time::sleep(SUPERVISION_PAUSE).await;
                join_all(instances.iter().map(Instance::supervise)).await;
            }
        }))
    }
}

impl Drop for Supervisor {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// What was acknowledged to producers and clients.
#[derive(Default)]
pub struct Acknowledged {
    pub records: Vec<String>,
    pub appends: Vec<Append>,
}

impl History {
    /// Starts the servers, and idle processes.
    pub async fn begin(plan: Plan, servers: Servers) -> Self {
        let folder = folder(&plan);
        std::fs::write(folder.join("plan"), plan.to_string()).unwrap();
        let setup = &plan.setup;
        let Servers { set, mut brokers } = servers;
        let starting = async {
            match set {
                Some(set) => set,
                None => ReplicaSet::with_access_control().await,
            }
        };
        let (set, ()) = tokio::join!(starting, brokers.start(setup));
        brokers.create_destinations(setup).await;
        let validator =
            if setup.mixed_options.validator { Validator::Error } else { Validator::Off };
        let outbox = TestOutbox::validated(&set.uri(), validator).await;
        let database = outbox.client.database(&outbox.database);
        roles::user_with(&database, USER, privileges(&outbox.database, None)).await;
        let settles = Arc::<Settles>::default();
        let watch = Watch::start(&outbox, settles.clone()).await;
        let withdrawals = Arc::<Withdrawals>::default();
        let mut instances = Vec::new();
        for number in 0..setup.instances {
            let proxies = brokers.proxies_of(number);
            let mut instance =
                Instance::new(number, &set, proxies, &settles, &withdrawals, &folder).await;
            let sinks = brokers.settings(setup, number);
            instance.configure(&outbox.database, setup, sinks);
            if plan.begins_with(number) {
                instance.start().await;
            }
            instances.push(instance);
        }
        if setup.mixed_options.calm {
            join_all(instances.iter().map(Instance::until_ready)).await;
        }
        let (set, broker) = (Mutex::new(set), Mutex::new(brokers));
        let instances = Arc::new(instances);
        let _supervisor = Supervisor::start(&instances);
        let (owners, unpoisoned) = (OnceLock::new(), OnceLock::new());
        Self {
            plan,
            outbox,
            broker,
            set,
            instances,
            watch,
            withdrawals,
            owners,
            unpoisoned,
            healings: Healings::default(),
            feed: Mutex::default(),
            _supervisor,
        }
    }

    /// Runs producers during the planned faults; then heals everything.
    pub async fn happen(&self) -> Acknowledged {
        let setup = &self.plan.setup;
        if setup.mixed_options.calm {
            // An imbalance here would be an imbalance at the end as well.
            let _ = self.imbalance(DIVISION_LIMIT).await;
            let _ = self.owners.set(self.owners().await);
        }
        if !setup.mixed_options.sick.contains(&Sickness::Poison) {
            let _ = self.unpoisoned.set(DateTime::now());
        }
        let destinations = self.broker.lock().await.name.clone();
        let samples: Vec<Document> =
            setup.mixed_options.sick.iter().map(|sick| sick.sample(&destinations)).collect();
        if !samples.is_empty() {
            self.outbox.insert(samples).await;
        }
        let make = traffic::make(&self.plan, &destinations);
        let name = traffic::naming(&self.plan);
        let producers = Producers::naming(&self.outbox, setup.producers, setup.rest, make, name);
        if setup.mixed_options.feed {
            *self.feed.lock().await = Some(FeedWatch::start(&self.outbox));
        }
        let appenders = Appenders::start(&self.instances, setup.mixed_options.appenders);
        let start = Instant::now();
        let faults = self.plan.faults.iter().map(async |planned| {
            tokio::time::sleep_until((start + planned.at).into()).await;
            self.apply(&planned.fault).await;
        });
        let end = tokio::time::sleep_until((start + self.plan.duration).into());
        tokio::join!(join_all(faults), end);
        let (records, appends) = tokio::join!(producers.stop(), appenders.stop());
        Acknowledged { records, appends }
    }

    async fn apply(&self, fault: &Fault) {
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
            Fault::Replace { process, lasts } => self.instances[process].replace(lasts).await,
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
            Fault::Broker { which, killed, down } => {
                let mut broker = self.broker.lock().await;
                broker.stop(which, killed).await;
                rest(down).await;
                broker.start_again(which).await;
            }
            Fault::StepDown => _ = self.set.lock().await.step_down().await,
            Fault::Rollback { lasts } => self.roll_back(lasts).await,
            Fault::Unbound { lasts } => {
                self.broker.lock().await.bind(FLAKY, false).await;
                rest(lasts).await;
                self.broker.lock().await.bind(FLAKY, true).await;
            }
            Fault::Vanished { lasts } => {
                // Its other faults wait meanwhile.
                let broker = self.broker.lock().await;
                broker.set_vanished(true).await;
                rest(lasts).await;
                broker.set_vanished(false).await;
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
            Fault::Heal { sick } => {
                self.until_waiting(sick).await;
                let mut broker = self.broker.lock().await;
                self.healings.begin(sick, DateTime::now());
                broker.heal(sick).await;
                if sick == Sickness::Poison {
                    let _ = self.unpoisoned.set(DateTime::now());
                }
            }
            Fault::Forbid { lasts } => {
                self.broker.lock().await.forbid(true).await;
                rest(lasts).await;
                self.broker.lock().await.forbid(false).await;
            }
            Fault::OperatorChange { how } => self.tamper(how).await,
            Fault::Unprivileged { lost, lasts } => self.take_privileges(lost, lasts).await,
            Fault::Burst { count, is_stamped } => self.burst(count, is_stamped).await,
        }
    }

    /// Waits until the sample record of this sickness was leased and has waited. Where no process
    /// leases it, the history continues, and the verdict names a fault without effect.
    async fn until_waiting(&self, sick: Sickness) {
        let deadline = Instant::now() + SICKNESS_LIMIT;
        let has_waited = || {
            let leased = self.watch.ledger.lock().unwrap().first_lease(&sick.sample_id());
            leased.is_some_and(|at| DateTime::now().saturating_duration_since(at) >= SHORTEST_WAIT)
        };
        while !has_waited() && Instant::now() < deadline {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Cuts the primary off; it accepts writes that no majority ever has, and rolls them back.
    async fn roll_back(&self, lasts: Duration) {
        let mut set = self.set.lock().await;
        let (old, others) = (set.primary().await, set.secondaries().await);
        for other in &others {
            set.stop_replication(*other).await;
        }
        let alone = WriteConcern::builder().w(Acknowledgment::from(1)).journal(true).build();
        // Keys of producers may be in flight; an idle key would be leased at once.
        let quiet = (0..8).map(|_| unique("quiet-"));
        // With two brokers, a key's partition is the producer's choice.
        let kept = if self.plan.setup.kind == Kind::Mixed { 0 } else { self.plan.setup.producers };
        let phantoms = Producers::keys(kept).chain(quiet).map(|key| {
            let id = uuid::Uuid::new_v4().simple();
            record(&format!("{key}/phantom-{id}"), &key)
        });
        let records = self.outbox.records();
        let inserting = records.insert_many(phantoms).write_concern(alone);
        // An insertion that reaches the next primary is not rolled back.
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

    /// Revokes privileges of the relays' user for a while.
    async fn take_privileges(&self, lost: Lost, lasts: Duration) {
        self.withdrawals.begin(Instant::now());
        self.permit(Some(lost)).await;
        tokio::time::sleep(lasts).await;
        self.permit(None).await;
        self.withdrawals.end(Instant::now());
    }

    /// Grants the relays' user its privileges, except those that it has lost. The administrator may
    /// meet a failover, and tries again.
    async fn permit(&self, lost: Option<Lost>) {
        let database = self.outbox.client.database(&self.outbox.database);
        eventually("the privileges to be changed", || async {
            let privileges = privileges(&self.outbox.database, lost);
            roles::permit(&database, USER, privileges).await.is_ok()
        })
        .await;
    }

    /// Inserts many records at once. Records of one key all have the same partition.
    async fn burst(&self, count: u64, is_stamped: bool) {
        let is_stamped = is_stamped && !self.plan.setup.mixed_options.validator;
        let key = if is_stamped { "crowd-odd" } else { "crowd" };
        let records = (0..count).map(|_| {
            let mut made = record(&uuid::Uuid::new_v4().to_string(), key);
            if is_stamped {
                _ = made.insert("partition", invalid(0))
            } else {
                _ = made.remove("partition")
            }
            made
        });
        // A failover may end it in the middle.
        let _ = self.outbox.records().insert_many(records).await;
    }

    /// Applies a fault to a link of the first process, or ends it.
    pub fn hurt(&self, to: Peer, how: LinkFault, is_hurt: bool) {
        self.instances[0].hurt(to, how, is_hurt);
    }

    /// Signals the first process.
    pub async fn signal(&self, signal: Signal) {
        self.instances[0].signal(signal).await;
    }

    /// Lets the instances finish, as long as there is no pause of this length; ends the history,
    /// and judges it.
    pub async fn end(&self, acknowledged: &Acknowledged, patience: Duration) -> Verdict {
        let healed = Instant::now();
        self.heal().await;
        let (mut left, mut moved) = (usize::MAX, healed);
        let mut tidied: Option<Instant> = None;
        while moved.elapsed() < patience && !self.finished() {
            let now = self.watch.ledger.lock().unwrap().open().len();
            if now != left {
                (left, moved) = (now, Instant::now());
            }
            if tidied.is_none_or(|tidied| tidied.elapsed() > TIDY_PAUSE) {
                if self.plan.setup.blocks {
                    // A dead record blocks its key until an operator acts.
                    self.discard().await;
                    self.operator(&["outbox", "requeue", "--all", "--yes"]).await;
                }
                if self.plan.setup.kind == Kind::Mixed {
                    self.resolve_waiting().await;
                }
                tidied = Some(Instant::now());
            }
            tokio::time::sleep(Duration::from_millis(300)).await;
        }
        let finished_in = healed.elapsed();
        let mut unbrought = Vec::new();
        let mut oddities = Vec::from_iter(self.imbalance(patience).await);
        oddities.extend(self.describe_open_records().await);
        let undisturbed = self.undisturbed().await;
        let feed = match self.feed.lock().await.take() {
            Some(feed) => feed.end(patience).await,
            None => Vec::new(),
        };
        for (number, instance) in self.instances.iter().enumerate() {
            let code = instance.leave().await;
            if code != Some(0) {
                oddities.push(format!("process {number}: the last stop ended with {code:?}"));
            }
            oddities.append(&mut *instance.oddities.lock().await);
            unbrought.append(&mut *instance.unbrought.lock().unwrap());
        }
        self.until_watched().await;
        let arrivals = self.broker.lock().await.arrivals().await;
        let dead_letters = match self.plan.setup.mixed_options.dead_letters {
            Some(at) => Some(self.broker.lock().await.dead_letters(at).await),
            None => None,
        };
        let stored = appends::stored(&self.outbox).await;
        let seen = Seen {
            ledger: &self.watch.ledger.lock().unwrap(),
            acknowledged: &acknowledged.records,
            appended: &acknowledged.appends,
            stored: &stored,
            arrivals: &arrivals,
            dead_letters,
            undisturbed,
            healings: &self.healings,
        };
        Verdict { oddities, unbrought, feed, finished_in, ..seen.judge(&self.plan) }
    }

    /// Makes everything deliverable, except what must stay as it is.
    async fn heal(&self) {
        let mut broker = self.broker.lock().await;
        for kind in BOUND {
            broker.bind(kind, true).await;
        }
        if self.plan.setup.kind == Kind::Mixed {
            for sick in Sickness::ALL.into_iter().filter(|sick| *sick != Sickness::Poison) {
                self.healings.begin(sick, DateTime::now());
                broker.heal(sick).await;
            }
        }
    }

    /// Removes what this history has made; returns the servers for the next one.
    pub async fn clear(self) -> Servers {
        let mut brokers = self.broker.into_inner();
        brokers.clear().await;
        drop(self.watch);
        let database = self.outbox.client.database(&self.outbox.database);
        roles::forget(&database).await;
        database.drop().await.unwrap();
        Servers { set: Some(self.set.into_inner()), brokers }
    }

    /// What is wrong with the division of the partitions after this time.
    async fn imbalance(&self, patience: Duration) -> Option<String> {
        let deadline = Instant::now() + patience;
        loop {
            let mut owned: HashMap<String, usize> = HashMap::new();
            for [instance, _] in self.owners().await.into_values() {
                *owned.entry(instance).or_default() += 1;
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

    async fn owners(&self) -> Owners {
        let listed = self.operator(&["partitions", "--output", "json"]).await.json();
        let partitions = listed.as_array().unwrap().iter();
        let owner = |partition: &serde_json::Value| {
            let field = |name: &str| partition[name].to_string();
            (field("id"), [field("instanceId"), field("epoch")])
        };
        partitions.map(owner).collect()
    }

    /// Since when only destinations could delay records, if that is so at all.
    async fn undisturbed(&self) -> Option<DateTime> {
        let owners = self.owners.get()?;
        let since = *self.unpoisoned.get()?;
        (self.owners().await == *owners).then_some(since)
    }

    /// Why some of the remaining records wait, as `outbox show` reports it.
    async fn describe_open_records(&self) -> Vec<String> {
        let left: Vec<String> =
            self.watch.ledger.lock().unwrap().open().into_iter().take(4).collect();
        let mut reasons = Vec::new();
        for id in left {
            let shown = self.operator(&["outbox", "show", &id, "--output", "json"]).await.json();
            let fields = ["partition", "seq", "status", "waits", "leaseId", "attempt", "visibleAt"];
            let said = fields.map(|field| format!("{field} {}", shown[field]));
            reasons.push(format!("left: {id}: {}", said.join(", ")));
        }
        reasons
    }

    /// Whether nothing is left to do.
    pub fn finished(&self) -> bool {
        let ledger = self.watch.ledger.lock().unwrap();
        ledger.open().is_empty() && (!self.plan.setup.blocks || ledger.dead() == 0)
    }

    /// Waits until the ledger agrees with the database.
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
        let id = |record: &Document| record.get("_id").and_then(id_of).unwrap();
        let status = |record: &Document| record.get_str("status").unwrap().to_owned();
        found.iter().map(|record| (id(record), status(record))).collect()
    }
}
