//! `postrider outbox stats` and `list`.

use anyhow::Context;
use clap::Args;
use serde_json::json;

use crate::cli::Failure;
use crate::cli::outbox::{find, readings};
use crate::cli::output::{self, Format};
use crate::ids::RecordId;
use crate::outbox::inspect::{Filter, Inspector};

#[derive(Debug, Args)]
pub(in crate::cli) struct Chosen {
    /// Of this status: pending, scheduled, done or dead
    #[arg(long)]
    status: Option<String>,
    /// Of this key
    #[arg(long)]
    key: Option<String>,
    /// Of this type
    #[arg(long = "type")]
    kind: Option<String>,
    /// Behind this id, to go on with a list
    #[arg(long, value_name = "ID")]
    after: Option<String>,
    /// How many at most
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    limit: u32,
}

pub(super) async fn stats(inspector: &Inspector, format: Format) -> Result<(), Failure> {
    let stats = inspector.stats().await.context("the outbox cannot be counted")?;
    let mismatches = inspector.mismatches().await.context("the outbox cannot be sampled")?;
    let mut figures = serde_json::to_value(stats).context("figures cannot be shown")?;
    figures["partitionsSampled"] = json!(mismatches.sampled);
    figures["partitionsMismatched"] = json!(mismatches.mismatched);
    if let Some(example) = &mismatches.example {
        eprintln!(
            "warning: {} of {} records have a partition that is not the hash of their key, as {example}: their \
             producer gives up order across instances; it should write murmur3 as documented, or no partition",
            mismatches.mismatched, mismatches.sampled,
        );
    }
    output::figures(&figures, format)
}

pub(super) async fn list(
    inspector: &Inspector,
    chosen: &Chosen,
    format: Format,
) -> Result<(), Failure> {
    let after = match &chosen.after {
        None => None,
        // Ids of different kinds sort apart: the one that there is, else the likeliest.
        Some(text) => Some(existing_or_likeliest(inspector, text).await?),
    };
    let filter = Filter {
        status: chosen.status.clone(),
        key: chosen.key.clone(),
        kind: chosen.kind.clone(),
        after,
    };
    let records =
        inspector.list(&filter, chosen.limit).await.context("records cannot be listed")?;
    let fields =
        ["_id", "status", "key", "type", "attempt", "visibleAt", "lastError", "deadReason"];
    output::documents(&records, &fields, format)
}

async fn existing_or_likeliest(inspector: &Inspector, text: &str) -> Result<RecordId, Failure> {
    let found = find(inspector, text).await?;
    // It may be gone since the list that ended with it.
    match found.and_then(|mut record| record.remove("_id")) {
        Some(id) => Ok(id.into()),
        None => Ok(readings(text)?.remove(0)),
    }
}
