//! An instance's document, as its peers and operators read it.

/// Name of its host.
pub const HOSTNAME: &str = "hostname";
/// `active` or `draining`.
pub const STATUS: &str = "status";
/// When it was first seen, by the server's clock.
pub const STARTED_AT: &str = "startedAt";
/// When it was last seen, by the server's clock.
pub const LAST_HEARTBEAT: &str = "lastHeartbeat";
/// Its version.
pub const VERSION: &str = "version";
/// What the order rests on in its configuration.
pub const FINGERPRINT: &str = "fingerprint";
/// `assigned`, `none`, or the text of `partitions.static`.
pub const PARTITIONS: &str = "partitions";
/// Whether it lacks partitions that others have, and waits for them.
pub const ASKS: &str = "asks";
/// Its name, which no other living instance has.
pub const NAME: &str = "name";
/// The id under which it leases; `leaseOwner` in a record.
pub const LEASE_OWNER: &str = "leaseOwner";
/// How often it has lost its partitions, and leases under another id since.
pub const LAPSES: &str = "lapses";
/// What its relay knows beyond MongoDB ([`report`](crate::report)).
pub const RELAY: &str = "relay";
