//! The rules, from settings as an operator writes them.

mod api;
mod sinks;

use super::*;
use crate::config::load::{ConfigLoadError, Inputs, load};

fn loaded(settings: &[&str]) -> LoadedConfig {
    load(&inputs(settings)).unwrap()
}

fn inputs(settings: &[&str]) -> Inputs {
    let set = settings.iter().map(|setting| (*setting).to_owned()).collect();
    Inputs { set, ..Inputs::default() }
}

/// Loads and resolves, with every problem of both.
fn resolved(settings: &[&str]) -> Result<Resolved, Vec<ConfigProblem>> {
    match load(&inputs(settings)) {
        Ok(loaded) => resolve(&loaded),
        Err(ConfigLoadError::Problems { mut problems, rest }) => {
            problems.extend(beyond(&problems, &rest));
            Err(problems)
        }
        Err(error) => panic!("{error}"),
    }
}

fn with(more: &[&str]) -> Result<Resolved, Vec<ConfigProblem>> {
    let least = ["mongo.uri=mongodb://h/db", "sinks.out.kind=stdout"];
    resolved(&[&least[..], more].concat())
}

#[test]
fn the_uri_comes_from_its_own_key_then_the_source_then_the_connection_string() {
    let string = "connection_strings.mongo=mongodb://third/db";
    let source = "mongo.sources.mongo.uri=mongodb://second/db";
    let uri = "mongo.uri=mongodb://first/db";
    for (settings, expected) in [
        (vec![string], "mongodb://third/db"),
        (vec![string, source], "mongodb://second/db"),
        (vec![string, source, uri], "mongodb://first/db"),
    ] {
        let settings = [&settings[..], &["sinks.out.kind=stdout"]].concat();

        let resolved = resolve(&loaded(&settings)).unwrap();

        assert_eq!(resolved.mongo.uri.expose(), expected);
        assert_eq!(resolved.database, "db");
    }
}

#[test]
fn without_a_uri_or_a_database_the_error_says_where_to_put_it() {
    let nothing = resolve(&loaded(&["sinks.out.kind=stdout", "mongo.source=other"])).unwrap_err();
    let no_database =
        resolve(&loaded(&["sinks.out.kind=stdout", "mongo.uri=mongodb://h:1/?w=1"])).unwrap_err();

    assert_eq!(nothing[0].key, "mongo.uri");
    assert!(nothing[0].detail.contains("mongodb://host:27017/database"), "{}", nothing[0]);
    assert_eq!(no_database[0].key, "mongo.database");
}

#[test]
fn an_invalid_uri_is_reported_without_its_password() {
    for uri in [
        "mongodb://u:hush/hush@h:1/db",
        "mongodb://u:hush?hush@h:1/db",
        "mongodb://:hush@h:1/db",
        "mongodb://:hush%&é@h:1/db",
        "hush:hush@h:1",
    ] {
        let set = format!("mongo.uri={uri}");
        let problems = resolve(&loaded(&["sinks.out.kind=stdout", &set])).unwrap_err();

        assert_eq!(problems[0].key, "mongo.uri");
        let shown = format!("{problems:?}").replace("hush:***", "");
        assert!(!shown.contains("hush"), "{uri}: {shown}");
    }
    let escape = with(&["mongo.uri=mongodb://u:p%é@h/db"]).unwrap_err();
    assert!(escape[0].detail.contains("must be escaped"), "{}", escape[0]);
    let option = with(&["mongo.uri=mongodb://u:p@h/db?tls=perhaps"]).unwrap_err();
    assert!(!option[0].detail.contains("must be escaped"), "{}", option[0]);
}

#[test]
fn mechanism_in_the_uri_goes_with_the_login_next_to_it() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let password = format!("mongo.password_file={}", file.path().display());
    let uri = |mechanism| format!("mongo.uri=mongodb://h/db?authMechanism={mechanism}");
    for mechanism in ["SCRAM-SHA-1", "SCRAM-SHA-256", "PLAIN"] {
        let judged = with(&[&uri(mechanism), "mongo.username=u@x", &password]);
        assert!(judged.is_ok(), "{mechanism}: {judged:?}");
    }
    assert!(with(&[&uri("MONGODB-X509"), "mongo.username=u"]).is_ok());

    let without = with(&[&uri("SCRAM-SHA-256")]).unwrap_err();
    let x509 = with(&[&uri("MONGODB-X509"), "mongo.username=u", &password]).unwrap_err();
    let twice = "mongo.uri=mongodb://a:hush@h/db?authMechanism=SCRAM-SHA-1";
    let twice = with(&[twice, "mongo.username=u"]).unwrap_err();

    assert!(without[0].detail.contains("No username provided"), "{without:?}");
    assert!(x509[0].detail.contains("A password cannot be specified"), "{x509:?}");
    assert_eq!(twice[0].key, "mongo.username", "{twice:?}");
    assert!(!format!("{twice:?}").contains("hush"), "{twice:?}");
}

#[test]
fn the_outboxs_own_database_beats_the_common_one_and_that_the_uris() {
    let common = with(&["mongo.database=common"]).unwrap();
    let own = with(&["mongo.database=common", "outbox.database=own"]).unwrap();

    assert_eq!(common.database, "common");
    assert_eq!(own.database, "own");
}

