//! The command line as its users meet it: the real binary, its output and its exit codes.

#![allow(clippy::unwrap_used, reason = "a test ends by a panic")]

mod support;

use std::io::Write;

use bson::oid::ObjectId;
use bson::{Bson, DateTime, doc};
use postrider::outbox::collections::names;
use serde_json::{Value, json};
use support::outbox::{TestOutbox, record};
use support::process::{Ended, call, call_with, command, finish};
use support::queue::{mongo_settings, stdout_sink};
use support::schema::Bare;
use support::tcp::dead_port;
use tempfile::NamedTempFile;

/// A password as no other text holds it.
const PLANTED: &str = "pl4nted-s3cret";

fn file(text: &str) -> NamedTempFile {
    let mut file = NamedTempFile::with_suffix(".toml").unwrap();
    file.write_all(text.as_bytes()).unwrap();
    file
}

/// Whatever is needed to pass every rule, with servers that nobody asks.
fn valid() -> Vec<String> {
    [vec!["mongo.uri=mongodb://127.0.0.1:1/app".to_owned()], stdout_sink()].concat()
}

fn with(settings: Vec<String>, more: &[&str]) -> Vec<String> {
    settings.into_iter().chain(more.iter().map(|setting| (*setting).to_owned())).collect()
}

async fn with_environment(pairs: &[(&str, &str)], arguments: &[&str]) -> Ended {
    let mut command = command(arguments);
    command.envs(pairs.iter().copied());
    finish(command).await
}

#[track_caller]
fn says(ended: &Ended, parts: &[&str]) {
    for part in parts {
        assert!(ended.stderr.contains(part), "no {part:?} in {ended}");
    }
}

mod usage {
    use super::*;

    #[tokio::test]
    async fn help_tells_the_purpose_of_every_command() {
        for (arguments, purpose) in [
            (vec![], "Transactional outbox relay for MongoDB"),
            (vec!["run"], "Relay until SIGTERM"),
            (vec!["check"], "say what to mend"),
            (vec!["schema"], "Collections and indexes"),
            (vec!["schema", "apply"], "Create what is missing"),
            (vec!["schema", "print"], "mongosh script"),
            (vec!["schema", "verify"], "a line per difference"),
            (vec!["outbox"], "The outbox's records"),
            (vec!["outbox", "stats"], "Count records by status"),
            (vec!["outbox", "list"], "List records"),
            (vec!["outbox", "show"], "why it waits"),
            (vec!["outbox", "requeue"], "pending again"),
            (vec!["outbox", "discard"], "that nobody holds"),
            (vec!["outbox", "prune"], "older than an age"),
            (vec!["config"], "The configuration"),
            (vec!["config", "print"], "where each value came from"),
            (vec!["healthcheck"], "container's health check"),
            (vec!["completions"], "Completions for a shell"),
        ] {
            let help = call(&[arguments.as_slice(), &["--help"]].concat()).await.with_code(0);

            assert!(help.stdout.contains(purpose), "{arguments:?}: {help}");
        }
    }

    #[tokio::test]
    async fn the_version_is_told() {
        let told = call(&["--version"]).await.with_code(0);

        assert_eq!(told.stdout, concat!("postrider ", env!("CARGO_PKG_VERSION"), "\n"));
    }

    #[tokio::test]
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

    #[tokio::test]
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

    #[tokio::test]
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
}

mod configuration {
    use super::*;

    #[tokio::test]
    async fn every_unknown_key_is_told_at_once_with_the_nearest_right_one() {
        let file = file("[relay]\nbatchsize = 1\n[ops]\nlistn = \"x\"\n");
        let path = file.path().to_str().unwrap();

        let ended = call(&["run", "--config", path, "--set", "outbox.prefix=x"]).await;

        says(
            &ended.with_code(2),
            &[
                &format!(
                    "error: {path}:2: relay.batchsize: unknown key; did you mean relay.batch_size?"
                ),
                &format!("error: {path}:4: ops.listn: unknown key; did you mean ops.listen?"),
                "error: --set: outbox.prefix: unknown key; did you mean outbox.collection_prefix?",
            ],
        );
    }

    #[tokio::test]
    async fn an_unknown_name_in_the_environment_is_told_with_the_nearest_right_one() {
        let wrong = [("POSTRIDER__RELAY__LEASES", "1s"), ("POSTRIDER__MONGO__URL_FILE", "/x")];

        let ended = with_environment(&wrong, &["run"]).await;

        says(
            &ended.with_code(2),
            &[
                "error: POSTRIDER__RELAY__LEASES: relay.leases: unknown key; did you mean relay.lease?",
                "mongo.uri",
                "POSTRIDER__MONGO__URL_FILE",
            ],
        );
    }

