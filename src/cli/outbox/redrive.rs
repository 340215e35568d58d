//! `postrider outbox requeue`, `discard` and `prune`: the commands that change records.

use std::time::Duration;

use anyhow::{Context, anyhow};
use clap::{Args, ValueEnum};
use serde_json::json;

use crate::cli::global::Failure;
use crate::cli::outbox::ids::parse_ids;
use crate::cli::output::{self, Format};
use crate::config::Resolved;
use crate::outbox::collections::Collections;
use crate::outbox::prune::{self, PruneStatus};
use crate::outbox::redrive::{Redrive, RedriveFilter, RedriveResult, RedriveStatus, Redriver};

#[derive(Debug, Args)]
pub(in crate::cli) struct Requeue {
    /// Delivered records too: their consumers see them again
    #[arg(long, conflicts_with = "all")]
    pub(super) redeliver: bool,
    #[command(flatten)]
    pub(super) chosen: Which,
}

#[derive(Debug, Args)]
pub(in crate::cli) struct Discard {
    /// With --all: of this status instead of the dead ones
    #[arg(long, value_enum, requires = "all", conflicts_with = "ids")]
    pub(super) status: Option<DiscardableStatus>,
    #[command(flatten)]
    pub(super) chosen: Which,
}

/// Which records: some by id, or all that match.
#[derive(Debug, Args)]
pub(in crate::cli) struct Which {
    /// Their ids: UUIDs, ObjectIds, integers or strings (uuid:, oid:, int:, str:, raw: force one)
    #[arg(value_name = "ID", required_unless_present = "all", conflicts_with = "all")]
    ids: Vec<String>,
    /// All dead records, or those of them that match
    #[arg(long)]
    all: bool,
    /// With --all: of this key
    #[arg(long, requires = "all", conflicts_with = "ids")]
    key: Option<String>,
    /// With --all: of this type
    #[arg(long = "type", requires = "all", conflicts_with = "ids")]
    kind: Option<String>,
    /// With --all: whose deadReason begins so, as "attempts exhausted"
    #[arg(long, requires = "all", conflicts_with = "ids")]
    reason: Option<String>,
    /// Say how many it would be, and change nothing
    #[arg(long)]
    dry_run: bool,
    /// Do it without being asked again: needed with --all
    #[arg(long)]
    yes: bool,
    /// Form of the output
    #[arg(long, value_enum, default_value = "table")]
    output: Format,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(in crate::cli) enum DiscardableStatus {
    /// Given up
    Dead,
    /// Not due yet
    Scheduled,
    /// Pending, and leased by no instance
    Pending,
}

#[derive(Debug, Args)]
pub(in crate::cli) struct Prune {
    /// How long they have been over, as "7d"; outbox.retention where it is not given
    #[arg(long, value_name = "AGE", value_parser = humantime::parse_duration)]
    older_than: Option<Duration>,
    /// Delivered records, or dead ones
    #[arg(long, value_enum, default_value = "done")]
    status: PrunableStatus,
    /// Form of the output
    #[arg(long, value_enum, default_value = "table")]
    output: Format,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(in crate::cli) enum PrunableStatus {
    /// Delivered
    Done,
    /// Given up
    Dead,
}

pub(super) async fn redrive(
    collections: Collections,
    redrive: Redrive,
    status: Option<DiscardableStatus>,
    which: &Which,
) -> Result<(), Failure> {
    let redriver = Redriver::new(collections);
    if which.all {
        all(&redriver, redrive, status, which).await
    } else {
        by_id(&redriver, redrive, which).await
    }
}

async fn all(
    redriver: &Redriver,
    redrive: Redrive,
    status: Option<DiscardableStatus>,
    which: &Which,
) -> Result<(), Failure> {
    let chosen = RedriveFilter {
        status: status.map(|status| match status {
            DiscardableStatus::Dead => RedriveStatus::Dead,
            DiscardableStatus::Scheduled => RedriveStatus::Scheduled,
            DiscardableStatus::Pending => RedriveStatus::Pending,
        }),
        key: which.key.clone(),
        kind: which.kind.clone(),
        reason: which.reason.clone(),
    };
    if which.dry_run {
        let matched =
            redriver.count_matching(&chosen).await.context("records cannot be counted")?;
        let redriven = RedriveResult { matched, ..RedriveResult::default() };
        return print(redrive, &redriven, which.output);
    }
    if !which.yes {
        let detail = "--all changes every record that matches: look with --dry-run, then add --yes";
        return Err(Failure::Usage(vec![detail.to_owned()]));
    }
    let redriven = redriver.redrive_matching(redrive, &chosen).await;
    let redriven = redriven.context(
        "not all records were changed; what was done stays done, and it is safe to say it again",
    )?;
    print(redrive, &redriven, which.output)?;
    match redriven.left() {
        Some(left) => Err(Failure::Failed(anyhow!(
            "not all of the {} records were changed: {left}",
            redriven.matched
        ))),
        None => Ok(()),
    }
}

async fn by_id(redriver: &Redriver, redrive: Redrive, which: &Which) -> Result<(), Failure> {
    // All ids are parsed before the first record is changed: wrong usage changes nothing.
    let ids = which.ids.iter().map(|text| Ok((text, parse_ids(text)?)));
    let ids: Vec<_> = ids.collect::<Result<_, Failure>>()?;
    let mut redriven = RedriveResult::default();
    let mut refused = 0;
    for (text, ids) in ids {
        let done = if which.dry_run {
            redriver.check(redrive, &ids).await
        } else {
            redriver.redrive(redrive, &ids).await
        };
        match done.with_context(|| format!("{text} cannot be changed"))? {
            Ok(()) => {
                redriven.matched += 1;
                redriven.changed += u64::from(!which.dry_run);
            }
            Err(refusal) => {
                refused += 1;
                eprintln!("error: {text}: {}", refusal.explain(redrive, "--redeliver"));
            }
        }
    }
    print(redrive, &redriven, which.output)?;
    if refused > 0 {
        let all = which.ids.len();
        return Err(Failure::Failed(anyhow!("{refused} of {all} records were left as they are")));
    }
    Ok(())
}

fn print(redrive: Redrive, redriven: &RedriveResult, format: Format) -> Result<(), Failure> {
    let done = match redrive {
        Redrive::Requeue | Redrive::Redeliver => "requeued",
        Redrive::Discard => "discarded",
    };
    output::figures(&json!({ "matched": redriven.matched, done: redriven.changed }), format)
}

pub(super) async fn prune(
    plan: &Resolved,
    collections: &Collections,
    args: &Prune,
) -> Result<(), Failure> {
    let over = match args.status {
        PrunableStatus::Done => PruneStatus::Done,
        PrunableStatus::Dead => PruneStatus::Dead,
    };
    let age = args.older_than.unwrap_or(plan.schema.retention);
    let pruned = prune::prune(collections, over, age).await;
    let pruned = pruned.context(
        "not all records were removed; what is gone stays gone, and it is safe to say it again",
    )?;
    if pruned.blocking > 0 {
        eprintln!(
            "warning: {} dead records as old hold their keys and stay: requeue or discard them",
            pruned.blocking
        );
    }
    let counts = match over {
        PruneStatus::Done => json!({ "pruned": pruned.removed }),
        PruneStatus::Dead => json!({ "pruned": pruned.removed, "blocking": pruned.blocking }),
    };
    output::figures(&counts, args.output)
}