#[test]
fn each_broken_rule_names_its_key() {
    for (setting, key) in [
        ("relay.batch_size=0", "relay.batch_size"),
        ("relay.max_attempts=0", "relay.max_attempts"),
        ("relay.lease=10ms", "relay.lease"),
        ("relay.poll_interval=1ms", "relay.poll_interval"),
        ("relay.backoff.jitter=1.5", "relay.backoff.jitter"),
        ("relay.backoff.factor=0.5", "relay.backoff.factor"),
        ("relay.backoff.max=1ms", "relay.backoff.max"),
        ("relay.default_sink=nope", "relay.default_sink"),
        ("outbox.collection_prefix=a/b", "outbox.collection_prefix"),
        ("outbox.retention=100years", "outbox.retention"),
        ("partitions.static=5-300", "partitions.static"),
        ("partitions.heartbeat=25d", "partitions.heartbeat"),
        ("sinks.out.timeout=30s", "sinks.out.timeout"),
        ("sinks.out.uri=amqp://h", "sinks.out.uri"),
        ("sinks.out.key_window=0", "sinks.out.key_window"),
        ("relay.dead_letter={sink = \"nope\", destination = \"d\"}", "relay.dead_letter.sink"),
        ("routes=[{sink = \"nope\"}]", "routes.0.sink"),
        ("routes=[{destination = \"{nope}\"}]", "routes.0.destination"),
        ("ops.listen=9464", "ops.listen"),
        ("log.level=loud=very", "log.level"),
        ("mongo.database=a.b", "mongo.database"),
        ("mongo.database=admin", "mongo.database"),
        ("outbox.database=Config", "outbox.database"),
        ("events.database=local", "events.database"),
        ("outbox.collection_prefix=system.", "outbox.collection_prefix"),
        ("outbox.collection_prefix=..", "outbox.collection_prefix"),
        ("relay.max_attempts=4294967297", "relay.max_attempts"),
    ] {
        let problems = with(&[setting]).unwrap_err();

        let keys: Vec<&str> = problems.iter().map(|problem| problem.key.as_str()).collect();
        assert!(keys.contains(&key), "{setting}: {keys:?}");
    }
}

#[test]
fn database_of_mongodbs_own_is_refused_where_it_is_used() {
    let admin = "mongo.uri=mongodb://u:hush@h/admin";

    let named = with(&[admin]).unwrap_err();
    let source = with(&[admin, "mongo.database=app"]);
    let events = with(&[admin, "outbox.database=app", "api.enabled=true"]).unwrap_err();

    assert_eq!((named.len(), named[0].key.as_str()), (1, "mongo.uri"));
    assert!(named[0].detail.ends_with("or set mongo.database"), "{}", named[0]);
    assert!(source.is_ok(), "it may be the one to log in to");
    assert_eq!((events.len(), events[0].key.as_str()), (1, "mongo.uri"));
    assert!(with(&[admin, "outbox.database=app"]).is_ok(), "nothing uses it");
}

#[test]
fn uri_of_a_source_is_reported_by_its_own_key() {
    let source = "mongo.sources.\"a.b\".uri=http://h/db";
    let settings = ["sinks.out.kind=stdout", "mongo.source=a.b", source];

    let problems = resolve(&loaded(&settings)).unwrap_err();

    assert_eq!(problems[0].key, "mongo.sources.\"a.b\".uri");
    assert_eq!(problems[0].origin, crate::config::Origin::Set);
}

#[test]
fn all_problems_are_reported_at_once() {
    let problems =
        resolved(&["relay.batch_size=0", "relay.lease=1ms", "log.level=loud"]).unwrap_err();

    assert_eq!(problems.len(), 5, "{problems:?}");
}

#[test]
fn what_has_no_effect_is_said() {
    let warnings = with(&["relay.ordering=none", "relay.on_dead=block"]).unwrap().warnings;

    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert!(with(&[]).unwrap().warnings.is_empty());
}

#[test]
fn a_binding_that_looks_like_a_glob_and_is_none_is_said() {
    let warned = |key: &str, kind: &str| {
        let declare = format!(
            "sinks.r.declare={{exchanges=[{{name=\"e\",type=\"{kind}\"}}],queues=[{{name=\"q\"}}],\
             bindings=[{{exchange=\"e\",queue=\"q\",routing_key=\"{key}\"}}]}}"
        );
        let sink = ["sinks.r.kind=rabbitmq", "sinks.r.uri=amqp://h", "relay.default_sink=r"];
        with(&[&sink[..], &[declare.as_str()]].concat()).unwrap().warnings
    };

    for literal in ["Order*", "order.#more", "a.*b.c"] {
        let warnings = warned(literal, "topic");
        assert!(warnings.len() == 1 && warnings[0].contains(literal), "{warnings:?}");
    }
    for meant in ["#", "*", "order.*", "#.created", "OrderCreated", ""] {
        assert_eq!(warned(meant, "topic"), [""; 0], "{meant}");
    }
    assert_eq!(warned("Order*", "direct"), [""; 0], "where nothing is a pattern");
}

#[test]
fn globs_of_names_can_each_match_a_name() {
    let names = with(&["events.aggregates=[\"order\", \"x-*\", \"a?\"]"]).unwrap().context.names;
    assert_eq!(names.len(), 3);

    for (globs, detail) in [
        ("[]", "has no glob, so no name could be created; add globs, or \"*\" for all names"),
        ("[\"\"]", "its glob \"\" matches no name; remove it"),
        (
            "[\"order/*\"]",
            "its glob \"order/*\" has '/', which no name has; use letters, digits, _ . - and the \
             wildcards * and ?",
        ),
    ] {
        let problems = with(&[&format!("events.aggregates={globs}")]).unwrap_err();
        assert_eq!(problems.len(), 1, "{problems:?}");
        assert_eq!((&*problems[0].key, &*problems[0].detail), ("events.aggregates", detail));
    }
}