    #[tokio::test]
    async fn a_wrong_value_is_told_with_its_key_its_origin_and_what_would_be_right() {
        for (setting, parts) in [
            ("relay.lease=30", ["relay.lease", "such as \"30s\"", "--set"]),
            ("relay.batch_size=many", ["relay.batch_size", "such as 5", "--set"]),
            ("relay.batch_size=\"5\"", ["relay.batch_size", "must be an integer", "--set"]),
            ("relay.ordering=type", ["relay.ordering", "`key`", "--set"]),
            ("relay.batch_bytes=16", ["relay.batch_bytes", "16MiB", "--set"]),
            ("relay.enabled=yes", ["relay.enabled", "true", "--set"]),
        ] {
            let ended = call_with(&with(valid(), &[setting]), &["run"]).await.with_code(2);

            says(&ended, &parts);
        }
    }

    #[tokio::test]
    async fn a_broken_rule_is_told_with_its_key_and_the_remedy() {
        for (setting, parts) in [
            ("relay.max_attempts=0", ["--set: relay.max_attempts = 0", "between 1 and 1000000"]),
            ("sinks.out.timeout=30s", ["sinks.out.timeout", "below relay.lease"]),
            ("relay.default_sink=other", ["relay.default_sink", "there is out"]),
            ("partitions.static=9-300", ["partitions.static", "0"]),
            ("outbox.collection_prefix=a b", ["outbox.collection_prefix", "letters"]),
            ("log.level=loud=very", ["log.level", "debug"]),
            ("log.level=warning", ["log.level = \"warning\"", "error, warn, info, debug, trace"]),
        ] {
            let ended = call_with(&with(valid(), &[setting]), &["run"]).await.with_code(2);

            says(&ended, &parts);
        }
    }

    #[tokio::test]
    async fn every_broken_rule_has_prefix_file_line_key_and_value() {
        let file = file(&format!(
            "[mongo]\nuri = \"mongodb://u:{PLANTED}@h:1/app\"\n[relay]\nmax_attempts = 0\nbatch_size = 0\n\
             [sinks.out]\nkind = \"stdout\"\ntimeout = \"1h\"\n[[routes]]\nsink = \"other\"\n"
        ));
        let path = file.path().to_str().unwrap();
        let environment = [("POSTRIDER__RELAY__POLL_INTERVAL", "1ms")];

        let ended = with_environment(&environment, &["check", "--offline", "--config", path]).await;
        let run = with_environment(&environment, &["run", "--config", path]).await.with_code(2);

        let mut lines: Vec<&str> = run.stderr.lines().collect();
        lines.sort_unstable();
        let mut expected = [
            format!("error: {path}:4: relay.max_attempts = 0: must be between 1 and 1000000"),
            format!("error: {path}:5: relay.batch_size = 0: must be between 1 and 10000"),
            format!("error: {path}:8: sinks.out.timeout = \"1h\": must be above 0 and below relay.lease: a publish that outlives its lease is repeated"),
            format!("error: {path}:10: routes.0.sink = \"other\": must be the name of a sink; there is out"),
            "error: POSTRIDER__RELAY__POLL_INTERVAL: relay.poll_interval = \"1ms\": must be at least 10ms".to_owned(),
        ];
        expected.sort_unstable();
        assert_eq!(lines, expected);
        // `check` reports the same, without a remedy that is the key again.
        let ended = ended.with_code(2);
        for line in &expected {
            let line = line.strip_prefix("error: ").unwrap();
            assert!(ended.stdout.contains(line), "no {line}: {ended}");
        }
        assert!(!ended.stdout.contains("to mend"), "{ended}");
    }

    #[tokio::test]
    async fn no_error_is_a_dump_of_the_driver() {
        let refused = "127.0.0.1:1/app?serverSelectionTimeoutMS=300";
        for (uri, code, said) in [
            (format!("mongodb://{refused}"), 1, "MongoDB at 127.0.0.1:1: connection refused"),
            (
                format!("mongodb://{refused}&tls=true"),
                1,
                "MongoDB at 127.0.0.1:1: connection refused",
            ),
            ("localhost:27017/app".to_owned(), 2, "connection string contains no scheme"),
            ("mongodb://h:x/app".to_owned(), 2, "mongo.uri"),
        ] {
            let settings =
                with(stdout_sink(), &[&format!("mongo.uri={uri}"), "mongo.database=app"]);

            let ended = call_with(&settings, &["outbox", "stats"]).await.with_code(code);

            says(&ended, &[said]);
            for dump in ["Kind:", "labels", "Topology", "server response", "None"] {
                assert!(!ended.stderr.contains(dump), "{dump}: {ended}");
            }
        }
    }

