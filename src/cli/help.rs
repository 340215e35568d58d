//! The first page of the help: the commands by purpose.

use std::fmt::Write as _;

use clap::Subcommand as _;
use clap::builder::Styles;

use crate::cli::Command;
use crate::cli::global::HEADING;

/// The commands by purpose; each is in one group.
const GROUPS: [(&str, &[&str]); 5] = [
    ("Run", &["run", "check", "healthcheck", "config"]),
    ("Outbox", &["outbox", "relay", "instances", "partitions", "adopt"]),
    ("Event store", &["append", "events", "feed", "subscriptions"]),
    ("Schema", &["schema"]),
    ("Shell", &["completions", "man"]),
];

/// The meaning of the exit codes.
pub(super) const EXIT_CODES: &str =
    "Exit codes: 0 success, 1 failure, 2 invalid arguments or configuration.";

/// The commands without `help`, as clap knows them.
fn commands() -> clap::Command {
    Command::augment_subcommands(clap::Command::new("postrider"))
}

/// Clap's default template, with the commands in groups.
pub(super) fn template() -> String {
    let style = Styles::styled();
    let heading = style.get_header();
    let name_style = style.get_literal();
    let commands = commands();
    let width = commands.get_subcommands().map(|one| one.get_name().len()).max().unwrap_or(0);
    let mut page = "{about-with-newline}\n{usage-heading} {usage}\n".to_owned();
    for (group, names) in GROUPS {
        // Writing to a String does not fail.
        let _ = write!(page, "\n{heading}{group}:{heading:#}\n");
        for name in names {
            let command = commands.find_subcommand(name);
            let about = command.and_then(clap::Command::get_about).cloned().unwrap_or_default();
            let _ = writeln!(page, "  {name_style}{name:<width$}{name_style:#}  {about}");
        }
    }
    let _ = write!(page, "\n{heading}{HEADING}:{heading:#}\n");
    page + "{options}{after-help}"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_command_is_in_one_group() {
        let mut grouped: Vec<&str> = GROUPS.iter().flat_map(|(_, names)| *names).copied().collect();
        let commands = commands();
        let mut all: Vec<&str> = commands.get_subcommands().map(clap::Command::get_name).collect();
        grouped.sort_unstable();
        all.sort_unstable();

        assert_eq!(grouped, all);
    }
}
