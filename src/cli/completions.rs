//! `postrider completions`.

use clap::{Args, Command};
use clap_complete::Shell;

use crate::cli::global::Failure;
use crate::cli::output;

#[derive(Debug, Args)]
pub(super) struct Options {
    /// Shell
    shell: Shell,
}

pub(super) fn run(options: &Options, command: &mut Command) -> Result<(), Failure> {
    // Not directly to standard output: the generator panics when the pipe is closed.
    let mut script = Vec::new();
    clap_complete::generate(options.shell, command, "postrider", &mut script);
    output::text(&String::from_utf8_lossy(&script))
}