    #[tokio::test]
    async fn a_variable_with_single_underscores_is_warned_of() {
        let environment = [("POSTRIDER_RELAY_BATCH_SIZE", "3")];
        let mut arguments = vec!["check", "--offline"];
        let settings = valid();
        for setting in &settings {
            arguments.extend(["--set", setting.as_str()]);
        }

        let ended = with_environment(&environment, &arguments).await.with_code(0);

        let warning =
            "POSTRIDER_RELAY_BATCH_SIZE is not read; did you mean POSTRIDER__RELAY__BATCH_SIZE?";
        assert!(ended.stdout.contains(warning), "{ended}");
    }

    #[tokio::test]
    async fn a_variable_that_is_not_read_is_warned_of_before_the_error_that_it_causes() {
        let environment = [("POSTRIDER_MONGO_URI", "mongodb://h/db")];
        let broken = file("[mongo\n");
        let broken = broken.path().to_str().unwrap();
        for (arguments, error) in [
            (&["run", "--set", "sinks.out.kind=stdout"][..], "error: mongo.uri: is not set"),
            (&["outbox", "stats"], "error: mongo.uri: is not set"),
            (&["run", "--set", "relay.batchsize=1"], "error: --set: relay.batchsize: unknown key"),
            (&["run", "--config", broken], "error: "),
            (&["check", "--offline", "--set", "sinks.out.kind=stdout"], ""),
        ] {
            let ended = with_environment(&environment, arguments).await.with_code(2);

            let warning =
                "warning: POSTRIDER_MONGO_URI is not read; did you mean POSTRIDER__MONGO__URI?\n";
            let errors = ended.stderr.strip_prefix(warning).unwrap_or_else(|| panic!("{ended}"));
            assert!(errors.starts_with(error), "{ended}");
        }
    }

    #[tokio::test]
    async fn broken_rules_are_told_beside_what_cannot_be_read() {
        let settings = with(valid(), &["relay.lease=30", "relay.max_attempts=0", "relay.foo=1"]);

        let ended = call_with(&settings, &["run"]).await.with_code(2);

        says(
            &ended,
            &["relay.lease = \"30\"", "relay.foo", "relay.max_attempts = 0: must be between"],
        );
        assert_eq!(ended.stderr.lines().count(), 3, "one line each: {ended}");
    }

    #[tokio::test]
    async fn a_refused_login_is_one_sentence() {
        let settings = [format!("mongo.uri={}", support::roles::uri("nobody", PLANTED, "app"))];

        let ended = call_with(&settings, &["outbox", "stats"]).await.with_code(1);

        says(&ended, &["SCRAM failure: Authentication failed\n"]);
        assert!(ended.is_free_of(PLANTED), "{ended}");
        assert!(!ended.stderr.contains("Command failed"), "{ended}");
    }

    #[tokio::test]
    async fn all_broken_rules_are_told_at_once() {
        let ended = call(&["run", "--set", "relay.max_attempts=0"]).await.with_code(2);

        says(&ended, &["mongo.uri: is not set; set it", "relay.max_attempts", "sinks: there is"]);
        assert_eq!(ended.stderr.lines().count(), 3, "one line each: {ended}");
    }

    #[tokio::test]
    async fn a_database_that_nobody_named_is_told_with_both_remedies() {
        let settings = with(stdout_sink(), &["mongo.uri=mongodb://127.0.0.1:1/"]);

        let ended = call_with(&settings, &["run"]).await.with_code(2);

        says(&ended, &["mongo.database", "mongodb://host/database"]);
    }

    #[tokio::test]
    async fn a_named_file_that_is_missing_is_told_with_its_path() {
        let by_option = call(&["run", "--config", "/no/such/file.toml"]).await.with_code(2);
        let by_variable =
            with_environment(&[("POSTRIDER_CONFIG", "/no/such/file.toml")], &["config", "print"])
                .await
                .with_code(2);

        says(&by_option, &["/no/such/file.toml", "No such file"]);
        says(&by_variable, &["/no/such/file.toml", "No such file"]);
    }

    #[tokio::test]
    async fn a_file_that_is_no_toml_is_told_by_its_place_and_without_its_text() {
        let file = file(&format!("[mongo]\nuri = \"mongodb://u:{PLANTED}@h\n"));
        let path = file.path().to_str().unwrap();

        let ended = call(&["config", "print", "--config", path]).await.with_code(2);

        says(&ended, &[&format!("{path}:2:")]);
        assert!(ended.is_free_of(PLANTED), "{ended}");
    }

