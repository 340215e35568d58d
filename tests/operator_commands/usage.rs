//! Usage: help, version, completions and invalid arguments.

use crate::support::command_line::file;
use crate::support::process::call;

#[fixture::test]
async fn help_names_the_purpose_of_every_command() {
    for (arguments, purpose) in [
        (vec![], "Transactional outbox relay for MongoDB"),
        (vec!["run"], "Relay until SIGTERM"),
        (vec!["check"], "say what to repair"),
        (vec!["schema"], "Collections and indexes"),
        (vec!["schema", "apply"], "Create what is missing"),
        (vec!["schema", "print"], "mongosh script"),
        (vec!["schema", "verify"], "a line per difference"),
        (vec!["outbox"], "The outbox's records"),
        (vec!["outbox", "stats"], "Count records by status"),
        (vec!["outbox", "list"], "List records"),
        (vec!["outbox", "show"], "why it waits"),
        (vec!["outbox", "requeue"], "pending again"),
        (vec!["outbox", "discard"], "that no instance has leased"),
        (vec!["outbox", "prune"], "older than an age"),
        (vec!["events"], "The end of event streams"),
        (vec!["events", "end"], "no further appends"),
        (vec!["events", "erase"], "empty its events"),
        (vec!["feed"], "one position for each event"),
        (vec!["feed", "status"], "who assigns positions"),
        (vec!["feed", "renew"], "after a restore"),
        (vec!["config"], "The configuration"),
        (vec!["config", "print"], "where each value came from"),
        (vec!["healthcheck"], "container's health check"),
        (vec!["completions"], "Completions for a shell"),
    ] {
        let help = call(&[arguments.as_slice(), &["--help"]].concat()).await.with_code(0);

        assert!(help.stdout.contains(purpose), "{arguments:?}: {help}");
    }
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
