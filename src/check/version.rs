//! Whether the server knows what the relay asks for.

use ::mongodb::Database;
use bson::{Document, doc};

use crate::check::Finding;
use crate::store::StoreError;
use crate::store::connect::ask;

const NAME: &str = "mongodb version";

/// Reads with `readConcern: snapshot` outside a transaction came with it; whatever else the relay
/// sends (`hello`, pipelines in updates, `$$NOW`) is older.
const LEAST: (i64, i64) = (5, 0);

/// What the tests run against.
const TESTED: &str = "6.0";

/// Asks for the version. Anybody may.
pub(super) async fn probe(admin: &Database) -> Result<Finding, StoreError> {
    Ok(judge(&ask(admin, "ask for the version", doc! { "buildInfo": 1 }).await?))
}

fn judge(info: &Document) -> Finding {
    let version = info.get_str("version").unwrap_or("unknown");
    let mut numbers = version.split('.').map_while(|part| part.parse::<i64>().ok());
    let (Some(major), Some(minor)) = (numbers.next(), numbers.next()) else {
        return Finding::good(NAME, format!("{version}: not known to Postrider"));
    };
    if (major, minor) < LEAST {
        let detail = format!("{version} has no snapshot reads, on which order rests");
        let remedy = format!("upgrade MongoDB to 5.0 or newer; Postrider is tested with {TESTED}");
        return Finding::bad(NAME, detail, remedy);
    }
    Finding::good(NAME, format!("{version} (5.0 or newer is needed)"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn snapshot_reads_are_needed() {
        for (version, ok) in [
            ("4.4.29", false),
            ("3.6.1", false),
            ("5.0.0", true),
            ("6.0.5", true),
            ("10.1.0-rc0", true),
            ("custom", true),
        ] {
            assert_eq!(judge(&doc! { "version": version }).ok, ok, "{version}");
        }
    }
}
