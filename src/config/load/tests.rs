//! The layers, and what is reported of each.

use std::time::Duration;

use postrider_sinks::registry::KindConfig;

use super::*;

fn environment(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

fn file(text: &str) -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), text).unwrap();
    file
}

fn inputs(text: &str) -> (tempfile::NamedTempFile, Inputs) {
    let file = file(text);
    let inputs = Inputs { file: Some(file.path().to_owned()), ..Inputs::default() };
    (file, inputs)
}

#[test]
fn later_layers_win_and_each_value_knows_where_it_came_from() {
    let (file, mut inputs) = inputs(
        "[relay]\nbatch_size = 1\nmax_attempts = 1\nlease = \"1m\"\n[sinks.A]\nkind = \"stdout\"",
    );
    inputs.environment = environment(&[
        ("POSTRIDER__RELAY__BATCH_SIZE", "2"),
        ("POSTRIDER__RELAY__MAX_ATTEMPTS", "2"),
        ("POSTRIDER__SINKS__A__TIMEOUT", "3s"),
        ("POSTRIDER_CONFIG", "elsewhere"),
    ]);
    inputs.set = vec!["relay.batch_size=3".into()];

    let loaded = load(&inputs).unwrap();

    assert_eq!(loaded.config.relay.batch_size, 3);
    assert_eq!(loaded.config.relay.max_attempts, 2);
    assert_eq!(loaded.config.relay.lease, Duration::from_secs(60));
    assert_eq!(loaded.config.sinks["A"].delivery.timeout, Duration::from_secs(3));
    assert_eq!(loaded.origin(&["relay", "batch_size"]), Origin::Set);
    let variable = Origin::Environment("POSTRIDER__RELAY__MAX_ATTEMPTS".into());
    assert_eq!(loaded.origin(&["relay", "max_attempts"]), variable);
    let in_file = Origin::File(file.path().to_owned(), 4);
    assert_eq!(loaded.origin(&["relay", "lease"]), in_file);
    assert_eq!(loaded.origin(&["relay", "poll_interval"]), Origin::Default);
}

#[test]
fn a_section_may_be_given_as_one_table() {
    let table = "{ sink = \"a\", destination = \"d\" }";
    let inputs = Inputs {
        environment: environment(&[("POSTRIDER__RELAY__DEAD_LETTER", table)]),
        set: vec!["relay.backoff={ kind = \"fixed\" }".into()],
        ..Inputs::default()
    };

    let config = load(&inputs).unwrap().config;

    assert_eq!(config.relay.dead_letter.unwrap().destination.to_string(), "d");
    assert_eq!(config.relay.backoff.kind, postrider_relay::backoff::BackoffKind::Fixed);
}

#[test]
fn properties_come_from_every_layer_by_their_own_names() {
    let secret = file("hush\n");
    let (_file, mut inputs) = inputs(
        "[sinks.K]\nkind = \"kafka\"\n[sinks.K.properties]\nsasl.username = \"u\"\nlinger.ms = 1",
    );
    inputs.environment = environment(&[
        ("POSTRIDER__SINKS__K__PROPERTIES__SASL_PASSWORD_FILE", secret.path().to_str().unwrap()),
        ("POSTRIDER__SINKS__K__PROPERTIES__LINGER_MS", "2"),
    ]);
    inputs.set = vec!["sinks.K.properties={ \"ssl.ca.location\" = \"/ca\" }".into()];

    let loaded = load(&inputs).unwrap();

    let KindConfig::Kafka(kafka) = &loaded.config.sinks["K"].kind else { panic!() };
    let expected = [
        ("linger.ms", "2"),
        ("sasl.password", "hush"),
        ("sasl.username", "u"),
        ("ssl.ca.location", "/ca"),
    ];
    assert_eq!(kafka.properties, postrider_settings::properties::Properties::from(expected));
    let origin = loaded.origin(&["sinks", "K", "properties", "ssl.ca.location"]);
    assert_eq!(origin, Origin::Set);
}

