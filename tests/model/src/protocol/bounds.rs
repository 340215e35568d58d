//! What one check covers: how much of everything, which faults, and which guard is missing.

/// Records of the key at most.
pub const MOST: usize = 3;

/// Relays at most.
pub const CROWD: usize = 3;

/// What a state space is made of. Faults that are permitted may happen any number of times, at
/// any moment.
#[derive(Clone, Debug)]
pub struct Bounds {
    /// Relays. Each stands for one take and its lane: a process with two takes under way is two.
    pub relays: usize,
    /// Records of the key, inserted one after the other.
    pub records: usize,
    /// The first two are of overlapping transactions: either may be there first.
    pub overlapping: bool,
    /// Deliveries in all.
    pub max_attempts: u8,
    /// `on_dead = "block"`.
    pub block: bool,
    /// Records that one take leases.
    pub cap: usize,
    /// Lanes ask for more.
    pub refill: bool,
    /// Leases are renewed.
    pub renew: bool,
    /// Broker: a message may be refused.
    pub nack: bool,
    /// Broker: the outcome of a publish may never be known, and the message arrive later.
    pub unknown: bool,
    /// A process may die at any moment, and begin anew.
    pub crash: bool,
    /// A lane may be told to end: a stop, a lost partition, a sink that is down.
    pub interrupt: bool,
    /// An answer of MongoDB may be lost.
    pub lost_answers: bool,
    /// A command whose answer was lost may still be carried out, later.
    pub strays: bool,
    /// A majority may lag behind the primary, and a failover undo what it lacks.
    pub rollback: bool,
    /// A deposed primary may go on answering those who have not heard of the new one.
    pub deposed: bool,
    /// An operator requeues, discards and redelivers.
    pub operator: bool,
    /// When leases end.
    pub clocks: Clocks,
    /// What is left out.
    pub without: Option<Without>,
}

/// When leases end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clocks {
    /// At any moment: relays are paused between any two steps, hosts are suspended, clocks are
    /// set. Order must not depend on any of that.
    Any,
    /// Never before its owner's own reckoning, which it asks at the very moment of a publish: no
    /// suspended host, no clock that is set. What the lease saves rests on this.
    Orderly,
    /// Not while anybody knows of the lease: whoever holds one renews it in time.
    Renewed,
}

impl Bounds {
    /// Two relays and two records, with whatever one server and its clients may do.
    pub fn small() -> Self {
        Self {
            relays: 2,
            records: 2,
            overlapping: false,
            max_attempts: 2,
            block: false,
            cap: MOST,
            refill: false,
            renew: true,
            nack: true,
            unknown: true,
            crash: true,
            interrupt: true,
            lost_answers: true,
            strays: false,
            rollback: false,
            deposed: false,
            operator: false,
            clocks: Clocks::Any,
            without: None,
        }
    }

    /// What `attempt` is counted to: charges beyond the ceiling come from peers that have read what
    /// is old, and their number has no end.
    pub fn most_attempts(&self) -> u8 {
        self.max_attempts + 2
    }

    /// Whether a guard is there.
    pub fn has(&self, guard: Without) -> bool {
        self.without != Some(guard)
    }
}

/// A guard that can be taken out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Without {
    /// Guard 1: all reads of one look see the same moment (`outbox::snapshot`).
    OneMoment,
    /// Guard 1: only what a majority has is read.
    MajorityRead,
    /// Guard 2: what may not go ends the run (`relay::plan`).
    EverythingPending,
    /// Guard 3: only the leading part that is held is published (`relay::acquirer`).
    HeldFront,
    /// Guard 3: a record that a renewal found lost ends its lane (`relay::lease_renewal`, `lane`).
    LostEndsLane,
    /// Guard 4: a follower waits until the death is acknowledged (`relay::lane_worker::bury`).
    DeathAwaited,
    /// Guard 4: a death that was not written ends the lane (`relay::lane_worker::bury`).
    DeathMatched,
    /// Guard 4: what was settled before is read back from a majority (`outbox::settle`).
    MajorityReadBack,
    /// Keys that a dead record blocks are read in the same look (`relay::scanner::blockers`).
    BlocksRead,
    /// Hazard 3: the lease filter names the status (`outbox::lease`).
    StatusInLease,
    /// Hazard 3: the lease filter names the expiry.
    ExpiryInLease,
    /// Hazard 4: a repeated lease has the same id.
    SameLeaseId,
    /// Contract 4.3: settling filters on the lease id (`outbox::settle`).
    LeaseInSettle,
    /// Contract 4.3: no publish starts without budget (`relay::lease::may_start`).
    Budget,
    /// One unconfirmed message of a key (`relay::lane_worker`).
    PredecessorsConfirm,
    /// Contract 4.4: what was not confirmed is not done (`relay::publisher`).
    ConfirmForDone,
    /// What a crash has left leased is taken again (`relay::plan`).
    ExpiredTaken,
    /// A death and a requeue clear the lease (`outbox::settle::no_lease`, `outbox::redrive`).
    LeaseCleared,
}