    #[tokio::test]
    async fn what_is_printed_parses_back_to_the_same_and_says_where_it_came_from() {
        let file = file(
            "[mongo]\nuri = \"mongodb://127.0.0.1:1/app\"\n[sinks.\"a b\"]\nkind = \"stdout\"\n\
             [[routes]]\ntype = \"Order*\"\nsink = \"a b\"\n",
        );
        let path = file.path().to_str().unwrap();
        let from_environment = [("POSTRIDER__RELAY__MAX_ATTEMPTS", "7")];
        let arguments = ["config", "print", "--config", path, "--set", "relay.batch_size=9"];

        let printed = with_environment(&from_environment, &arguments).await.with_code(0);

        let copy = self::file(&printed.stdout);
        let again = call(&["config", "print", "--config", copy.path().to_str().unwrap()]).await;
        let plain = |text: &str| text.parse::<toml::Table>().unwrap();
        assert_eq!(plain(&printed.stdout), plain(&again.with_code(0).stdout));
        for part in [
            "max_attempts = 7 # POSTRIDER__RELAY__MAX_ATTEMPTS",
            "batch_size = 9 # --set",
            &format!("kind = \"stdout\" # {path}:4"),
            "retention = \"7d\" # default",
            "lease = \"30s\" # default",
        ] {
            assert!(printed.stdout.contains(part), "{part}: {printed}");
        }
    }

    #[tokio::test]
    async fn the_file_that_shows_every_key_is_what_the_defaults_print() {
        let shown = concat!(env!("CARGO_MANIFEST_DIR"), "/config/postrider.toml");
        let ours = call(&["config", "print", "--config", shown]).await.with_code(0);
        let defaults = call(&["config", "print"]).await.with_code(0);

        let plain = |text: &str| text.parse::<toml::Table>().unwrap();
        let (mut ours, mut defaults) = (plain(&ours.stdout), plain(&defaults.stdout));
        // Names of the user's, which an example must choose.
        for name in ["sinks", "routes"] {
            ours.remove(name);
            defaults.remove(name);
        }
        assert_eq!(ours, defaults);
    }

    #[tokio::test]
    async fn no_secret_is_printed() {
        let secret = file(&format!("mongodb://u:{PLANTED}@127.0.0.1:1/app\n"));
        let environment = [("POSTRIDER__MONGO__URI_FILE", secret.path().to_str().unwrap())];
        let amqp = format!("sinks.r.uri=amqp://u:{PLANTED}@127.0.0.1:1/%2f");
        let token = format!("api.tokens=[\"{PLANTED}\"]");
        let settings = ["--set", "sinks.r.kind=rabbitmq", "--set", &amqp, "--set", &token];

        let printed =
            with_environment(&environment, &[&["config", "print"], &settings[..]].concat()).await;
        // A rule is broken, so that the rest is told as well.
        let broken = [&["run", "--set", "relay.max_attempts=0"], &settings[..]].concat();
        let told = with_environment(&environment, &broken).await.with_code(2);

        let printed = printed.with_code(0);
        assert!(printed.stdout.contains("mongodb://u:***@127.0.0.1:1/app"), "{printed}");
        assert!(printed.stdout.contains("amqp://u:***@127.0.0.1:1/%2f"), "{printed}");
        assert!(printed.is_free_of(PLANTED), "{printed}");
        assert!(told.is_free_of(PLANTED), "{told}");
    }

    #[tokio::test]
    async fn a_uri_that_is_none_is_told_without_its_password() {
        for setting in [
            format!("mongo.uri=mongodb://u:{PLANTED}@"),
            format!("mongo.uri=mongo://u:{PLANTED}@h/app"),
            format!("mongo.uri=mongodb://u:{PLANTED}@h:port/app"),
            format!("mongo.uri=mongodb://u:{PLANTED}/@h/app"),
            format!("mongo.uri=mongodb://u:{PLANTED}%@h/app"),
            format!("mongo.uri=mongodb://u:{PLANTED}@h/app?w=x&tls=maybe"),
            format!("sinks.r.uri=amqp://u:{PLANTED}@h:port/%2f"),
            format!("sinks.r.uri=http://u:{PLANTED}@h"),
            format!("sinks.r.uri={PLANTED}"),
        ] {
            let key = setting.split('=').next().unwrap();
            let settings = with(valid(), &["sinks.r.kind=rabbitmq", "sinks.r.uri=amqp://h"]);

            let ended = call_with(&with(settings, &[&setting]), &["run"]).await;

            assert_eq!(ended.code, Some(2), "{setting}: {ended}");
            says(&ended, &[key]);
            assert!(ended.is_free_of(PLANTED), "{setting}: {ended}");
        }
    }
}