#[test]
fn every_unknown_key_is_reported_with_the_nearest_known_one() {
    let (file, mut inputs) =
        inputs("[relay]\nbatchsize = 1\n[[routes]]\ntyp = \"x\"\n[sink.a]\nkind = \"stdout\"");
    inputs.environment = environment(&[("POSTRIDER__RELAY__LEASES", "1s")]);

    let error = load(&inputs).unwrap_err().to_string();

    let path = file.path().display();
    let mut lines: Vec<&str> = error.lines().collect();
    lines.sort_unstable();
    let mut expected = [
        format!("{path}:2: relay.batchsize: unknown key; did you mean relay.batch_size?"),
        format!("{path}:4: routes.0.typ: unknown key; did you mean routes.0.type?"),
        format!("{path}:6: sink.a.kind: unknown key; did you mean sinks.a.kind?"),
        "POSTRIDER__RELAY__LEASES: relay.leases: unknown key; did you mean relay.lease?".to_owned(),
    ];
    expected.sort_unstable();
    assert_eq!(lines, expected);
}

#[test]
fn a_renamed_key_is_refused_with_its_new_name() {
    let (file, mut inputs) = inputs("[relay]\nfollow = true\n[sinks.A]\nallow = [\"x\"]");
    inputs.environment = environment(&[
        ("POSTRIDER__RELAY__FOLLOW", "false"),
        ("POSTRIDER__SINKS__B__ALLOW", "[\"x\"]"),
    ]);
    inputs.set = vec!["relay.probe_max=1s".into(), "relay={follow=false}".into()];

    let error = load(&inputs).unwrap_err().to_string();

    let path = file.path().display();
    let mut lines: Vec<&str> = error.lines().collect();
    lines.sort_unstable();
    let now = "was renamed; set";
    let mut expected = [
        format!("{path}:2: relay.follow: {now} relay.change_stream"),
        format!("{path}:4: sinks.A.allow: {now} sinks.A.allowed_destinations"),
        format!("POSTRIDER__RELAY__FOLLOW: relay.follow: {now} relay.change_stream"),
        format!("POSTRIDER__SINKS__B__ALLOW: sinks.b.allow: {now} sinks.b.allowed_destinations"),
        format!("--set: relay.probe_max: {now} relay.sink_probe_interval_max"),
        format!("--set: relay.follow: {now} relay.change_stream"),
    ];
    expected.sort_unstable();
    assert_eq!(lines, expected);
}

#[test]
fn wrong_types_are_reported_at_once_with_place_and_value() {
    let (file, mut inputs) = inputs(
        "[relay]\nlease = 30\nenabled = \"yes\"\nbatchsize = 1\n[sinks.a]\nuri = \"x\"\n\
         [[routes]]\ntype = \"a\"\n[[routes]]\nsink = 5\n[mongo]\nuri = 12345\n",
    );
    inputs.environment = environment(&[("POSTRIDER__RELAY__MAX_ATTEMPTS", "1.5")]);

    let error = load(&inputs).unwrap_err().to_string();

    let path = file.path().display();
    let mut lines: Vec<&str> = error.lines().collect();
    lines.sort_unstable();
    let duration = "must be text with a unit, at most 100 years, for example \"30s\" or \"1m30s\"";
    let mut expected = [
        format!("{path}:4: relay.batchsize: unknown key; did you mean relay.batch_size?"),
        format!("{path}:2: relay.lease = 30: {duration}"),
        format!("{path}:3: relay.enabled = \"yes\": must be true or false"),
        format!("{path}:5: sinks.a.kind: is not set; set it to one of `rabbitmq`, `kafka`, `file`, `stdout`"),
        format!("{path}:10: routes.1.sink = 5: must be text"),
        format!("{path}:12: mongo.uri: must be text"),
        "POSTRIDER__RELAY__MAX_ATTEMPTS: relay.max_attempts = 1.5: must be an integer of 0 or above"
            .to_owned(),
    ];
    expected.sort_unstable();
    assert_eq!(lines, expected);
}

