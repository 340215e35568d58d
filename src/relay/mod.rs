//! The relay: take → publish → settle, in the order of each key.
//!
//! **Publish a record only when you know that every earlier record of its key is done, dead
//! by skip, or confirmed to you.** With this prefix rule any number of zombies, stale
//! owners and expired leases cause duplicates, never an inversion. The prefix rule gives
//! order, the lease saves duplicates, the partition saves contention.
//!
//! | module | what it does |
//! |---|---|
//! | [`settings`], [`backoff`] | what an operator decides |
//! | [`wake`], `rush` | reasons to look before the timer says so, and when none is needed |
//! | `audit` | whether the change stream has brought everything |
//! | `live` | the change stream carries the records, and nothing is read |
//! | [`look`], `before` | snapshot read → [`plan`] |
//! | [`take`] | the plan's runs → lease → lanes |
//! | [`lane`] | one key's records, one unconfirmed at a time |
//! | `alone` | records that go alone, one after the other |
//! | [`delivery`] | one record: address, gate, publish, verdict |
//! | [`dead_letter`] | a copy of the dead for a broker |
//! | [`gate`] | a sink's gate: shut and probed while the broker is down |
//! | [`circuits`] | which destinations of a sink do not confirm |
//! | [`quarantine`] | a sink's isolated connection |
//! | `settler` | outcomes on their way back, in batches |
//! | [`renewal`] | leases kept alive under a slow publish |
//! | `recheck` | whether what blocks a key is still there, unchanged |
//! | `housekeeping` | scheduled records, odd partitions, the server's clock |
//! | [`report`] | what operators can ask of it |
//! | [`hands`], [`blocker`], [`losses`], `refusals`, `reported`, [`held`], [`shared`] | the books |

mod alone;
mod audit;
pub mod backoff;
mod before;
pub mod blocker;
pub mod circuits;
pub mod dead_letter;
pub mod delivery;
mod driver;
pub(crate) mod failing;
pub mod gate;
pub mod hands;
pub mod held;
mod housekeeping;
pub mod lane;
pub(crate) mod live;
pub mod look;
pub mod losses;
pub mod metrics;
pub mod plan;
pub mod quarantine;
mod recheck;
mod refusals;
pub mod renewal;
pub mod report;
mod reported;
mod rush;
pub mod settings;
mod settler;
pub mod shared;
pub mod take;
pub mod wake;

pub use driver::{Relay, RelayError, RelayParts};
