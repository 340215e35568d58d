//! One state of the instances and partitions.

/// The most instances.
pub const MAX_INSTANCES: usize = 3;

/// The most partitions.
pub const MAX_PARTITIONS: usize = 3;

/// A set of partitions, as bits.
pub type Parts = u8;

/// The scope of one check.
#[derive(Clone, Debug)]
pub struct Bounds {
    pub instances: usize,
    pub partitions: usize,
    /// A receiver takes what a live owner does not give for too long.
    pub force: bool,
    /// Processes are suspended for longer than `stale_after`, and continue with what they knew.
    pub suspended: bool,
    /// Dead instances come back.
    pub revival: bool,
    /// Processes crash and stop cleanly. (One that never sends a heartbeat again is equally dead.)
    pub ends: bool,
    /// Each state is checked for whether everything can still be shared: expensive.
    pub asks_shared: bool,
    pub without: Option<Without>,
}

/// A guard that can be taken out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Without {
    /// A change of owner names the epoch that was read.
    Epoch,
    /// An instance without heartbeats counts its partitions as lost before its peers do.
    OwnDeadline,
    /// An owner ends the lanes of a partition before it gives it away.
    Revoking,
    /// Partitions of a dead instance are claimed.
    ClaimingFromTheDead,
}

impl Bounds {
    pub fn has(&self, guard: Without) -> bool {
        self.without != Some(guard)
    }
}

/// One state of all instances.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Fleet {
    /// `outbox_partition_assignments`. Epochs have no limit; what counts is whether the one that an
    /// instance has read is still that of the document (`View::outdated`).
    pub owners: [Option<usize>; MAX_PARTITIONS],
    pub instances: [Instance; MAX_INSTANCES],
}

/// An instance: its document, its process, and what it knows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Instance {
    pub process: Process,
    pub document: Document,
    /// By its own clock its last heartbeat is recent enough (3/4 of `stale_after`).
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

/// The result of one read of the whole state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct View {
    pub owners: [Option<usize>; MAX_PARTITIONS],
    pub documents: [Document; MAX_INSTANCES],
    /// Their epochs have increased since.
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

    /// Whether two instances take records of one partition.
    pub fn is_taken_twice(&self) -> bool {
        let takers =
            |partition| (0..MAX_INSTANCES).filter(move |at| self.takes(*at, partition)).count();
        (0..MAX_PARTITIONS).any(|partition| takers(partition) > 1)
    }
}