#[test]
fn a_variable_that_was_meant_as_a_setting_is_warned_of() {
    let names = ["POSTRIDER_RELAY_BATCH_SIZE", "POSTRIDER_SERVICES_DIR", "POSTRIDER_CONFIG"];
    let inputs =
        Inputs { environment: environment(&names.map(|name| (name, "3"))), ..Inputs::default() };

    let warnings = load(&inputs).unwrap().warnings;

    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert!(warnings[0].contains("did you mean POSTRIDER__RELAY__BATCH_SIZE?"), "{warnings:?}");
}

#[test]
fn a_yaml_file_is_recognised() {
    for text in [
        "mongo:\n  uri: mongodb://h/db\n",
        "---\nmongo: {uri: x}\n",
        "# comment\n\nrelay:\n  enabled: true\n",
    ] {
        let (_file, inputs) = inputs(text);
        let error = load(&inputs).unwrap_err().to_string();
        assert!(error.contains("looks like YAML; rename the file to .yaml"), "{text}: {error}");
    }
    for text in ["[relay]\nlease: 5\n", "relay.lease = \n", "= 5"] {
        let (_file, inputs) = inputs(text);
        let error = load(&inputs).unwrap_err().to_string();
        assert!(!error.contains("YAML"), "{text}: {error}");
    }
}

#[test]
fn a_secret_is_read_from_a_file_without_the_line_ends_behind_it() {
    for end in ["", "\n", "\r\n", "\n\n\n", "\r\n\r\n"] {
        let secret = file(&format!("mongodb://u:p@h/db{end}"));
        let name = secret.path().to_str().unwrap();
        let environment = environment(&[("POSTRIDER__MONGO__URI_FILE", name)]);

        let loaded = load(&Inputs { environment, ..Inputs::default() }).unwrap();

        assert_eq!(loaded.config.mongo.uri.unwrap().expose(), "mongodb://u:p@h/db", "{end:?}");
    }
    let secret = file("mongodb://u:p@h/db");
    let name = secret.path().to_str().unwrap();
    let both = [("POSTRIDER__MONGO__URI", "x"), ("POSTRIDER__MONGO__URI_FILE", name)];
    for both in [both, [both[1], both[0]]] {
        let two = Inputs { environment: environment(&both), ..Inputs::default() };
        assert!(load(&two).unwrap_err().to_string().contains("remove one of the two"));
    }
}

#[test]
fn text_for_text_keys_is_taken_as_it_is_and_other_text_is_toml() {
    let set = |setting: &str| Inputs { set: vec![setting.into()], ..Inputs::default() };

    let database = load(&set("mongo.database=12")).unwrap().config.mongo.database;
    let relayed = load(&set("relay.enabled=false")).unwrap().config.relay.enabled;
    let wrong = load(&set("relay.enabled=nope")).unwrap_err().to_string();

    assert_eq!(database.as_deref(), Some("12"));
    assert!(!relayed);
    assert!(wrong.starts_with("--set: relay.enabled: must be a TOML value"), "{wrong}");
}