mod schema {
    use super::*;

    fn settings(bare: &Bare) -> Vec<String> {
        [mongo_settings(&bare.name), stdout_sink()].concat()
    }

    #[tokio::test]
    async fn applying_makes_everything_once_and_then_finds_nothing_missing() {
        let bare = Bare::new("").await;

        let first = call_with(&settings(&bare), &["schema", "apply"]).await.with_code(0);
        let layout = bare.layout().await;
        let second = call_with(&settings(&bare), &["schema", "apply"]).await.with_code(0);

        assert_eq!(first.stdout.matches("created collection outbox_").count(), 4, "{first}");
        assert_eq!(first.stdout.matches("created index ").count(), 6, "{first}");
        assert_eq!(second.stdout, "nothing was missing\n");
        assert_eq!(bare.layout().await, layout);
        bare.drop().await;
    }

    #[tokio::test]
    async fn verifying_prints_a_line_per_difference_and_ends_with_1_until_there_is_none() {
        let bare = Bare::new("").await;

        let before = call_with(&settings(&bare), &["schema", "verify"]).await.with_code(1);
        call_with(&settings(&bare), &["schema", "apply"]).await.with_code(0);
        let after = call_with(&settings(&bare), &["schema", "verify"]).await.with_code(0);
        bare.run(doc! { "dropIndexes": "outbox_records", "index": "dedup_idx" }).await;
        let longer = with(settings(&bare), &["outbox.retention=8d"]);
        let changed = call_with(&longer, &["schema", "verify"]).await.with_code(1);

        // Four collections and six indexes.
        assert_eq!(before.stdout.lines().count(), 10, "{before}");
        assert_eq!(after.stdout, "");
        let lines: Vec<&str> = changed.stdout.lines().collect();
        assert_eq!(lines.len(), 2, "{changed}");
        for index in ["dedup_idx", "done_ttl_idx"] {
            assert!(lines.iter().any(|line| line.contains(index)), "{index}: {changed}");
        }
        bare.drop().await;
    }

    #[tokio::test]
    async fn a_conflicting_index_ends_an_apply_with_1_and_its_name() {
        let bare = Bare::new("").await;
        bare.create_index(doc! { "key": { "other": 1 }, "name": "dead_idx" }).await;

        let ended = call_with(&settings(&bare), &["schema", "apply"]).await.with_code(1);

        says(&ended, &["dead_idx", "outbox_records", "can't be created"]);
        bare.drop().await;
    }

    #[tokio::test]
    async fn the_script_that_is_printed_at_the_defaults_is_the_one_of_the_repository() {
        let printed = call(&["schema", "print"]).await.with_code(0);

        let ours = concat!(env!("CARGO_MANIFEST_DIR"), "/schema/mongodb-setup.js");
        assert_eq!(printed.stdout, std::fs::read_to_string(ours).unwrap());
    }

    #[tokio::test]
    async fn the_script_that_is_printed_makes_in_mongosh_what_apply_makes() {
        let (by_script, by_us) = (Bare::new("shop_").await, Bare::new("shop_").await);
        let more = ["outbox.collection_prefix=shop_", "outbox.retention=3d"];
        let printed = call_with(&with(settings(&by_us), &more), &["schema", "print"]).await;

        let script = self::file(&printed.with_code(0).stdout);
        let output = by_script.mongosh_file(script.path(), &[]).await;
        call_with(&with(settings(&by_us), &more), &["schema", "apply"]).await.with_code(0);

        assert!(output.status.success(), "{output:?}");
        assert_eq!(by_script.layout().await, by_us.layout().await);
        let verified = with(settings(&by_script), &more);
        call_with(&verified, &["schema", "verify"]).await.with_code(0);
        by_script.drop().await;
        by_us.drop().await;
    }
}

mod outbox {
    use super::*;

    fn settings(outbox: &TestOutbox) -> Vec<String> {
        [mongo_settings(&outbox.database), stdout_sink()].concat()
    }

    async fn ids(outbox: &TestOutbox, arguments: &[&str]) -> Vec<String> {
        let arguments = [&["outbox", "list", "--output", "json"], arguments].concat();
        let listed = call_with(&settings(outbox), &arguments).await.with_code(0).json();
        let listed = listed.as_array().expect("a list is an array");
        listed.iter().map(|record| record["id"].as_str().unwrap().to_owned()).collect()
    }

