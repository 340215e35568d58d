//! One state of the fleet.

/// Instances at most.
pub const CROWD: usize = 3;

/// Partitions at most.
pub const PARTS: usize = 3;

/// Partitions by their number, as bits.
pub type Parts = u8;

/// What one check covers.
#[derive(Clone, Debug)]
pub struct Bounds {
    pub instances: usize,
    pub partitions: usize,
    /// A receiver takes what a live owner does not give for too long.
    pub force: bool,
    /// Processes are suspended for longer than `stale_after`, and believe what they knew.
    pub suspended: bool,
    /// Instances that were given up come back.
    pub revival: bool,
    /// Processes crash and stop in good order. (One that is not heard for ever is as dead.)
    pub ends: bool,
    /// Each state is asked whether everything can still be shared: dear.
    pub asks_shared: bool,
    pub without: Option<Without>,
}

/// A guard that can be taken out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Without {
    /// A change of owner names the epoch that was read.
    Epoch,
    /// Whoever is not heard counts its partitions as lost before its peers do.
    OwnDeadline,
    /// An owner ends the lanes of a partition before it gives it away.
    Revoking,
    /// What a dead instance owned is claimed.
    ClaimingFromTheDead,
}

impl Bounds {
    pub fn has(&self, guard: Without) -> bool {
        self.without != Some(guard)
    }
}

/// One state of the fleet.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Fleet {
    /// `outbox_partition_assignments`. Epochs have no end; what counts is whether the one that
    /// somebody has read is still that of the document (`View::outdated`).
    pub owners: [Option<usize>; PARTS],
    pub instances: [Instance; CROWD],
}

/// One instance: its document, its process, and what it knows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Instance {
    pub process: Process,
    pub document: Document,
    /// By its own reckoning it was heard lately enough (3/4 of `stale_after`).
    pub heard: bool,
    pub view: Option<View>,
    /// Partitions whose lanes it has ended, to give them away.
    pub revoked: Parts,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Process {
    #[default]
    Gone,
    Runs,
    Drains,
}

/// Its document in `outbox_instances`, as the server judges it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Document {
    #[default]
    Missing,
    /// `lastHeartbeat` is older than `stale_after`.
    Stale,
    Active,
    Draining,
}

/// What one read of the whole state has shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct View {
    pub owners: [Option<usize>; PARTS],
    pub documents: [Document; CROWD],
    /// Their epochs have risen since.
    pub outdated: Parts,
}

impl Document {
    pub fn lives(self) -> bool {
        matches!(self, Self::Active | Self::Draining)
    }
}

impl Fleet {
    /// Whether this instance takes records of this partition.
    pub fn takes(&self, at: usize, partition: usize) -> bool {
        let Instance { process, heard, view, revoked, .. } = &self.instances[at];
        let owns = view.is_some_and(|view| view.owners[partition] == Some(at));
        *process == Process::Runs && *heard && owns && revoked & 1 << partition == 0
    }

    /// Whether two take records of one partition.
    pub fn is_taken_twice(&self) -> bool {
        let takers = |partition| (0..CROWD).filter(move |at| self.takes(*at, partition)).count();
        (0..PARTS).any(|partition| takers(partition) > 1)
    }
}
