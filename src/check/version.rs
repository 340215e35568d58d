//! Checks that the server has all features that the relay uses.

use ::mongodb::Database;
use bson::{Document, doc};

use crate::check::finding::Finding;
use crate::store::StoreError;
use crate::store::connect::ask;

pub(super) const NAME: &str = "mongodb version";

/// The oldest version: it introduced `readConcern: snapshot` outside of transactions. All other features
/// (`hello`, pipelines in updates, `$$NOW`) are older.
const MIN_VERSION: (i64, i64) = (5, 0);

/// The version that the tests use.
const TESTED_VERSION: &str = "6.0";

/// Reads the version, which needs no privilege.
pub(super) async fn probe(admin: &Database) -> Result<Finding, StoreError> {
    Ok(report(&ask(admin, "read the version of MongoDB", doc! { "buildInfo": 1 }).await?))
}

fn report(info: &Document) -> Finding {
    let version = info.get_str("version").unwrap_or("unknown");
    let mut numbers = version.split('.').map_while(|part| part.parse::<i64>().ok());
    let (Some(major), Some(minor)) = (numbers.next(), numbers.next()) else {
        return Finding::good(NAME, format!("{version}, which Postrider does not know"));
    };
    if (major, minor) < MIN_VERSION {
        let detail = format!("{version} has no snapshot reads, which ordered delivery requires");
        let remedy =
            format!("upgrade MongoDB to 5.0 or newer; Postrider is tested with {TESTED_VERSION}");
        return Finding::bad(NAME, detail, remedy);
    }
    Finding::good(NAME, format!("{version} (5.0 or newer is required)"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_without_snapshot_reads_are_refused() {
        for (version, ok) in [
            ("4.4.29", false),
            ("3.6.1", false),
            ("5.0.0", true),
            ("6.0.5", true),
            ("10.1.0-rc0", true),
            ("custom", true),
        ] {
            assert_eq!(report(&doc! { "version": version }).ok, ok, "{version}");
        }
    }
}