    #[tokio::test]
    async fn statistics_count_every_status() {
        let outbox = TestOutbox::new().await;
        let empty = call_with(&settings(&outbox), &["outbox", "stats", "--output", "json"]).await;
        let of = |id: &str, status: &str| {
            let mut record = record(id, "k");
            record.insert("status", status);
            record
        };
        outbox.insert(["a", "b", "c", "d", "e"].map(|id| of(id, "done"))).await;
        outbox.insert([of("f", "dead"), of("g", "dead"), of("h", "scheduled")]).await;
        outbox.insert([of("i", "Pending"), of("j", "pending"), of("k", "pending")]).await;

        let json = call_with(&settings(&outbox), &["outbox", "stats", "--output", "json"]).await;
        let table = call_with(&settings(&outbox), &["outbox", "stats"]).await.with_code(0);

        let nothing = json!({
            "pending": 0, "scheduled": 0, "done": 0, "dead": 0, "invalid": 0, "oldestPendingSeconds": null,
            "partitionsSampled": 0, "partitionsMismatched": 0,
        });
        assert_eq!(empty.with_code(0).json(), nothing);
        let counts = json.with_code(0).json();
        let age = counts["oldestPendingSeconds"].as_u64().expect("one is pending");
        assert!(age < 60, "{age}");
        for (name, count) in
            [("pending", 2), ("scheduled", 1), ("done", 5), ("dead", 2), ("invalid", 1)]
        {
            assert_eq!(counts[name], count, "{name}: {counts}");
        }
        let row = |name: &str| {
            let line = table.stdout.lines().find(|line| line.starts_with(name)).unwrap();
            line.split_whitespace().nth(1).unwrap().to_owned()
        };
        assert_eq!(
            (row("done"), row("dead"), row("invalid")),
            ("5".into(), "2".into(), "1".into())
        );
        outbox.drop().await;
    }

    #[tokio::test]
    async fn statistics_tell_of_a_producer_whose_partitions_are_no_hashes_of_its_keys() {
        let outbox = TestOutbox::new().await;
        let of = |n: i32, partition: i32, status: &str| {
            let mut wrong = record(&format!("{n}"), &format!("k{n}"));
            wrong.extend(
                doc! { "partition": partition, "status": status, "doneAt": DateTime::now() },
            );
            wrong
        };
        outbox.insert((0..256).map(|n| of(n, (n * 7) % 256, "pending"))).await;
        outbox.insert((256..300).map(|n| of(n, n % 256, "done"))).await;
        let mut keyless = of(300, 1, "pending");
        keyless.remove("key");
        outbox.insert([keyless, record("right", "right")]).await;

        let stats = call_with(&settings(&outbox), &["outbox", "stats", "--output", "json"]).await;

        let stats = stats.with_code(0);
        let wrong = stats.json()["partitionsMismatched"].as_u64().unwrap();
        assert!(wrong > 200, "{stats}");
        says(&stats, &["not the hash of their key", "order across instances"]);
        outbox.records().delete_many(doc! { "_id": { "$ne": "right" } }).await.unwrap();
        let stats = call_with(&settings(&outbox), &["outbox", "stats", "--output", "json"]).await;
        assert!(stats.stderr.is_empty() && stats.json()["partitionsMismatched"] == 0, "{stats}");
        outbox.drop().await;
    }

    #[tokio::test]
    async fn a_list_is_chosen_by_status_key_type_place_and_length() {
        let outbox = TestOutbox::new().await;
        for (id, key, kind, status) in [
            ("a", "k1", "T1", "pending"),
            ("b", "k1", "T2", "dead"),
            ("c", "k2", "T1", "dead"),
            ("d", "k2", "T2", "done"),
        ] {
            let mut record = record(id, key);
            record.extend(doc! { "type": kind, "status": status });
            outbox.insert([record]).await;
        }

        assert_eq!(ids(&outbox, &[]).await, ["a", "b", "c", "d"]);
        assert_eq!(ids(&outbox, &["--status", "dead"]).await, ["b", "c"]);
        assert_eq!(ids(&outbox, &["--key", "k1"]).await, ["a", "b"]);
        assert_eq!(ids(&outbox, &["--type", "T1"]).await, ["a", "c"]);
        assert_eq!(ids(&outbox, &["--type", "T2", "--status", "dead"]).await, ["b"]);
        assert_eq!(ids(&outbox, &["--limit", "2"]).await, ["a", "b"]);
        assert_eq!(ids(&outbox, &["--after", "b", "--limit", "1"]).await, ["c"]);
        assert_eq!(ids(&outbox, &["--after", "d"]).await, [""; 0]);
        assert_eq!(ids(&outbox, &["--status", "scheduled"]).await, [""; 0]);
        let table = call_with(&settings(&outbox), &["outbox", "list"]).await.with_code(0);
        assert_eq!(table.stdout.lines().count(), 5, "{table}");
        assert!(table.stdout.starts_with("id "), "{table}");
        outbox.drop().await;
    }

