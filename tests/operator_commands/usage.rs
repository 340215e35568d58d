//! Usage: help, version, completions and invalid arguments.

use crate::support::command_line::file;
use crate::support::process::call;

#[fixture::test]
async fn help_names_the_purpose_of_every_command() {
    for (arguments, purpose) in [
        (vec![], "Transactional outbox relay for MongoDB"),
        (vec!["run"], "until SIGTERM"),
        (vec!["check"], "a remedy for each failure"),
        (vec!["schema"], "Create, print or verify collections and indexes"),
        (vec!["schema", "apply"], "Create missing collections"),
        (vec!["schema", "print"], "mongosh script"),
        (vec!["schema", "verify"], "one line for each difference"),
        (vec!["outbox"], "List, requeue, discard and prune"),
        (vec!["outbox", "stats"], "Count records by status"),
        (vec!["outbox", "list"], "List records"),
        (vec!["outbox", "show"], "why it waits"),
        (vec!["outbox", "requeue"], "pending again"),
        (vec!["outbox", "discard"], "that no instance has leased"),
        (vec!["outbox", "prune"], "older than an age"),
        (vec!["events"], "End or erase event streams"),
        (vec!["events", "end"], "refuse further appends"),
        (vec!["events", "erase"], "remove the content"),
        (vec!["feed"], "renew it after a restore"),
        (vec!["feed", "status"], "process that assigns positions"),
        (vec!["feed", "renew"], "after a restore"),
        (vec!["config"], "Print the configuration in force"),
        (vec!["config", "print"], "the origin of each value"),
        (vec!["healthcheck"], "container health checks"),
        (vec!["completions"], "completion script of a shell"),
        (vec!["man"], "man pages of all commands"),
    ] {
        let help = call(&[arguments.as_slice(), &["--help"]].concat()).await.with_code(0);

        assert!(help.stdout.contains(purpose), "{arguments:?}: {help}");
    }
}

#[fixture::test]
async fn help_groups_commands_and_has_global_options_and_examples() {
    let first = call(&["--help"]).await.with_code(0).stdout;
    let list = call(&["outbox", "list", "--help"]).await.with_code(0).stdout;

    for heading in ["Run:", "Outbox:", "Event store:", "Schema:", "Shell:", "Global options:"] {
        assert!(first.lines().any(|line| line == heading), "no {heading}: {first}");
    }
    for part in ["Filters:", "-n, --limit <COUNT>", "-o, --output <FORMAT>", "Examples:"] {
        assert!(list.contains(part), "no {part}: {list}");
    }
    let after_global = list.split_once("Global options:").unwrap().1;
    assert!(after_global.contains("-c, --config <FILE>") && after_global.contains("--set"));
}

#[fixture::test]
async fn short_options_are_the_long_ones() {
    let file = file("[mongo]\nuri = \"mongodb://h/app\"\n[sinks.out]\nkind = \"stdout\"\n");
    let path = file.path().to_str().unwrap();

    let checked = call(&["check", "--offline", "-c", path, "-o", "json"]).await.with_code(0);

    assert_eq!(checked.json()[0]["name"], "configuration");
    call(&["outbox", "list", "-n", "0"]).await.with_code(2);
}

#[fixture::test]
async fn requeue_without_records_names_both_choices() {
    let ended = call(&["outbox", "requeue"]).await.with_code(2);

    assert!(ended.stderr.contains("<ID|--all>"), "{ended}");
}

#[fixture::test]
async fn man_pages_are_printed_or_written() {
    let page = call(&["man"]).await.with_code(0).stdout;
    let folder = tempfile::tempdir().unwrap();
    call(&["man", folder.path().to_str().unwrap()]).await.with_code(0);

    assert!(page.contains(".TH postrider 1") && page.contains("GLOBAL OPTIONS"), "{page}");
    let list = std::fs::read_to_string(folder.path().join("postrider-outbox-list.1")).unwrap();
    assert!(list.contains(".TH postrider-outbox-list 1") && list.contains(".SH FILTERS"), "{list}");
}

#[fixture::test]
async fn version_is_printed() {
    let version = call(&["--version"]).await.with_code(0);

    assert_eq!(version.stdout, concat!("postrider ", env!("CARGO_PKG_VERSION"), "\n"));
}

#[fixture::test]
async fn wrong_usage_ends_with_2() {
    for arguments in [
        &[][..],
        &["no-such-command"],
        &["run", "--no-such-option"],
        &["outbox", "list", "--limit", "0"],
        &["check", "--output", "xml"],
    ] {
        call(arguments).await.with_code(2);
    }
}

#[fixture::test]
async fn completions_are_for_the_shell_that_was_named() {
    let bash = call(&["completions", "bash"]).await.with_code(0);

    assert!(bash.stdout.contains("complete -F _postrider"), "{bash}");
    let mut syntax = std::process::Command::new("bash");
    let script = file(&bash.stdout);
    syntax.arg("-n").arg(script.path());
    assert!(syntax.status().unwrap().success());
    let zsh = call(&["completions", "zsh"]).await.with_code(0);
    assert!(zsh.stdout.starts_with("#compdef postrider"), "{zsh}");
}

#[fixture::test]
async fn completions_need_no_reader_to_the_end() {
    let mut command = std::process::Command::new("bash");
    let script = format!(
        "set -o pipefail; {} completions bash | head -n 1",
        env!("CARGO_BIN_EXE_postrider")
    );
    command.arg("-c").arg(script);

    let output = command.output().unwrap();

    assert!(output.status.success(), "{output:?}");
}
