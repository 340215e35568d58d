//! `postrider relay blocked-keys`: lists the blocked keys of the `run` of the same configuration.

use anyhow::{Context, anyhow};
use clap::Args;
use hyper::StatusCode;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::Value;

use crate::cli::global::{Failure, GlobalArgs, block_on};
use crate::cli::healthcheck::reachable;
use crate::cli::output::{self, Format, OutputArgs};
use crate::ops::client::ask;

/// Far above a thousand keys with their blockers.
const MAX_ANSWER_BYTES: usize = 32 << 20;

#[derive(Clone, Debug, Args)]
pub(super) struct Options {
    /// Show only this key
    #[arg(long)]
    key: Option<String>,
    /// Maximum number of keys, from 1 to 1000
    #[arg(short = 'n', long, value_name = "COUNT", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1000))]
    limit: u32,
    #[command(flatten)]
    output: OutputArgs,
}

pub(super) fn run(global: &GlobalArgs, options: &Options) -> Result<(), Failure> {
    let address = reachable(&global.load()?.config.ops.listen)?;
    let mut page = format!("/blocked-keys?limit={}", options.limit);
    if let Some(key) = &options.key {
        page.push_str(&format!("&key={}", utf8_percent_encode(key, NON_ALPHANUMERIC)));
    }
    block_on(async {
        let asked = ask(&address, &page, MAX_ANSWER_BYTES).await;
        let (status, body) = asked.map_err(anyhow::Error::from)?;
        if status != StatusCode::OK {
            let line = format!("http://{address}{page}: {} {body}", status.as_u16());
            return Err(Failure::Failed(anyhow!(line)));
        }
        let answer: Value = serde_json::from_str(&body).context("the response is not JSON")?;
        match options.output.output {
            Format::Json => output::json(&answer),
            Format::Table => table(&answer),
        }
    })
}

const COLUMNS: [&str; 7] = ["key", "reason", "blocker", "since", "until", "sink", "destination"];

fn table(answer: &Value) -> Result<(), Failure> {
    let keys = answer["keys"].as_array().map(Vec::as_slice).unwrap_or_default();
    let row = |key: &Value| {
        let cell = |column: &&str| key[*column].as_str().unwrap_or_default().to_owned();
        COLUMNS.iter().map(cell).collect()
    };
    let rows: Vec<Vec<String>> = keys.iter().map(row).collect();
    output::table(&COLUMNS, &rows)?;
    if answer["truncated"] == true {
        output::text(&format!("{}: raise --limit, or select one with --key\n", counted(answer)))?;
    }
    Ok(())
}

/// Describes how many keys are blocked.
fn counted(answer: &Value) -> String {
    let counts = answer["counts"].as_object().into_iter().flatten();
    let count: u64 = counts.filter_map(|(_, count)| count.as_u64()).sum();
    let or_more = if answer["countsAtLeast"] == true { "at least " } else { "" };
    format!("{or_more}{count} keys are blocked")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn count_says_at_least_if_not_all_keys_are_known() {
        let answer = |at_least: bool| json!({ "counts": { "blocked": 200_000, "leased": 7 }, "countsAtLeast": at_least });

        assert_eq!(counted(&answer(false)), "200007 keys are blocked");
        assert_eq!(counted(&answer(true)), "at least 200007 keys are blocked");
    }
}