#[test]
fn control_character_is_refused_where_it_was_written() {
    let (file, mut inputs) = inputs(
        "[mongo]\nuri = \"mongodb://u:hush@h/x\\r\"\n[sinks.k]\nkind = \"kafka\"\n\
         brokers = [\"a\", \"b\\n\"]\n[[sinks.k.declare.topics]]\nname = \"t\\u0000t\"\n\
         [sinks.k.properties]\n\"ssl.ca.pem\" = \"a\\nb\"\n",
    );
    inputs.environment = environment(&[("POSTRIDER__OUTBOX__DATABASE", "x\r\n")]);
    inputs.set = vec!["events.context=a\n".into(), "events.context=a".into()];

    let error = load(&inputs).unwrap_err().to_string();

    let path = file.path().display();
    let mut lines: Vec<&str> = error.lines().collect();
    lines.sort_unstable();
    let mut expected = [
        format!("{path}:2: mongo.uri: contains the control character '\\r' at its end; remove it"),
        format!(
            "{path}:5: sinks.k.brokers.1 = \"b\\n\": contains the control character '\\n' at its end; remove it"
        ),
        format!(
            "{path}:7: sinks.k.declare.topics.0.name = \"t\\u0000t\": contains the control character \
             '\\0' in it; remove it"
        ),
        "POSTRIDER__OUTBOX__DATABASE: outbox.database = \"x\\r\\n\": contains the control character \
         '\\r' at its end; remove it"
            .to_owned(),
    ];
    expected.sort_unstable();
    assert_eq!(lines, expected);
}

#[test]
fn wrong_words_of_a_value_say_what_is_right() {
    for (setting, words) in [
        ("relay.on_dead=true", "relay.on_dead = \"true\": must be `skip` or `block`"),
        ("relay.batch_size=99999999999999999999", "must be an integer of at most 64 bits"),
        (
            "relay.on_dead=mongodb://u:hush@h/db",
            "relay.on_dead = \"mongodb://u:***@h/db\": must be",
        ),
        ("relay.batch_size=3\nfoo=4", "must be a TOML value"),
        ("[relay]\nbatch_size=3", "must have the form section.key=value"),
        (
            "sinks.k={kind = \"kafka\", declare = {topics = [{name = \"t\", partitions = 4294967297}]}}",
            "must be an integer between 1 and 2147483647",
        ),
    ] {
        let inputs = Inputs { set: vec![setting.into()], ..Inputs::default() };

        let error = load(&inputs).unwrap_err().to_string();

        assert!(error.starts_with("--set: ") && error.contains(words), "{setting}: {error}");
        assert_eq!(error.lines().count(), 1, "{error}");
    }
    for (text, said) in [
        ("[relay]\non_dead = true", "relay.on_dead = true: must be `skip` or `block`"),
        ("[relay]\nbatch_size = 99999999999999999999", "must be an integer of at most 64 bits"),
        ("[relay]\nmax_attempts = {}", "relay.max_attempts: must be an integer of 0 or above"),
        ("[log]\nformat = 5", "log.format = 5: must be one of `auto`, `json`, `text`"),
    ] {
        let (_file, inputs) = inputs(text);
        let error = load(&inputs).unwrap_err().to_string();
        assert!(error.ends_with(said), "{error}");
    }
}

#[test]
fn place_of_a_quoted_name_is_its_own() {
    let (file, inputs) = inputs(
        "[sinks.a]\nkind = \"stdout\"\n[sinks.\"a.b\"]\nkind = \"stdout\"\ntimeout = \"1h\"\n\
         [mongo]\nuri = \"mongodb://h/db\"\n",
    );

    let problems = crate::config::resolve(&load(&inputs).unwrap()).unwrap_err();

    let line = format!("{}:5: sinks.\"a.b\".timeout = \"1h\": ", file.path().display());
    assert!(problems[0].to_string().starts_with(&line), "{problems:?}");
}