    #[tokio::test]
    async fn a_list_goes_on_behind_a_record_that_is_gone() {
        let outbox = TestOutbox::new().await;
        outbox.insert(["a", "b", "c"].map(|id| record(id, "k"))).await;
        outbox.records().delete_one(doc! { "_id": "b" }).await.unwrap();

        assert_eq!(ids(&outbox, &["--after", "str:b"]).await, ["c"]);
        outbox.drop().await;
    }

    #[tokio::test]
    async fn a_list_goes_on_behind_the_last_id_of_a_kind_with_those_of_the_next() {
        let outbox = TestOutbox::new().await;
        let (oid, uuid) = (ObjectId::new(), bson::Uuid::new());
        let all: [Bson; 5] = [7.into(), "a".into(), "b".into(), uuid.into(), oid.into()];
        for id in all {
            let mut record = record("", "k");
            record.insert("_id", id);
            outbox.insert([record]).await;
        }

        let mut pages: Vec<String> = Vec::new();
        while pages.len() < 6 {
            let mut arguments = vec!["outbox", "list", "--limit", "1", "--output", "json"];
            if let Some(last) = pages.last() {
                arguments.extend(["--after", last]);
            }
            let page = call_with(&settings(&outbox), &arguments).await.with_code(0).json();
            match page.get(0).map(|record| &record["id"]) {
                Some(Value::String(id)) => pages.push(id.clone()),
                Some(number) => pages.push(number.to_string()),
                None => break,
            }
        }

        let wanted = ["7".to_owned(), "a".into(), "b".into(), uuid.to_string(), oid.to_hex()];
        assert_eq!(pages, wanted);
        outbox.drop().await;
    }

    #[tokio::test]
    async fn a_record_is_shown_with_the_forms_of_the_contract() {
        let outbox = TestOutbox::new().await;
        let id = bson::Uuid::new();
        let mut record = record("", "k");
        record.extend(doc! {
            "_id": id,
            "createdAt": DateTime::from_millis(1_700_000_000_123),
            "payload": { "n": 1, "at": DateTime::from_millis(0), "of": ObjectId::from_bytes([1; 12]) },
        });
        outbox.insert([record]).await;

        let arguments = ["outbox", "show", &id.to_string(), "--output", "json"];
        let shown = call_with(&settings(&outbox), &arguments).await.with_code(0).json();
        let table = call_with(&settings(&outbox), &["outbox", "show", &id.to_string()]).await;
        let arguments = ["outbox", "list", "--output", "json"];
        let listed = call_with(&settings(&outbox), &arguments).await.with_code(0).json();

        assert_eq!(shown["id"], id.to_string());
        assert!(shown.get("_id").is_none(), "{shown}");
        assert_eq!(shown["createdAt"], "2023-11-14T22:13:20.123Z");
        let seq = outbox.record(id).await.get_timestamp("seq").unwrap();
        assert_eq!(shown["seq"], json!({ "t": seq.time, "i": seq.increment }));
        let payload =
            json!({ "n": 1, "at": "1970-01-01T00:00:00Z", "of": "010101010101010101010101" });
        assert_eq!(shown["payload"], payload);
        assert!(listed[0].get("payload").is_none(), "a list is without payloads: {listed}");
        let table = table.with_code(0);
        assert!(table.stdout.contains(&format!("id         {id}")), "{table}");
        assert!(table.stdout.contains("2023-11-14T22:13:20.123Z"), "{table}");
        outbox.drop().await;
    }

