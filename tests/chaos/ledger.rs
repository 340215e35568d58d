//! The life of every record as a majority has it, followed in a change stream, and what no relay
//! may do to it.

use std::collections::HashMap;

use bson::{DateTime, Document, Timestamp, Uuid};

use crate::commands::{Settles, uuid};
use crate::support::history::Committed;

/// One change of a record.
#[derive(Clone, Debug)]
pub struct Change {
    pub id: String,
    /// The primary's clock when it wrote.
    pub at: DateTime,
    pub what: What,
}

/// What was done.
#[derive(Clone, Debug)]
pub enum What {
    Inserted(Document),
    Updated { set: Document, unset: Vec<String> },
    Deleted,
}

/// What no relay may do.
#[derive(Clone, Debug, PartialEq)]
pub enum Breach {
    /// A lease was taken from one whose lease had not ended.
    Stolen { id: String, from: Uuid, by: Uuid },
    /// A record was settled by no write that named the lease in force.
    Unfenced { id: String, lease: Option<Uuid>, to: String },
    /// A record that was done was touched again.
    Revived { id: String },
    /// A record was leased that was not pending.
    OutOfTurn { id: String, status: String },
}

/// A record so far.
#[derive(Clone, Debug)]
struct Life {
    key: Option<String>,
    seq: Timestamp,
    status: String,
    lease: Option<(Uuid, DateTime)>,
    /// Outside the order (contract 4.2): scheduled once, dead by skip once, or discarded.
    exempt: bool,
    gone: bool,
}

/// How eventful a history was.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tally {
    pub leases: usize,
    /// Leases of records whose lease had run out.
    pub takeovers: usize,
    pub retries: usize,
    pub deaths: usize,
    pub requeues: usize,
    pub discards: usize,
    pub promotions: usize,
}

/// All records that a majority ever had.
#[derive(Default)]
pub struct Ledger {
    lives: HashMap<String, Life>,
    pub breaches: Vec<Breach>,
    pub tally: Tally,
}

impl Ledger {
    /// Writes down what comes next.
    pub fn note(&mut self, change: Change, settles: &Settles) {
        let Change { id, at, what } = change;
        match what {
            What::Inserted(record) => _ = self.lives.insert(id, Life::of(&record)),
            What::Deleted => {
                self.tally.discards += 1;
                let life = self.lives.get_mut(&id).expect("it was inserted");
                (life.gone, life.exempt) = (true, true);
            }
            What::Updated { set, unset } => self.update(&id, at, &set, &unset, settles),
        }
    }

    fn update(
        &mut self,
        id: &str,
        at: DateTime,
        set: &Document,
        unset: &[String],
        settles: &Settles,
    ) {
        let Self { lives, breaches, tally } = self;
        let life = lives.get_mut(id).expect("it was inserted");
        let named = || id.to_owned();
        let to = set.get_str("status").unwrap_or(&life.status).to_owned();
        if life.status == "done" {
            breaches.push(Breach::Revived { id: named() });
        }
        let until = set.get_datetime("leaseUntil").copied();
        if let Some(by) = uuid(set.get("leaseId")) {
            tally.leases += 1;
            match life.lease {
                Some((from, ends)) if ends > at => {
                    breaches.push(Breach::Stolen { id: named(), from, by });
                }
                Some(_) => tally.takeovers += 1,
                None => {}
            }
            if life.status != "pending" {
                breaches.push(Breach::OutOfTurn { id: named(), status: life.status.clone() });
            }
            life.lease = Some((by, until.unwrap_or(DateTime::MIN)));
        } else if let (Some((_, ends)), Ok(until)) = (&mut life.lease, until) {
            *ends = until;
        }
        let ends_lease = unset.iter().any(|field| field == "leaseId");
        if ends_lease || (life.status == "pending" && to != "pending") {
            let lease = life.lease.take();
            let is_fenced = match lease {
                // A suspect at its ceiling: dead by the take, once the lease has run out.
                Some((_, ends)) if to == "dead" && ends <= at => true,
                Some((lease, _)) => settles.has(id, lease, at),
                None => false,
            };
            if !is_fenced {
                let lease = lease.map(|(lease, _)| lease);
                breaches.push(Breach::Unfenced { id: named(), lease, to: to.clone() });
            }
            tally.retries += usize::from(to == "pending" && set.contains_key("lastError"));
        }
        match (life.status.as_str(), to.as_str()) {
            ("scheduled", "pending") => tally.promotions += 1,
            ("dead", "pending") => tally.requeues += 1,
            ("pending", "dead") => {
                tally.deaths += 1;
                life.exempt |= !set.get_bool("blocks").unwrap_or(false);
            }
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

    /// How many are dead and may yet be requeued.
    pub fn dead(&self) -> usize {
        self.ids(|life| life.status == "dead").len()
    }

    fn ids(&self, such: impl Fn(&Life) -> bool) -> Vec<String> {
        let found = self.lives.iter().filter(|(_, life)| !life.gone && such(life));
        let mut ids: Vec<String> = found.map(|(id, _)| id.clone()).collect();
        ids.sort();
        ids
    }

    /// Ids and statuses of what is there, for comparison with what the database says.
    pub fn statuses(&self) -> HashMap<String, String> {
        let there = self.lives.iter().filter(|(_, life)| !life.gone);
        there.map(|(id, life)| (id.clone(), life.status.clone())).collect()
    }

    /// What was committed, for the judge; what a person discarded counts as dead.
    pub fn committed(&self) -> Vec<Committed> {
        let record = |(id, life): (&String, &Life)| Committed {
            id: id.clone(),
            key: life.key.clone(),
            seq: life.seq,
            status: if life.gone { "dead".to_owned() } else { life.status.clone() },
            exempt: life.exempt,
        };
        let mut committed: Vec<Committed> = self.lives.iter().map(record).collect();
        committed.sort_by(|one, other| one.id.cmp(&other.id));
        committed
    }
}

impl Life {
    fn of(record: &Document) -> Self {
        let status = record.get_str("status").unwrap().to_owned();
        Self {
            key: record.get_str("key").ok().map(str::to_owned),
            seq: record.get_timestamp("seq").unwrap(),
            lease: None,
            exempt: status == "scheduled",
            gone: false,
            status,
        }
    }
}
