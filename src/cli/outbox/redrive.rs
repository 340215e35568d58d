//! `postrider outbox requeue`, `discard` and `prune`: the commands that change records.

use std::time::Duration;

use anyhow::{Context, anyhow};
use clap::{ArgGroup, Args, ValueEnum};
use serde_json::json;

use crate::cli::global::Failure;
use crate::cli::outbox::ids::parse_ids;
use crate::cli::output::{self, FILTERS, Format, OutputArgs};
use crate::config::Resolved;
use crate::outbox::collections::Collections;
use crate::outbox::prune::{self, PruneStatus};
use crate::outbox::redrive::{Redrive, RedriveFilter, RedriveResult, RedriveStatus, Redriver};
use crate::telemetry::printable;

#[derive(Debug, Args)]
pub(in crate::cli) struct Requeue {
    /// Also redeliver delivered records: consumers receive them again
    #[arg(long, conflicts_with = "all")]
    pub(super) redeliver: bool,
    #[command(flatten)]
    pub(super) chosen: Which,
}

#[derive(Debug, Args)]
pub(in crate::cli) struct Discard {
    /// With --all: records with this status instead of dead records
    #[arg(long, value_enum, help_heading = FILTERS, requires = "all", conflicts_with = "ids")]
    pub(super) status: Option<DiscardableStatus>,
    #[command(flatten)]
    pub(super) chosen: Which,
}

/// Which records: some by id, or all that match.
#[derive(Debug, Args)]
#[command(group(ArgGroup::new("selection").args(["ids", "all"]).required(true)))]
pub(in crate::cli) struct Which {
    /// Record ids: UUIDs, ObjectIds, integers or strings (prefix uuid:, oid:, int:, str: or raw: forces a type)
    #[arg(value_name = "ID")]
    pub(super) ids: Vec<String>,
    /// All dead records that match the filters
    #[arg(long)]
    all: bool,
    /// With --all: only records with this key
    #[arg(long, help_heading = FILTERS, requires = "all", conflicts_with = "ids")]
    key: Option<String>,
    /// With --all: only records of this type
    #[arg(long = "type", value_name = "TYPE", help_heading = FILTERS, requires = "all", conflicts_with = "ids")]
    kind: Option<String>,
    /// With --all: only records whose deadReason starts with this text, for example "attempts exhausted"
    #[arg(long, value_name = "TEXT", help_heading = FILTERS, requires = "all", conflicts_with = "ids")]
    reason: Option<String>,
    /// Report how many records match, and change nothing
    #[arg(long)]
    dry_run: bool,
    /// Confirm the change (required with --all, and to discard records that are not dead)
    #[arg(long)]
    pub(super) yes: bool,
    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(in crate::cli) enum DiscardableStatus {
    // Dead records
    Dead,
    // Scheduled records that are not due yet
    Scheduled,
    // Pending records that no instance has leased
    Pending,
}

#[derive(Debug, Args)]
pub(in crate::cli) struct Prune {
    /// Minimum age since delivery or death, for example 7d [default: outbox.retention]
    #[arg(long, value_name = "AGE", value_parser = humantime::parse_duration)]
    older_than: Option<Duration>,
    /// Status of the records to remove
    #[arg(long, value_enum, default_value = "done")]
    status: PrunableStatus,
    /// Report how many records would be removed, and change nothing
    #[arg(long)]
    dry_run: bool,
    /// Confirm the removal (required)
    #[arg(long)]
    yes: bool,
    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(in crate::cli) enum PrunableStatus {
    // Delivered records
    Done,
    // Dead records
    Dead,
}

impl Prune {
    /// Refuses a removal that is not confirmed.
    pub(super) fn confirmed(&self) -> Result<(), Failure> {
        if self.yes || self.dry_run {
            return Ok(());
        }
        let detail = "prune: removes every record that matches; check the number with --dry-run, then add --yes";
        Err(Failure::Usage(vec![detail.to_owned()]))
    }
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
    } else if redrive == Redrive::Discard && !which.yes && !which.dry_run {
        by_id(&redriver, Redrive::DiscardDead, which).await
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
        let matched = redriver.count_matching(&chosen).await.context("cannot count the records")?;
        let redriven = RedriveResult { matched, ..RedriveResult::default() };
        return print(redrive, &redriven, which.output.output);
    }
    if !which.yes {
        let detail = "--all: changes every record that matches; check the number with --dry-run, then add --yes";
        return Err(Failure::Usage(vec![detail.to_owned()]));
    }
    let redriven = redriver.redrive_matching(redrive, &chosen).await;
    let redriven = redriven.context(
        "not all records were changed; changed records stay changed, and it is safe to repeat the command",
    )?;
    print(redrive, &redriven, which.output.output)?;
    match redriven.left() {
        Some(left) => Err(Failure::Failed(anyhow!(
            "not all of {} records were changed: {left}",
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
        match done.with_context(|| format!("cannot change {text}"))? {
            Ok(()) => {
                redriven.matched += 1;
                redriven.changed += u64::from(!which.dry_run);
            }
            Err(refusal) => {
                refused += 1;
                let option = match redrive {
                    Redrive::Discard | Redrive::DiscardDead => "--yes",
                    Redrive::Requeue | Redrive::Redeliver => "--redeliver",
                };
                let line = format!("{text}: {}", refusal.explain(redrive, option));
                eprintln!("error: {}", printable(&line));
            }
        }
    }
    print(redrive, &redriven, which.output.output)?;
    if refused > 0 {
        let all = which.ids.len();
        return Err(Failure::Failed(anyhow!("{refused} of {all} records were not changed")));
    }
    Ok(())
}

fn print(redrive: Redrive, redriven: &RedriveResult, format: Format) -> Result<(), Failure> {
    let done = match redrive {
        Redrive::Requeue | Redrive::Redeliver => "requeued",
        Redrive::Discard | Redrive::DiscardDead => "discarded",
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
    let pruned = if args.dry_run {
        prune::count(collections, over, age).await.context("cannot count the records")?
    } else {
        let pruned = prune::prune(collections, over, age).await;
        pruned.context("not all records were removed; it is safe to repeat the command")?
    };
    if pruned.blocking > 0 {
        eprintln!(
            "warning: {} dead records of that age block their keys and are not removed; requeue or discard them",
            pruned.blocking
        );
    }
    let (matched, removed) = (pruned.removed, if args.dry_run { 0 } else { pruned.removed });
    let counts = match over {
        PruneStatus::Done => json!({ "matched": matched, "pruned": removed }),
        PruneStatus::Dead => {
            json!({ "matched": matched, "pruned": removed, "blocking": pruned.blocking })
        }
    };
    output::figures(&counts, args.output.output)
}
