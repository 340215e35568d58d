//! How the configuration is read: files, environment and options; that all errors come at once, and no secret.

use crate::support::command_line::{PLANTED, file, says, valid, with, with_environment};
use crate::support::process::{call, call_with};

#[fixture::test]
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
        format!("error: {path}:8: sinks.out.timeout = \"1h\": must be below relay.lease, since a publish that outlives its lease is repeated"),
        format!("error: {path}:10: routes.0.sink = \"other\": unknown sink; the configured sinks are out"),
        "error: POSTRIDER__RELAY__POLL_INTERVAL: relay.poll_interval = \"1ms\": must be at least 10ms".to_owned(),
    ];
    expected.sort_unstable();
    assert_eq!(lines, expected);
    // `check` reports the same, without a remedy that repeats the key.
    let ended = ended.with_code(2);
    for line in &expected {
        let line = line.strip_prefix("error: ").unwrap();
        assert!(ended.stdout.contains(line), "no {line}: {ended}");
    }
    assert!(!ended.stdout.contains("remedy:"), "{ended}");
}

#[fixture::test]
async fn a_variable_with_single_underscores_has_a_warning() {
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

#[fixture::test]
async fn an_ignored_variable_has_a_warning_before_its_error() {
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

#[fixture::test]
async fn broken_rules_are_reported_with_unreadable_values() {
    let settings = with(valid(), &["relay.lease=30", "relay.max_attempts=0", "relay.foo=1"]);

    let ended = call_with(&settings, &["run"]).await.with_code(2);

    says(&ended, &["relay.lease = \"30\"", "relay.foo", "relay.max_attempts = 0: must be between"]);
    assert_eq!(ended.stderr.lines().count(), 3, "one line each: {ended}");
}

#[fixture::test]
async fn all_broken_rules_are_reported_at_once() {
    let ended = call(&["run", "--set", "relay.max_attempts=0"]).await.with_code(2);

    says(
        &ended,
        &["mongo.uri: is not set; set it", "relay.max_attempts", "sinks: no sink is configured"],
    );
    assert_eq!(ended.stderr.lines().count(), 3, "one line each: {ended}");
}

#[fixture::test]
async fn invalid_toml_is_reported_by_place_without_its_text() {
    let file = file(&format!("[mongo]\nuri = \"mongodb://u:{PLANTED}@h\n"));
    let path = file.path().to_str().unwrap();

    let ended = call(&["config", "print", "--config", path]).await.with_code(2);

    says(&ended, &[&format!("{path}:2:")]);
    assert!(ended.is_free_of(PLANTED), "{ended}");
}

#[fixture::test]
async fn printed_configuration_reads_back_and_has_origins() {
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

#[fixture::test]
async fn the_reference_file_is_the_printed_defaults() {
    let shown = concat!(env!("CARGO_MANIFEST_DIR"), "/config/postrider.toml");
    let ours = call(&["config", "print", "--config", shown]).await.with_code(0);
    let defaults = call(&["config", "print"]).await.with_code(0);

    let plain = |text: &str| text.parse::<toml::Table>().unwrap();
    let (mut ours, mut defaults) = (plain(&ours.stdout), plain(&defaults.stdout));
    // Names that a user chooses, as an example must.
    for name in ["sinks", "routes"] {
        ours.remove(name);
        defaults.remove(name);
    }
    assert_eq!(ours, defaults);
}

#[fixture::test]
async fn no_secret_is_printed() {
    let secret = file(&format!("mongodb://u:{PLANTED}@127.0.0.1:1/app\n"));
    let environment = [("POSTRIDER__MONGO__URI_FILE", secret.path().to_str().unwrap())];
    let amqp = format!("sinks.r.uri=amqp://u:{PLANTED}@127.0.0.1:1/%2f");
    let token = format!("api.tokens=[\"{PLANTED}\"]");
    let settings = ["--set", "sinks.r.kind=rabbitmq", "--set", &amqp, "--set", &token];

    let printed =
        with_environment(&environment, &[&["config", "print"], &settings[..]].concat()).await;
    // A rule is broken, so that all errors are reported.
    let broken = [&["run", "--set", "relay.max_attempts=0"], &settings[..]].concat();
    let ended = with_environment(&environment, &broken).await.with_code(2);

    let printed = printed.with_code(0);
    assert!(printed.stdout.contains("mongodb://u:***@127.0.0.1:1/app"), "{printed}");
    assert!(printed.stdout.contains("amqp://u:***@127.0.0.1:1/%2f"), "{printed}");
    assert!(printed.is_free_of(PLANTED), "{printed}");
    assert!(ended.is_free_of(PLANTED), "{ended}");
}

/// Secrets in places where an operator may put them by mistake.
#[fixture::test]
async fn no_secret_is_printed_wherever_it_is_written() {
    /// In the form of a generated one, which no name of a host or sink has.
    const GENERATED: &str = "pl4ntedXk29vLqTz7RmB4wYd8Nc";
    let kafka = "sinks.k.kind=kafka";
    let rabbit = "sinks.r.kind=rabbitmq";
    for (settings, is_refused) in [
        (vec![kafka, "sinks.k.brokers=u:SECRET@h:9092"], true),
        (vec![kafka, "sinks.k.brokers=[\"h:9092\", \"u%3ASECRET%40h\"]"], true),
        (vec![kafka, "sinks.k.brokers=u\u{ff1a}SECRET\u{ff20}h"], true),
        (vec![kafka, "sinks.k.brokers=SECRET:9092"], true),
        (
            vec!["routes=[{headers={Authorization=\"Bearer SECRET\",\"X-Api-Key\"=\"SECRET\"}}]"],
            false,
        ),
        (vec!["mongo.uri=mongodb://u%3ASECRET@127.0.0.1:1/app"], false),
        (vec!["mongo.uri=mongodb://u\u{ff1a}SECRET@127.0.0.1:1/app"], false),
        (vec!["mongo.uri=mongodb%3A//u:SECRET@h/app"], true),
        (vec!["mongo.uri=mongodb://SECRET/app"], true),
        (vec![rabbit, "sinks.r.uri=amqp://u%3aSECRET@127.0.0.1:1/v"], false),
        (vec![rabbit, "sinks.r.uri=amqp://u%3ASECRET%40h/v"], true),
        (vec![rabbit, "sinks.r.uri=amqp\u{ff1a}//u:SECRET@h/v"], true),
        (vec![rabbit, "sinks.r.uri=amqp://SECRET/v"], true),
        (vec!["mongo.database=amqp%3A//u:SECRET@h"], true),
        (vec!["events.context=u:SECRET@h"], false),
        (vec!["ops.listen=SECRET:9464"], true),
        (vec!["sinks.SECRET.kind=stdout"], true),
        (
            vec!["sinks.SECRET.kind=stdout", "sinks.SECRET.timeout=1h", "sinks.SECRET.nothing=1"],
            true,
        ),
        (vec!["sinks.\"u:SECRET@h\".kind=stdout", "relay.default_sink=other"], true),
    ] {
        let settings = settings.iter().map(|setting| setting.replace("SECRET", GENERATED));
        let base = with(valid(), &["relay.default_sink=out"]);
        let settings = [base, settings.collect()].concat();

        let printed = call_with(&settings, &["config", "print"]).await;
        let checked = call_with(&settings, &["check", "--offline"]).await;

        assert!(printed.is_free_of(GENERATED), "{settings:?}: {printed}");
        assert!(checked.is_free_of(GENERATED), "{settings:?}: {checked}");
        assert_eq!(checked.code, Some(if is_refused { 2 } else { 0 }), "{settings:?}: {checked}");
    }
}

#[fixture::test]
async fn an_invalid_uri_is_reported_without_its_password() {
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
