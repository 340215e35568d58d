//! `postrider check`: everything that `run` needs, found or not, and what to mend.
//!
//! It changes nothing: no collection is made, no exchange, no topic. Each part is given some
//! seconds, side by side, so that this ends soon though nobody answers.
//!
//! | module | what it finds |
//! |---|---|
//! | [`finding`] | one thing that was looked at |
//! | `mongodb` | whether MongoDB is reached, and all that is asked of it then |
//! | `version` | whether the server knows what the relay asks for |
//! | `replica_set` | whether enough members are up for a majority |
//! | `shard_key` | whether a key's records live on one shard |
//! | `members`, `clocks` | what time it is on each member |
//! | `schema` | whether it is there, or will be made |
//! | `privileges` | whether the user may do all that `run` does |
//! | `context` | whether a database of the append path is another context's |
//! | `sinks` | whether brokers are reached, and have the destinations that are named |

mod clocks;
mod context;
pub mod finding;
mod members;
mod mongodb;
mod privileges;
mod replica_set;
mod schema;
mod shard_key;
mod sinks;
mod version;

use std::time::Duration;

use futures_util::future::join;
use tokio_util::sync::CancellationToken;

pub use finding::Finding;

use crate::config::Resolved;
use crate::http::{ApiServer, StartError};
use crate::ops::OpsServer;
use crate::telemetry::chain;

/// What one question to a server may take: an answer that takes longer is as good as none for a
/// person who waits. Twice that is the longest for one part with all its questions.
const PATIENCE: Duration = Duration::from_secs(5);

/// Probes everything that this configuration needs at run time.
pub async fn probe(plan: &Resolved) -> Vec<Finding> {
    let (mut findings, sinks) = join(mongodb::probe(plan), sinks::probe(plan)).await;
    findings.extend(sinks);
    findings.push(match OpsServer::bind(&plan.ops_listen).await {
        Ok(server) => Finding::good("ops.listen", format!("{} is free", server.address())),
        Err(error) => Finding::bad(
            "ops.listen",
            chain(&error),
            "free the port (a running postrider holds it), or change ops.listen",
        ),
    });
    if let Some(api) = &plan.api {
        findings.push(match ApiServer::bind(api, CancellationToken::new()).await {
            Ok(server) => Finding::good("api.listen", format!("{} is free", server.address())),
            Err(error @ StartError::Bind(_)) => Finding::bad(
                "api.listen",
                chain(&error),
                "free the port (a running postrider holds it), change api.listen, or set \
                 api.enabled = false",
            ),
            Err(error @ StartError::Tls(_)) => Finding::bad(
                "api.tls",
                chain(&error),
                "put a certificate and its private key there, both in PEM",
            ),
        });
    }
    findings
}
