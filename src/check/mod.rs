//! `postrider check`: checks all that `run` needs, with remedies.
//!
//! It changes nothing: it creates no collection, exchange or topic. All parts are checked at once, each
//! within some seconds.
//!
//! | module | what it checks |
//! |---|---|
//! | [`finding`] | the result of one check |
//! | `mongodb` | whether MongoDB is reached, then the rest |
//! | `version` | whether the server has all features that the relay uses |
//! | `replica_set` | whether enough members are up for a majority |
//! | `shard_key` | whether a key's records are on one shard |
//! | `members`, `clocks` | whether the members' clocks agree |
//! | `schema` | whether the schema exists, or will be created |
//! | `privileges` | whether the user may do all that `run` does |
//! | `context` | whether a database of the event store belongs to another context |
//! | `feed` | what the feed needs, and its state |
//! | `descriptors` | whether the process may open as many files as it may need |
//! | `ports` | whether the ports of the servers are free |
//! | `sinks` | whether brokers are reached, and have the configured destinations |

mod clocks;
mod context;
mod descriptors;
mod feed;
pub mod finding;
mod members;
mod mongodb;
mod ports;
mod privileges;
mod replica_set;
mod schema;
mod shard_key;
mod sinks;
mod version;

use futures_util::future::join;

pub use finding::Finding;

use crate::config::Resolved;

/// Probes all that this configuration needs at run time.
pub async fn probe(plan: &Resolved) -> Vec<Finding> {
    let (mut findings, sinks) = join(mongodb::probe(plan), sinks::probe(plan)).await;
    findings.extend(sinks);
    findings.push(descriptors::probe(plan));
    findings.extend(ports::probe(plan).await);
    findings
}
