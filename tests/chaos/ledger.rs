//! The life of every record as a majority has it, read from a change stream, and what no relay may
//! do to it.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use bson::{Bson, DateTime, Document, Timestamp, Uuid};

use crate::commands::{Settles, uuid};
use crate::support::history::{Committed, content_of};
use crate::traffic::Place;

/// One change of a record.
#[derive(Clone, Debug)]
pub struct Change {
    pub id: String,
    /// The primary's clock when it wrote.
    pub at: DateTime,
    /// When the change stream delivered it here.
    pub brought: DateTime,
    pub what: What,
}

/// The change.
#[derive(Clone, Debug)]
pub enum What {
    Inserted(Document),
    Updated { set: Document, unset: Vec<String> },
    Replaced(Document),
    Deleted,
}

/// Lease commands of a dead owner that may still be executed: of a connection that was frozen.
const MAX_STRAYS: usize = 3;

/// Actions that no relay may take.
#[derive(Clone, Debug, PartialEq)]
pub enum Breach {
    /// Another owner took over a lease that had not ended.
    Stolen { id: String, from: Uuid, by: Uuid },
    /// An owner leases again after its lease was taken over before the end: it was not dead.
    Robbed { id: String, owner: Uuid },
    /// A record was settled by a write that did not name the lease in force.
    Unfenced { id: String, lease: Option<Uuid>, to: String },
    /// A done record was changed again.
    Revived { id: String },
    /// A record was leased that was not pending.
    OutOfTurn { id: String, status: String },
}

/// The history of a record so far.
#[derive(Clone, Debug)]
struct Life {
    key: Option<String>,
    seq: Timestamp,
    status: String,
    lease: Option<(Uuid, DateTime)>,
    /// The owner of the lease.
    owner: Option<Uuid>,
    first_lease: Option<DateTime>,
    /// Of its message.
    content: u64,
    /// Not ordered: scheduled once, dead by skip once, discarded, or replaced.
    exempt: bool,
    gone: bool,
    kind: String,
    place: Place,
    /// When it was inserted, when the change stream delivered that here, and when it was done or
    /// deleted.
    since: DateTime,
    brought: DateTime,
    until: Option<DateTime>,
    /// Whether something other than a settlement set its `visibleAt`.
    is_postponed: bool,
    /// Whether an attempt failed and was counted.
    is_tried_again: bool,
    /// The reason of each of its deaths.
    reasons: Vec<String>,
    event: Option<EventOf>,
}

/// The event whose message a record is.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EventOf {
    pub aggregate: String,
    pub version: i64,
    pub index: i64,
}

/// A record that has died.
#[derive(Clone, Debug)]
pub struct Death {
    pub id: String,
    pub kind: String,
    pub reason: String,
}

/// Counts of a history's events.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tally {
    pub leases: usize,
    /// Leases of records whose lease had expired.
    pub takeovers: usize,
    /// Leases of records whose owner was dead before.
    pub early_takeovers: usize,
    pub retries: usize,
    pub deaths: usize,
    pub requeues: usize,
    pub discards: usize,
    /// Documents that took the place of one with the same id.
    pub replacements: usize,
    pub promotions: usize,
}

/// All records that a majority ever had.
#[derive(Default)]
pub struct Ledger {
    lives: HashMap<String, Life>,
    /// The lives of documents that others with the same id have replaced.
    replaced: Vec<(String, Life)>,
    /// The leases that owners took after one of theirs was taken over before its end.
    robbed: HashMap<Uuid, HashSet<Uuid>>,
    pub breaches: Vec<Breach>,
    pub tally: Tally,
}

impl Ledger {
    /// Records the next change.
    pub fn note(&mut self, change: Change, settles: &Settles) {
        let Change { id, at, brought, what } = change;
        match what {
            What::Inserted(record) => self.insert(id, &record, at, brought),
            What::Replaced(record) => {
                self.remove(&id, at);
                self.insert(id, &record, at, brought);
            }
            What::Deleted => {
                self.tally.discards += 1;
                self.remove(&id, at);
            }
            What::Updated { set, unset } => self.update(&id, at, &set, &unset, settles),
        }
    }

    fn insert(&mut self, id: String, record: &Document, at: DateTime, brought: DateTime) {
        let mut life = Life::of(record, at, brought);
        if let Some(before) = self.lives.remove(&id) {
            self.tally.replacements += 1;
            // Its lane may have to end first, whatever that waits for.
            life.is_postponed = true;
            self.replaced.push((id.clone(), before));
        }
        self.lives.insert(id, life);
    }

    fn remove(&mut self, id: &str, at: DateTime) {
        let life = self.lives.get_mut(id).expect("it was inserted");
        (life.gone, life.exempt) = (true, true);
        life.until = life.until.or(Some(at));
    }