#[test]
fn rules_are_checked_next_to_unreadable_values() {
    let (_file, inputs) = inputs(
        "[mongo]\nuri = 5\n[relay]\nmax_attempts = 0\nlease = 30\ndefault_sink = \"other\"\n\
         batchsize = 3\n[log]\nlevel = \"loud\"\n[sinks.out]\nkind = \"stdout\"\ntimeout = \"1h\"\n",
    );
    let Err(ConfigLoadError::Problems { problems, rest }) = load(&inputs) else { panic!() };

    let broken = crate::config::resolve::beyond(&problems, &rest);

    // A timeout is compared with relay.lease, which is not known; nor is a URI missing.
    let keys: Vec<&str> = broken.iter().map(|problem| problem.key.as_str()).collect();
    assert_eq!(keys, ["relay.max_attempts", "relay.default_sink", "log.level"], "{broken:?}");
    let inputs = Inputs {
        set: vec!["sinks.out.kind=5".into(), "relay.default_sink=out".into()],
        ..Inputs::default()
    };
    let Err(ConfigLoadError::Problems { problems, rest }) = load(&inputs) else { panic!() };
    assert_eq!(crate::config::resolve::beyond(&problems, &rest), [], "it may well be that sink");
}

#[test]
fn a_wrong_value_is_reported_with_key_place_and_remedy() {
    for (text, key, part) in [
        ("[relay]\nlease = 30", "relay.lease", "text with a unit"),
        ("[relay]\nordering = \"keys\"", "relay.ordering", "`key`"),
        ("[relay]\nbatch_bytes = \"16\"", "relay.batch_bytes", "for example \"16MiB\""),
        ("[sinks.a]\nuri = \"x\"", "sinks.a", "kind"),
    ] {
        let (file, inputs) = inputs(text);

        let error = load(&inputs).unwrap_err().to_string();

        assert!(error.contains(&format!(": {key}")), "{error}");
        assert!(error.contains(part), "{error}");
        assert!(error.contains(file.path().to_str().unwrap()), "{error}");
    }
}

#[test]
fn an_invalid_file_is_reported_by_line_without_its_text() {
    let (_file, inputs) = inputs("[mongo]\nuri = \"mongodb://u:secret@h\n");

    let error = load(&inputs).unwrap_err().to_string();

    assert!(error.contains(":2:"), "{error}");
    assert!(!error.contains("secret"), "{error}");
}

#[test]
fn a_named_file_that_is_missing_is_an_error() {
    let inputs = Inputs { file: Some("/nowhere/postrider.toml".into()), ..Inputs::default() };

    assert!(load(&inputs).unwrap_err().to_string().contains("/nowhere/postrider.toml"));
}

#[test]
fn route_that_is_not_in_the_list_is_refused_where_it_was_written() {
    for (inputs, place) in [
        (
            Inputs {
                environment: environment(&[("POSTRIDER__ROUTES__A__TYPE", "0")]),
                ..Inputs::default()
            },
            "POSTRIDER__ROUTES__A__TYPE: routes.a.type: ",
        ),
        (
            Inputs { set: vec!["routes.a.type=x".into()], ..Inputs::default() },
            "--set: routes.a.type: ",
        ),
    ] {
        let error = load(&inputs).unwrap_err().to_string();

        assert!(error.starts_with(place) && error.contains("[[routes]] in the file"), "{error}");
    }
}

#[test]
fn empty_name_is_shown_in_quotes() {
    let inputs =
        Inputs { environment: environment(&[("POSTRIDER____", "1")]), ..Inputs::default() };

    let error = load(&inputs).unwrap_err().to_string();

    assert!(error.starts_with("POSTRIDER____: \"\".\"\": unknown key"), "{error}");
}

#[test]
fn section_without_keys_is_not_passed_over() {
    for (text, words) in [
        ("[relay.dead_letter]", "relay.dead_letter.sink: is not set"),
        ("[sinks.audit]", "sinks.audit.kind: is not set"),
        ("[reley]", "reley: unknown key"),
    ] {
        let (_file, inputs) = inputs(text);

        let error = load(&inputs).unwrap_err().to_string();

        assert!(error.contains(words), "{text}: {error}");
    }
    let (_file, inputs) = inputs("[relay]\n[sinks.a]\nkind = \"stdout\"");
    assert!(load(&inputs).is_ok());
}

