//! `postrider config`.

use clap::Subcommand;

use crate::cli::global::{Failure, GlobalArgs};
use crate::cli::output;
use crate::config::print::print;

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Print the configuration in force, with the origin of each value. Secrets are printed as ***
    #[command(
        after_help = "Example:\n  postrider config print -c postrider.toml --set relay.batch_size=100"
    )]
    Print,
}

pub(super) fn run(global: &GlobalArgs, command: &Command) -> Result<(), Failure> {
    match command {
        Command::Print => output::text(&print(&global.load()?)),
    }
}