    fn update(
        &mut self,
        id: &str,
        at: DateTime,
        set: &Document,
        unset: &[String],
        settles: &Settles,
    ) {
        let Self { lives, robbed, breaches, tally, .. } = self;
        let life = lives.get_mut(id).expect("it was inserted");
        let named = || id.to_owned();
        let to = set.get_str("status").unwrap_or(&life.status).to_owned();
        if life.status == "done" {
            breaches.push(Breach::Revived { id: named() });
        }
        let until = set.get_datetime("leaseUntil").copied();
        let owner = uuid(set.get("leaseOwner"));
        if let Some(by) = uuid(set.get("leaseId")) {
            tally.leases += 1;
            life.first_lease = life.first_lease.or(Some(at));
            match life.lease {
                Some((from, ends)) if ends > at => match (life.owner, owner) {
                    (Some(before), Some(now)) if before != now => {
                        tally.early_takeovers += 1;
                        robbed.entry(before).or_default();
                    }
                    _ => breaches.push(Breach::Stolen { id: named(), from, by }),
                },
                Some(_) => tally.takeovers += 1,
                None => {}
            }
            if let Some((owner, leases)) =
                owner.and_then(|owner| Some((owner, robbed.get_mut(&owner)?)))
            {
                leases.insert(by);
                if leases.len() == MAX_STRAYS + 1 {
                    breaches.push(Breach::Robbed { id: named(), owner });
                }
            }
            life.owner = owner;
            if life.status != "pending" {
                breaches.push(Breach::OutOfTurn { id: named(), status: life.status.clone() });
            }
            life.lease = Some((by, until.unwrap_or(DateTime::MIN)));
        } else if let (Some((_, ends)), Ok(until)) = (&mut life.lease, until) {
            *ends = until;
        }
        let ends_lease = unset.iter().any(|field| field == "leaseId");
        life.is_postponed |= set.contains_key("visibleAt") && !ends_lease;
        if ends_lease || (life.status == "pending" && to != "pending") {
            let lease = life.lease.take();
            let is_fenced = match lease {
                // A poison record at its limit: dead by the scan, once the lease has expired.
                Some((_, ends)) if to == "dead" && ends <= at => true,
                // Or its owner is dead.
                Some((lease, _)) if to == "dead" && !settles.has(id, lease, at) => {
                    life.owner.is_some_and(|owner| robbed.contains_key(&owner))
                }
                Some((lease, _)) => settles.has(id, lease, at),
                None => false,
            };
            if !is_fenced {
                let lease = lease.map(|(lease, _)| lease);
                breaches.push(Breach::Unfenced { id: named(), lease, to: to.clone() });
            }
            let is_tried_again = to == "pending" && set.contains_key("lastError");
            tally.retries += usize::from(is_tried_again);
            life.is_tried_again |= is_tried_again;
        }
        match (life.status.as_str(), to.as_str()) {
            ("scheduled", "pending") => tally.promotions += 1,
            ("dead", "pending") => tally.requeues += 1,
            ("pending", "dead") => {
                tally.deaths += 1;
                life.reasons.push(set.get_str("deadReason").unwrap_or_default().to_owned());
                life.exempt |= !set.get_bool("blocks").unwrap_or(false);
            }
            ("pending", "done") => life.until = Some(at),
            _ => {}
        }
        if let Ok(seq) = set.get_timestamp("seq") {
            life.seq = seq;
        }
        life.status = to;
    }

    /// Ids of the records that are neither done nor dead, nor discarded.
    pub fn open(&self) -> Vec<String> {
        self.ids(|life| matches!(life.status.as_str(), "pending" | "scheduled"))
    }

    /// How many are dead and may still be requeued.
    pub fn dead(&self) -> usize {
        self.ids(|life| life.status == "dead").len()
    }

    fn ids(&self, such: impl Fn(&Life) -> bool) -> Vec<String> {
        let found = self.lives.iter().filter(|(_, life)| !life.gone && such(life));
        let mut ids: Vec<String> = found.map(|(id, _)| id.clone()).collect();
        ids.sort();
        ids
    }

    /// Ids and statuses of all records, for comparison with the database.
    pub fn statuses(&self) -> HashMap<String, String> {
        let there = self.lives.iter().filter(|(_, life)| !life.gone);
        there.map(|(id, life)| (id.clone(), life.status.clone())).collect()
    }

    /// What was committed, for the judge; a discarded record counts as dead.
    pub fn committed(&self) -> Vec<Committed> {
        Place::ALL.iter().flat_map(|place| self.committed_for(*place)).collect()
    }

    /// What was committed for this destination.
    pub fn committed_for(&self, place: Place) -> Vec<Committed> {
        let record = |(id, life): (&String, &Life)| Committed {
            id: id.clone(),
            key: life.key.clone(),
            seq: life.seq,
            content: life.content,
            // What was delivered before it was removed must have arrived.
            status: match life.status.as_str() {
                status if !life.gone || status == "done" => status.to_owned(),
                _ => "dead".to_owned(),
            },
            exempt: life.exempt,
        };
        let replaced = self.replaced.iter().map(|(id, life)| (id, life));
        let there = self.lives.iter().chain(replaced).filter(|(_, life)| life.place == place);
        let mut committed: Vec<Committed> = there.map(record).collect();
        committed.sort_by(|one, other| one.id.cmp(&other.id));
        committed
    }