    #[tokio::test]
    async fn a_table_holds_wide_cells_and_no_control_characters() {
        let outbox = TestOutbox::new().await;
        let wide = "x".repeat(70_000);
        let mut wide_payload = record("payload", "k");
        wide_payload.insert("payload", format!("\u{1b}[2J\u{9b}\n{wide}"));
        let mut escapes = record("\u{1b}[31mid", "k\r\u{202e}");
        escapes.insert("type", "\u{7f}");
        outbox.insert([wide_payload, record("key", &wide), escapes]).await;

        let shown = call_with(&settings(&outbox), &["outbox", "show", "payload"]).await;
        let listed = call_with(&settings(&outbox), &["outbox", "list"]).await.with_code(0);
        let arguments = ["outbox", "list", "--output", "json"];
        let whole = call_with(&settings(&outbox), &arguments).await.with_code(0).json();

        let shown = shown.with_code(0).stdout;
        assert!(shown.contains(&format!("\\u{{1b}}[2J\\u{{9b}}\\n{wide}")), "{shown:.2000}");
        for page in [shown, listed.stdout.clone()] {
            let mut obeyed = page.chars().filter(|one| one.is_control() && *one != '\n');
            assert_eq!(obeyed.next(), None, "{page:.2000}");
        }
        assert!(listed.stdout.lines().all(|line| line.chars().count() < 400), "{listed}");
        assert!(listed.stdout.contains("xxx…  "), "{listed}");
        let keys = whole.as_array().unwrap().iter().map(|record| record["key"].as_str().unwrap());
        assert!(keys.into_iter().any(|key| key == wide), "JSON is whole");
        outbox.drop().await;
    }

    #[tokio::test]
    async fn an_id_is_tried_as_each_kind_and_a_prefix_forces_one() {
        let outbox = TestOutbox::new().await;
        let (uuid, oid) = (bson::Uuid::new(), ObjectId::new());
        let texts = [uuid.to_string(), oid.to_hex(), "42".to_owned()];
        let real: [Bson; 3] = [uuid.into(), oid.into(), Bson::Int32(42)];
        for (text, id) in texts.iter().zip(real) {
            for (id, kind) in [(id, "real"), (text.as_str().into(), "text")] {
                let mut record = record("", "k");
                record.extend(doc! { "_id": id, "type": kind });
                outbox.insert([record]).await;
            }
        }
        let kind_of = async |id: &str| {
            let arguments = ["outbox", "show", id, "--output", "json"];
            let shown = call_with(&settings(&outbox), &arguments).await.with_code(0).json();
            shown["type"].as_str().unwrap().to_owned()
        };

        for (text, prefix) in texts.iter().zip(["uuid", "oid", "int"]) {
            assert_eq!(kind_of(text).await, "real", "{text}");
            assert_eq!(kind_of(&format!("{prefix}:{text}")).await, "real", "{prefix}:{text}");
            assert_eq!(kind_of(&format!("str:{text}")).await, "text", "str:{text}");
        }
        outbox.drop().await;
    }

    #[tokio::test]
    async fn a_missing_id_ends_with_1_and_names_it() {
        let outbox = TestOutbox::new().await;

        for id in ["missing", "int:7", "uuid:00112233-4455-6677-8899-aabbccddeeff"] {
            let ended = call_with(&settings(&outbox), &["outbox", "show", id]).await.with_code(1);

            says(&ended, &[id]);
        }
        outbox.drop().await;
    }

    #[tokio::test]
    async fn what_a_prefix_forces_and_is_not_is_wrong_usage() {
        for id in ["uuid:nine", "oid:1", "int:x"] {
            let ended = call_with(&valid(), &["outbox", "show", id]).await.with_code(2);

            says(&ended, &[id]);
        }
    }

    #[tokio::test]
    async fn a_database_that_does_not_answer_ends_with_1() {
        let uri = format!(
            "mongo.uri=mongodb://u:{PLANTED}@127.0.0.1:{}/app?serverSelectionTimeoutMS=300",
            dead_port().await
        );

        for arguments in [&["outbox", "stats"][..], &["outbox", "list"], &["schema", "verify"]] {
            let ended = call_with(&with(stdout_sink(), &[&uri]), arguments).await.with_code(1);

            assert!(!ended.stderr.is_empty() && ended.is_free_of(PLANTED), "{ended}");
        }
    }

    #[tokio::test]
    async fn looking_needs_no_sink() {
        let outbox = TestOutbox::new().await;

        let settings = mongo_settings(&outbox.database);
        for arguments in [&["outbox", "stats"][..], &["schema", "verify"], &["schema", "apply"]] {
            call_with(&settings, arguments).await.with_code(0);
        }
        outbox.drop().await;
    }

    #[tokio::test]
    async fn a_prefix_stands_in_front_of_the_collections() {
        let bare = Bare::new("shop_").await;
        let settings = [mongo_settings(&bare.name), stdout_sink()].concat();
        let settings = with(settings, &["outbox.collection_prefix=shop_"]);
        call_with(&settings, &["schema", "apply"]).await.with_code(0);
        bare.records().insert_one(record("a", "k")).await.unwrap();

        let stats = call_with(&settings, &["outbox", "stats", "--output", "json"]).await;

        assert_eq!(bare.collections.name(names::RECORDS), "shop_outbox_records");
        assert_eq!(stats.with_code(0).json()["pending"], 1);
        bare.drop().await;
    }
}
