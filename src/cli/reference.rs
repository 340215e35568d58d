//! docs/cli.md, from the commands. `POSTRIDER_BLESS=1 cargo test --lib` writes it.

use std::fmt::Write as _;

use clap::{Arg, Command, CommandFactory};

use crate::blessed::compare;
use crate::cli::Cli;
use crate::cli::global::HEADING;

const INTRODUCTION: &str = "\
<!-- Generated from the program: `POSTRIDER_BLESS=1 cargo test --lib` writes it. -->
# Command line

`postrider --help`, and `--help` after a command, print the same texts. `postrider man` prints a man page.

Exit codes: 0 success, 1 failure, 2 invalid arguments or configuration. Results go to standard output; errors,
warnings and notes go to standard error.
";

#[test]
fn reference_of_the_command_line_follows_from_the_program() {
    let mut root = Cli::command();
    root.build();
    let mut page = INTRODUCTION.to_owned();
    let _ = writeln!(page, "\n## Global options\n\nEvery command has these options.\n");
    table(&mut page, root.get_arguments().filter(|one| is_global(one)));
    let mut leaves = Vec::new();
    collect(&root, "postrider", &mut leaves);
    page.push_str("\n## Commands\n\n| command | purpose |\n|---|---|\n");
    for (name, command) in &leaves {
        let about = command.get_about().cloned().unwrap_or_default();
        let _ = writeln!(
            page,
            "| [`{name}`](#{}) | {} |",
            name.replace(' ', "-"),
            cell(&about.to_string())
        );
    }
    for (name, command) in leaves {
        describe(&mut page, &name, &command);
    }
    compare("docs/cli.md", &page);
}

/// The commands that do something, in the order of the help.
fn collect(command: &Command, name: &str, leaves: &mut Vec<(String, Command)>) {
    for below in command.get_subcommands().filter(|below| below.get_name() != "help") {
        let name = format!("{name} {}", below.get_name());
        if below.has_subcommands() {
            collect(below, &name, leaves);
        } else {
            leaves.push((name, below.clone()));
        }
    }
}

fn is_global(argument: &Arg) -> bool {
    argument.get_help_heading() == Some(HEADING)
}

fn describe(page: &mut String, name: &str, command: &Command) {
    let about = command.get_about().cloned().unwrap_or_default();
    let usage = command.clone().render_usage().to_string();
    let usage = usage.trim_start_matches("Usage: ");
    let _ = write!(page, "\n### {name}\n\n{about}.\n\n```text\n{usage}\n```\n");
    let is_own =
        |one: &&Arg| !is_global(one) && !["help", "version"].contains(&one.get_id().as_str());
    let own: Vec<&Arg> = command.get_arguments().filter(is_own).collect();
    if !own.is_empty() {
        page.push('\n');
        table(page, own.into_iter());
    }
    if let Some(examples) = command.get_after_help() {
        let examples = examples.to_string();
        let lines = examples.lines().skip(1).map(str::trim);
        let _ = write!(page, "\n```sh\n{}\n```\n", lines.collect::<Vec<_>>().join("\n"));
    }
}

fn table<'a>(page: &mut String, arguments: impl Iterator<Item = &'a Arg>) {
    page.push_str("| argument | meaning |\n|---|---|\n");
    for argument in arguments {
        let _ = writeln!(page, "| {} | {} |", written(argument), meaning(argument));
    }
}

/// The argument as one writes it: `-n`, `--limit <COUNT>`.
fn written(argument: &Arg) -> String {
    let names = argument.get_value_names().unwrap_or_default();
    let takes_value = argument.get_action().takes_values();
    let value = if takes_value {
        names.iter().map(|name| format!("<{name}>")).collect::<Vec<_>>().join(" ")
    } else {
        String::new()
    };
    let Some(long) = argument.get_long() else { return format!("`{value}`") };
    let short = argument.get_short().map(|short| format!("`-{short}`, ")).unwrap_or_default();
    format!("{short}`{}`", format!("--{long} {value}").trim_end())
}

fn meaning(argument: &Arg) -> String {
    let mut text = argument.get_help().cloned().unwrap_or_default().to_string();
    let takes_value = argument.get_action().takes_values();
    let values: Vec<String> = argument
        .get_possible_values()
        .iter()
        .filter(|_| takes_value)
        .map(|value| format!("`{}`", value.get_name()))
        .collect();
    if !values.is_empty() {
        text = format!("{text}. Values: {}", values.join(", "));
    }
    if let (true, [default]) = (takes_value, argument.get_default_values()) {
        text = format!("{text}. Default: `{}`", default.to_string_lossy());
    }
    if let Some(variable) = argument.get_env() {
        text = format!("{text}. Environment: `{}`", variable.to_string_lossy());
    }
    cell(&text)
}

fn cell(text: &str) -> String {
    text.split_whitespace()
        .collect::<Vec<_>>()
        .join(" ")
        .replace('|', "\\|")
        .replace("***", "`***`")
}
