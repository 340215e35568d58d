//! `postrider man`: the man pages, made from the help of the commands.

use std::path::PathBuf;

use anyhow::Context as _;
use clap::{Args, Command};
use clap_mangen::Man;

use crate::cli::global::Failure;
use crate::cli::output;

#[derive(Debug, Args)]
pub(super) struct Options {
    /// Folder for the pages of all commands; without it, the page of `postrider` is printed
    folder: Option<PathBuf>,
}

pub(super) fn run(options: &Options, command: Command) -> Result<(), Failure> {
    // The template groups the commands, which a man page lists anyway. Each page names the version.
    let command = command.help_template("{all-args}").propagate_version(true);
    match &options.folder {
        Some(folder) => {
            let made = std::fs::create_dir_all(folder);
            let written = made.and_then(|()| clap_mangen::generate_to(command, folder));
            let written = written.with_context(|| format!("cannot write to {}", folder.display()));
            Ok(written?)
        }
        None => {
            let mut page = Vec::new();
            Man::new(command).render(&mut page).context("cannot make the man page")?;
            output::text(&String::from_utf8_lossy(&page))
        }
    }
}
