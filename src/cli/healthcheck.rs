//! `postrider healthcheck`: a container's HEALTHCHECK without shell and curl.

use anyhow::anyhow;
use clap::Args;
use hyper::StatusCode;

use crate::cli::global::{Failure, GlobalArgs, block_on};
use crate::cli::output;
use crate::ops::client::{self, ask};
use crate::telemetry::printable;

/// Far above any report, which has a part for each sink and a few more.
const MAX_ANSWER_BYTES: usize = 64 * 1024;

#[derive(Debug, Args)]
pub(super) struct Options {
    /// Request /readyz instead of /livez: whether the instance can deliver, not only whether it is alive
    #[arg(long)]
    ready: bool,
}

pub(super) fn run(global: &GlobalArgs, options: &Options) -> Result<(), Failure> {
    // Not resolved: `run` reports other errors of the configuration.
    let address = reachable(&global.load()?.config.ops.listen)?;
    let page = if options.ready { "/readyz" } else { "/livez" };
    block_on(async {
        let asked = ask(&address, page, MAX_ANSWER_BYTES).await;
        let (status, body) = asked.map_err(anyhow::Error::from)?;
        let line = format!("http://{address}{page}: {} {body}", status.as_u16());
        match status {
            StatusCode::OK => output::text(&format!("{}\n", printable(&line))),
            _ => Err(Failure::Failed(anyhow!(line))),
        }
    })
}

/// The address by which `ops.listen` is reached from this host.
pub(super) fn reachable(listen: &str) -> Result<String, Failure> {
    client::reachable(listen)
        .map_err(|detail| Failure::Usage(vec![format!("ops.listen = {listen:?}: {detail}")]))
}
