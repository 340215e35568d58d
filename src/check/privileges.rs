//! Checks that the user may do all that `run` does.

use ::mongodb::Database;

use crate::check::finding::Finding;
use crate::config::Resolved;
use crate::schema::access::{Access, Part, Wanted, access};
use crate::store::StoreError;

pub(super) const NAME: &str = "privileges";

pub(super) const APPEND: &str = "append privileges";

pub(super) const FEED: &str = "feed privileges";

/// Checks the privileges of the relay, with those that creating the schema needs.
pub(super) async fn probe(
    plan: &Resolved,
    admin: &Database,
    schema_actions: &[&'static str],
) -> Result<Finding, StoreError> {
    let part = Part::Relay {
        records: plan.relay.enabled,
        change_stream: plan.relay.change_stream,
        names: plan.relay.enabled,
        making: schema_actions,
    };
    ask(NAME, plan, admin, part).await
}

/// Checks the privileges of the append path, which a relay does not need.
pub(super) async fn probe_append(plan: &Resolved, admin: &Database) -> Result<Finding, StoreError> {
    ask(APPEND, plan, admin, Part::Append).await
}

/// Checks the privileges of the feed, which the append path does not need.
pub(super) async fn probe_feed(plan: &Resolved, admin: &Database) -> Result<Finding, StoreError> {
    ask(FEED, plan, admin, Part::Feed { change_stream: true }).await
}

async fn ask(
    name: &str,
    plan: &Resolved,
    admin: &Database,
    part: Part<'_>,
) -> Result<Finding, StoreError> {
    Ok(match access(admin, &Wanted::by(plan, part)).await? {
        Access::Open => {
            Finding::good(name, "access control is disabled: every client has all privileges")
        }
        Access::Enough(who) => Finding::good(name, format!("{who} has all required privileges")),
        Access::Lacking(lacking) => Finding::bad(name, lacking.to_string(), lacking.remedy()),
    })
}
