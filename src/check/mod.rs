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
//! | `sinks` | whether brokers are reached, and have the configured destinations |

mod clocks;
mod context;
mod feed;
pub mod finding;
mod members;
mod mongodb;
mod privileges;
mod replica_set;
mod schema;
mod shard_key;
mod sinks;
mod version;

use futures_util::future::join;
use tokio_util::sync::CancellationToken;

pub use finding::Finding;

use crate::config::Resolved;
use crate::http::{ApiServer, StartError};
use crate::ops::OpsServer;
use crate::telemetry::chain;

/// Probes all that this configuration needs at run time.
pub async fn probe(plan: &Resolved) -> Vec<Finding> {
    let (mut findings, sinks) = join(mongodb::probe(plan), sinks::probe(plan)).await;
    findings.extend(sinks);
    findings.push(match OpsServer::bind(&plan.ops_listen).await {
        Ok(server) => Finding::good("ops.listen", format!("{} is free", server.address())),
        Err(error) => Finding::bad(
            "ops.listen",
            chain(&error),
            "stop the process that uses the port (is `postrider run` running?), or change ops.listen",
        ),
    });
    if let Some((api, tokens)) = &plan.api {
        findings.push(
            match ApiServer::bind(api, tokens.clone(), 1, CancellationToken::new()).await {
                Ok(server) => Finding::good("api.listen", format!("{} is free", server.address())),
                Err(error @ StartError::Bind(_)) => Finding::bad(
                    "api.listen",
                    chain(&error),
                    "stop the process that uses the port (is `postrider run` running?), change \
                     api.listen, or set api.enabled = false",
                ),
                Err(error @ StartError::Tls(_)) => Finding::bad(
                    "api.tls",
                    chain(&error),
                    "set api.tls.cert_file to a certificate and api.tls.key_file to its private key, both in PEM",
                ),
            },
        );
    }
    findings
}
