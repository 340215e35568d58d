//! The scope of one check: how much of everything, which faults, and which guard is missing.

/// The most records of the key.
pub const MAX_RECORDS: usize = 3;

/// The most relays.
pub const MAX_RELAYS: usize = 3;

/// The size of a state space. Permitted faults may happen any number of times, at any moment.
#[derive(Clone, Debug)]
pub struct Bounds {
    /// Relays. Each is one scan and its lane: a process with two scans in progress is two.
    pub relays: usize,
    /// Records of the key, inserted one after the other.
    pub records: usize,
    /// The first two are of overlapping transactions: either may be visible first.
    pub overlapping: bool,
    /// The most deliveries.
    pub max_attempts: u8,
    /// `on_dead = "block"`.
    pub block: bool,
    /// Records that one scan leases.
    pub cap: usize,
    /// Lanes ask for more.
    pub refill: bool,
    /// Leases are renewed.
    pub renew: bool,
    /// Broker: a message may be refused.
    pub nack: bool,
    /// Broker: the outcome of a publish may stay unknown, and the message arrive later.
    pub unknown: bool,
    /// A process may die at any moment, and start again.
    pub crash: bool,
    /// A lane may be ordered to end: a stop, a lost partition, a sink that is down.
    pub interrupt: bool,
    /// An answer of MongoDB may be lost.
    pub lost_answers: bool,
    /// A command whose answer was lost may still be executed, later.
    pub strays: bool,
    /// A majority may lag behind the primary, and a failover roll back what it lacks.
    pub rollback: bool,
    /// A deposed primary may continue to answer clients that do not know the new one.
    pub deposed: bool,
    /// An operator requeues, discards and redelivers.
    pub operator: bool,
    /// When leases end.
    pub clocks: Clocks,
    /// The guard that is left out.
    pub without: Option<Without>,
}

/// When leases end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clocks {
    /// At any moment: relays are paused between any two steps, hosts are suspended, clocks are set.
    /// Order must not depend on any of that.
    Any,
    /// Never before its owner's own clock, which is read at the very moment of a publish: no
    /// suspended host, no clock that is set. The benefit of the lease depends on this.
    Orderly,
    /// Not while a relay knows of the lease: each owner renews it in time.
    Renewed,
}

impl Bounds {
    /// Two relays and two records, with all faults of one server and its clients.
    pub fn small() -> Self {
        Self {
            relays: 2,
            records: 2,
            overlapping: false,
            max_attempts: 2,
            block: false,
            cap: MAX_RECORDS,
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

    /// The limit of `attempt`: attempts beyond `max_attempts` are counted by peers with an old
    /// read, and have no limit.
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
    /// Guard 1: all reads of one scan see the same moment (`outbox::snapshot`).
    OneMoment,
    /// Guard 1: only what a majority has is read.
    MajorityRead,
    /// Guard 2: a record that may not go ends the run (`relay::plan`).
    EverythingPending,
    /// Guard 3: only the leased front is published (`relay::acquirer`).
    HeldFront,
    /// Guard 3: a record that a renewal found lost ends its lane (`relay::lease_renewal`, `lane`).
    LostEndsLane,
    /// Guard 4: a follower waits until the death is acknowledged (`relay::lane_worker::mark_dead`).
    DeathAwaited,
    /// Guard 4: a death that was not written ends the lane (`relay::lane_worker::mark_dead`).
    DeathMatched,
    /// Guard 4: what was settled before is read back from a majority (`outbox::settle`).
    MajorityReadBack,
    /// Keys that a dead record blocks are read in the same scan (`relay::scanner::blockers`).
    BlocksRead,
    /// Hazard 3: the lease filter names the status (`outbox::lease`).
    StatusInLease,
    /// Hazard 3: the lease filter names the expiry.
    ExpiryInLease,
    /// Hazard 4: a repeated lease has the same id.
    SameLeaseId,
    /// Settling filters on the lease id (`outbox::settle`).
    LeaseInSettle,
    /// No publish starts without budget (`relay::lease::may_start`).
    Budget,
    /// One unconfirmed message of a key (`relay::lane_worker`).
    PredecessorsConfirm,
    /// What was not confirmed is not done (`relay::publisher`).
    ConfirmForDone,
    /// A record that a crash left leased is leased again (`relay::plan`).
    ExpiredTaken,
    /// A death and a requeue clear the lease (`outbox::settle::no_lease`, `outbox::redrive`).
    LeaseCleared,
}