    /// Keys of which a record was retried or died.
    pub fn refused_keys(&self) -> HashSet<String> {
        let lives = self.lives.values();
        let refused = lives.filter(|life| life.is_tried_again || !life.reasons.is_empty());
        refused.filter_map(|life| life.key.clone()).collect()
    }

    /// Every death, including records that were requeued or discarded since.
    pub fn deaths(&self) -> Vec<Death> {
        let death = |(id, life): (&String, &Life)| {
            let (id, kind) = (id.clone(), life.kind.clone());
            life.reasons.last().map(|reason| Death { id, kind, reason: reason.clone() })
        };
        self.lives.iter().filter_map(death).collect()
    }

    /// The records that are messages of events.
    pub fn events(&self) -> HashMap<String, EventOf> {
        let event = |(id, life): (&String, &Life)| Some((id.clone(), life.event.clone()?));
        self.lives.iter().filter_map(event).collect()
    }

    /// Records without an order.
    pub fn exempt(&self) -> HashSet<String> {
        let lives = self.lives.iter().filter(|(_, life)| life.exempt);
        lives.map(|(id, _)| id.clone()).collect()
    }

    /// When a record was leased for the first time.
    pub fn first_lease(&self, id: &str) -> Option<DateTime> {
        self.lives.get(id)?.first_lease
    }

    /// A record of such a place and type that was done before this time.
    pub fn done_before(&self, time: DateTime, such: impl Fn(Place, &str) -> bool) -> Option<&str> {
        let is_early = |life: &Life| {
            life.status == "done"
                && such(life.place, &life.kind)
                && life.until.is_some_and(|until| until < time)
        };
        let early = self.lives.iter().filter(|(_, life)| is_early(life));
        early.map(|(id, _)| id.as_str()).min()
    }

    /// The record of such keys that waited longest until it was done.
    pub fn slowest(&self, such: impl Fn(&str) -> bool) -> Option<(Duration, String)> {
        let waited = |(id, life): (&String, &Life)| {
            life.key.as_deref().filter(|key| such(key))?;
            let waited = life.until?.saturating_duration_since(life.since);
            Some((waited, id.clone()))
        };
        let plain = self.lives.iter().filter(|(_, life)| !life.exempt);
        plain.filter_map(waited).max()
    }

    /// The same of records that waited only for the relay: inserted after `from`, and not behind an
    /// earlier record of their key, or one that an operator postponed. The time that MongoDB took
    /// to deliver them to the change stream of this ledger is not counted.
    pub fn slowest_undisturbed(
        &self,
        from: DateTime,
        such: impl Fn(&str) -> bool,
    ) -> Option<(Duration, String)> {
        let lives = || {
            let lives = self.lives.iter();
            lives.filter_map(|(id, life)| Some((id, life.key.as_deref()?, life)))
        };
        let mut free_from: HashMap<&str, DateTime> = HashMap::new();
        for (_, key, life) in lives().filter(|(.., life)| life.since < from || life.is_postponed) {
            let free = free_from.entry(key).or_insert(from);
            *free = (*free).max(life.until.unwrap_or(DateTime::MAX));
        }
        let waited = |(id, key, life): (&String, &str, &Life)| {
            let is_judged = such(key)
                && !life.exempt
                && !life.is_postponed
                && life.since >= *free_from.get(key).unwrap_or(&from);
            let begin = life.since.max(life.brought);
            let waited = life.until.filter(|_| is_judged)?.saturating_duration_since(begin);
            Some((waited, id.clone()))
        };
        lives().filter_map(waited).max()
    }
}

impl Life {
    fn of(record: &Document, at: DateTime, brought: DateTime) -> Self {
        let status = record.get_str("status").unwrap().to_owned();
        Self {
            key: record.get_str("key").ok().map(str::to_owned),
            seq: record.get_timestamp("seq").unwrap(),
            content: content_of(record),
            lease: None,
            owner: None,
            first_lease: None,
            exempt: status == "scheduled",
            gone: false,
            kind: record.get_str("type").unwrap_or_default().to_owned(),
            place: Place::of(record),
            since: at,
            brought,
            until: None,
            is_postponed: false,
            is_tried_again: false,
            reasons: Vec::new(),
            event: EventOf::of(record),
            status,
        }
    }
}

impl EventOf {
    fn of(record: &Document) -> Option<Self> {
        let headers = record.get_document("headers").ok()?;
        let number = |name| match headers.get(name) {
            Some(Bson::Int32(number)) => Some(i64::from(*number)),
            Some(Bson::Int64(number)) => Some(*number),
            _ => None,
        };
        let version = number("aggregate-version")?;
        let aggregate = record.get_str("key").ok()?.to_owned();
        Some(Self { aggregate, version, index: number("event-index")? })
    }
}