#[test]
fn an_unset_variable_in_a_secret_property_shows_nothing_of_it() {
    let (_file, inputs) = inputs(
        "[sinks.k]\nkind = \"kafka\"\nbrokers = \"h\"\n[sinks.k.properties]\n\
         sasl.password = \"hush${NO_SUCH_VARIABLE}\"\n",
    );

    let error = load(&inputs).unwrap_err().to_string();

    assert!(error.contains("sasl.password") && error.contains("NO_SUCH_VARIABLE"), "{error}");
    assert!(!error.contains("hush"), "{error}");
}

#[test]
fn setting_without_a_known_key_is_not_quoted() {
    for setting in [
        "hush",
        "hush/x+y==",
        "hush==",
        "hush=",
        "mongo.uri:hush",
        "mongo.uri hush",
        "a hush=1",
        "=hush",
        "mongo.uri.hush",
        "relay.hush",
    ] {
        let inputs = Inputs { set: vec![setting.into()], ..Inputs::default() };

        let error = load(&inputs).unwrap_err().to_string();

        assert!(!error.contains("hush"), "{setting}: {error}");
        assert!(error.starts_with("--set: "), "{setting}: {error}");
        assert!(error.ends_with(": must have the form section.key=value"), "{setting}: {error}");
    }
    let inputs = Inputs { set: vec!["mongo.uri:hush".into()], ..Inputs::default() };
    assert!(load(&inputs).unwrap_err().to_string().contains("mongo.uri…"));
}

#[test]
fn secret_in_place_of_the_name_of_a_file_is_not_shown() {
    let variable = "POSTRIDER__MONGO__URI_FILE";
    for (file, is_shown) in [
        ("hush", false),
        ("hush/hush", false),
        ("mongodb://u:hush@h/db", false),
        ("/no/hush", true),
        ("./hush", true),
        ("../no/hush", true),
    ] {
        let environment = environment(&[(variable, file)]);
        let set = vec![
            "mongo.uri=mongodb://h/db".to_owned(),
            "sinks.out.kind=stdout".to_owned(),
            format!("mongo.password_file={file}"),
            format!("mongo.tls.ca_file={file}"),
            "mongo.username=u".to_owned(),
            "api.enabled=true".to_owned(),
            format!("api.tokens=[{{name = \"a\", token_file = \"{file}\"}}]"),
        ];

        let error = load(&Inputs { environment, ..Inputs::default() }).unwrap_err();
        let loaded = load(&Inputs { set, ..Inputs::default() }).unwrap();
        let problems = crate::config::resolve(&loaded).unwrap_err();

        assert_eq!(problems.len(), 3, "{problems:?}");
        let problems = problems.iter().map(ToString::to_string).chain([error.to_string()]);
        for problem in problems {
            assert_eq!(problem.contains("hush"), is_shown, "{file}: {problem}");
            assert!(problem.contains("cannot read the file"), "{file}: {problem}");
            let hint = "shown if it begins with / or ./";
            assert_eq!(!problem.contains(hint), is_shown, "{file}: {problem}");
        }
        let printed = crate::config::print::print(&loaded);
        assert_eq!(printed.contains("hush"), is_shown, "{file}: {printed}");
    }
}

#[test]
fn file_form_reads_the_file_of_a_name_of_the_operators_too() {
    let secret = file("mongodb://u:p@h/db\n");
    let name = "POSTRIDER__CONNECTION_STRINGS__X_FILE";
    let environment = environment(&[(name, secret.path().to_str().unwrap())]);

    let loaded = load(&Inputs { environment, ..Inputs::default() }).unwrap();

    let strings = &loaded.config.connection_strings;
    assert_eq!(strings.keys().collect::<Vec<_>>(), ["x"]);
    assert_eq!(strings["x"].expose(), "mongodb://u:p@h/db");
    assert_eq!(loaded.origin(&["connection_strings", "x"]), Origin::Environment(name.to_owned()));
}

