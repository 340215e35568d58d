//! `postrider completions`.

use clap::{Args, CommandFactory};
use clap_complete::Shell;

use crate::cli::{Cli, Failure};

#[derive(Debug, Args)]
pub(super) struct Options {
    /// The shell
    shell: Shell,
}

pub(super) fn run(options: &Options) -> Result<(), Failure> {
    clap_complete::generate(
        options.shell,
        &mut Cli::command(),
        "postrider",
        &mut std::io::stdout(),
    );
    Ok(())
}
