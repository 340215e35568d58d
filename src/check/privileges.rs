//! Whether the user may do all that `run` does.

use ::mongodb::Database;

use crate::check::Finding;
use crate::config::Resolved;
use crate::schema::access::{Access, access};
use crate::store::StoreError;

const NAME: &str = "privileges";

/// `making`: the actions by which `run` would make the schema.
pub(super) async fn probe(
    plan: &Resolved,
    admin: &Database,
    making: &[&'static str],
) -> Result<Finding, StoreError> {
    Ok(match access(admin, &plan.wanted(making)).await? {
        Access::Open => {
            Finding::good(NAME, "there is no access control: everybody may do everything")
        }
        Access::Enough(who) => Finding::good(NAME, format!("{who} may do all that is needed")),
        Access::Lacking(lacking) => Finding::bad(NAME, lacking.to_string(), lacking.remedy()),
    })
}
