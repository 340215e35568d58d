//! `postrider check`: checks all that `run` needs.

use std::collections::BTreeMap;

use clap::Args;

use crate::check::{self, Finding};
use crate::cli::global::{Failure, GlobalArgs, block_on, warn};
use crate::cli::output::{self, Format, OutputArgs, padded};
use crate::config::resolve;
use crate::telemetry::printable;

#[derive(Debug, Args)]
pub(super) struct Options {
    /// Check only the configuration, and connect to no server
    #[arg(long)]
    offline: bool,
    #[command(flatten)]
    output: OutputArgs,
}

pub(super) fn run(global: &GlobalArgs, options: &Options) -> Result<(), Failure> {
    let loaded = global.load()?;
    let findings = match resolve(&loaded) {
        Err(problems) => {
            warn(&loaded.warnings);
            let problems = problems.into_iter();
            // The problem itself has the remedy.
            let found =
                problems.map(|problem| Finding::bad("configuration", problem.to_string(), ""));
            found.collect()
        }
        Ok(plan) => {
            let rules = std::iter::once("valid").map(str::to_owned);
            let lines: Vec<String> = rules.chain(plan.warnings.iter().cloned()).collect();
            let mut findings = vec![Finding::good("configuration", lines.join("; "))];
            if !options.offline {
                findings.extend(block_on(async { Ok(check::probe(&plan).await) })?);
            }
            findings
        }
    };
    // The servers are not checked with an invalid configuration.
    let is_valid = findings.iter().all(|finding| finding.ok || finding.name != "configuration");
    let unchecked = match (is_valid, options.offline) {
        (false, _) => "no server was checked, since the configuration is invalid",
        (true, true) => "no server was checked (--offline)",
        (true, false) => "",
    };
    print(&findings, unchecked, options.output.output)?;
    if findings.iter().all(|finding| finding.ok) {
        Ok(())
    } else if is_valid {
        Err(Failure::AlreadyReported)
    } else {
        Err(Failure::Usage(Vec::new()))
    }
}

fn print(findings: &[Finding], unchecked: &str, format: Format) -> Result<(), Failure> {
    match format {
        Format::Json => {
            let findings = serde_json::to_value(findings);
            output::json(&findings.map_err(|error| Failure::Failed(error.into()))?)
        }
        Format::Table => {
            let width = findings.iter().map(|finding| finding.name.chars().count()).max();
            let lines = findings.iter().map(|finding| lines(finding, width.unwrap_or(0)));
            let lines: String = lines.collect();
            output::text(&format!("{lines}\n{}\n", summary(findings, unchecked)))
        }
    }
}

/// A finding in one line and its remedy in another: details are too long for columns.
fn lines(finding: &Finding, width: usize) -> String {
    let state = match finding {
        Finding { skipped: true, .. } => "skipped",
        Finding { ok: true, .. } => "ok",
        _ => "FAILED",
    };
    let name = padded(&printable(&finding.name), width);
    let line = format!("{state:<7}  {name}  {}\n", printable(&finding.detail));
    if finding.remedy.is_empty() {
        line
    } else {
        format!("{line}{}  remedy: {}\n", padded("", width + 9), finding.remedy)
    }
}

/// The last line, such as `2 of 12 checks failed; 9 skipped, since MongoDB was not reached`.
fn summary(findings: &[Finding], unchecked: &str) -> String {
    let all = findings.len();
    let failed = findings.iter().filter(|finding| !finding.ok && !finding.skipped).count();
    let checks = if all == 1 { "check" } else { "checks" };
    let mut parts = vec![match failed {
        0 if all == 1 => "the check passed".to_owned(),
        0 => format!("all {all} checks passed"),
        _ => format!("{failed} of {all} {checks} failed"),
    }];
    let mut skipped: BTreeMap<&str, usize> = BTreeMap::new();
    for finding in findings.iter().filter(|finding| finding.skipped) {
        *skipped.entry(&finding.detail).or_default() += 1;
    }
    parts.extend(skipped.into_iter().map(|(why, count)| format!("{count} skipped, {why}")));
    parts.extend((!unchecked.is_empty()).then(|| unchecked.to_owned()));
    parts.join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn summary_counts_failed_and_skipped_checks() {
        let good = Finding::good("configuration", "valid");
        let bad = Finding::bad("mongodb", "no response", "start it");
        let skipped = Finding::skipped("schema", "since MongoDB was not reached");

        assert_eq!(summary(std::slice::from_ref(&good), ""), "the check passed");
        let words = summary(&[good, bad, skipped.clone(), skipped], "");
        assert_eq!(words, "1 of 4 checks failed; 2 skipped, since MongoDB was not reached");
    }
}