#[test]
fn key_in_two_variables_is_refused_in_any_order() {
    for (whole, part, text, key) in [
        ("RELAY", "RELAY__LEASE", "{ lease = \"1m\" }", "relay.lease"),
        ("RELAY", "RELAY__BACKOFF", "{ backoff = { kind = \"fixed\" } }", "relay.backoff.kind"),
        ("SINKS", "SINKS__A__KIND", "{ A = { kind = \"stdout\" } }", "sinks.A.kind"),
    ] {
        let value = if part == "RELAY__BACKOFF" { "{ kind = \"fixed\" }" } else { "2m" };
        let pair = [
            (format!("POSTRIDER__{whole}"), text.to_owned()),
            (format!("POSTRIDER__{part}"), value.to_owned()),
        ];
        for environment in [pair.to_vec(), pair.iter().rev().cloned().collect()] {
            let error = load(&Inputs { environment, ..Inputs::default() }).unwrap_err();

            let line = format!(
                "POSTRIDER__{part}: {key}: is also set by POSTRIDER__{whole}; remove one of the two"
            );
            assert_eq!(error.to_string(), line);
        }
    }
    let together = environment(&[
        ("POSTRIDER__RELAY__BATCH_SIZE", "7"),
        ("POSTRIDER__RELAY", "{ lease = \"1m\" }"),
    ]);
    let config = load(&Inputs { environment: together, ..Inputs::default() }).unwrap().config;
    assert_eq!((config.relay.batch_size, config.relay.lease), (7, Duration::from_secs(60)));
}

#[test]
fn variable_for_two_names_that_differ_in_case_is_refused() {
    let (_file, mut inputs) =
        inputs("[sinks.Orders]\nkind = \"stdout\"\n[sinks.orders]\nkind = \"stdout\"\n");
    assert_eq!(load(&inputs).unwrap().config.sinks.len(), 2, "the file is clear");
    for name in ["POSTRIDER__SINKS__ORDERS__TIMEOUT", "POSTRIDER__SINKS__ORDERS__TIMEOUT_FILE"] {
        inputs.environment = environment(&[(name, "3s")]);

        let error = load(&inputs).unwrap_err().to_string();

        let detail = "may be \"Orders\" or \"orders\", since variables ignore case; rename one of the two, \
                      or set the key in the file or by --set";
        assert_eq!(error, format!("{name}: sinks.orders: {detail}"));
    }
}

/// As in JSON Schema, so that an editor and the loader agree.
#[test]
fn integer_may_be_written_with_a_fraction_of_zero() {
    let (_file, inputs) = inputs(
        "[relay]\nbatch_size = 100.0\nmax_attempts = 1e2\n[relay.backoff]\nfactor = 3\n[sinks.k]\n\
         kind = \"kafka\"\nkey_window = 5.0\ndeclare.topics = [{ name = \"t\", partitions = 4.0 }]\n",
    );

    let config = load(&inputs).unwrap().config;

    assert_eq!((config.relay.batch_size, config.relay.max_attempts), (100, 100));
    assert_eq!(config.relay.backoff.factor, 3.0);
    assert_eq!(config.sinks["k"].delivery.key_window, 5);
    let KindConfig::Kafka(kafka) = &config.sinks["k"].kind else { panic!() };
    assert_eq!(kafka.declare.topics[0].partitions, Some(4));
    for (number, words) in
        [("1.5", "must be an integer"), ("1e300", "must be"), ("-1.0", "must be")]
    {
        let set = vec![format!("relay.batch_size={number}")];
        let loaded = load(&Inputs { set, ..Inputs::default() });
        let error = match loaded {
            Ok(loaded) => crate::config::resolve(&loaded).unwrap_err()[0].to_string(),
            Err(error) => error.to_string(),
        };
        assert!(
            error.starts_with("--set: relay.batch_size = ") && error.contains(words),
            "{error}"
        );
    }
}
