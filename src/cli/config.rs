//! `postrider config`.

use clap::Subcommand;

use crate::cli::global::{Failure, GlobalArgs};
use crate::cli::output;
use crate::config::print::print;

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Print the whole configuration, with where each value came from; secrets as ***
    Print,
}

pub(super) fn run(global: &GlobalArgs, command: &Command) -> Result<(), Failure> {
    match command {
        Command::Print => output::text(&print(&global.load()?)),
    }
}
