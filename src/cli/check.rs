//! `postrider check`: checks all that `run` needs.

use clap::Args;

use crate::check::{self, Finding};
use crate::cli::global::{Failure, GlobalArgs, block_on, warn};
use crate::cli::output::{self, Format, padded, printable};
use crate::config::resolve;

#[derive(Debug, Args)]
pub(super) struct Options {
    /// Judge the configuration alone: no server is asked
    #[arg(long)]
    offline: bool,
    /// Form of the output
    #[arg(long, value_enum, default_value = "table")]
    output: Format,
}

pub(super) fn run(global: &GlobalArgs, options: &Options) -> Result<(), Failure> {
    let loaded = global.load()?;
    let findings = match resolve(&loaded) {
        Err(problems) => {
            warn(&loaded.warnings);
            let problems = problems.into_iter();
            // The problem itself says what to do.
            let found =
                problems.map(|problem| Finding::bad("configuration", problem.to_string(), ""));
            found.collect()
        }
        Ok(plan) => {
            let rules = std::iter::once("every rule holds").map(str::to_owned);
            let lines: Vec<String> = rules.chain(plan.warnings.iter().cloned()).collect();
            let mut findings = vec![Finding::good("configuration", lines.join("; "))];
            if !options.offline {
                findings.extend(block_on(async { Ok(check::probe(&plan).await) })?);
            }
            findings
        }
    };
    print(&findings, options.output)?;
    if findings.iter().all(|finding| finding.ok) {
        Ok(())
    } else if findings[0].ok {
        Err(Failure::AlreadyReported)
    } else {
        // The configuration itself is invalid.
        Err(Failure::Usage(Vec::new()))
    }
}

fn print(findings: &[Finding], format: Format) -> Result<(), Failure> {
    match format {
        Format::Json => {
            let findings = serde_json::to_value(findings);
            output::json(&findings.map_err(|error| Failure::Failed(error.into()))?)
        }
        Format::Table => {
            let width = findings.iter().map(|finding| finding.name.chars().count()).max();
            let lines = findings.iter().map(|finding| lines(finding, width.unwrap_or(0)));
            output::text(&lines.collect::<String>())
        }
    }
}

/// A finding in one line and its remedy in another: details are too long for columns.
fn lines(finding: &Finding, width: usize) -> String {
    let ok = if finding.ok { "ok" } else { "NOT OK" };
    let name = padded(&printable(&finding.name), width);
    let line = format!("{ok:<6}  {name}  {}\n", printable(&finding.detail));
    if finding.remedy.is_empty() {
        line
    } else {
        format!("{line}{}  to mend: {}\n", padded("", width + 8), finding.remedy)
    }
}
