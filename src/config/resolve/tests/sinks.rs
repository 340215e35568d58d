//! The rules of sinks.

use postrider_sinks::registry::KindConfig;

use crate::config::load::{Inputs, load};
use crate::config::resolve::{ConfigProblem, Resolved, resolve};

fn with(settings: &[&str]) -> Result<Resolved, Vec<ConfigProblem>> {
    super::resolved(&[&["mongo.uri=mongodb://h/db"], settings].concat())
}

#[track_caller]
fn only_problem(settings: &[&str]) -> ConfigProblem {
    let problems = with(settings).unwrap_err();
    assert_eq!(problems.len(), 1, "{problems:?}");
    problems[0].clone()
}

#[test]
fn a_rabbitmq_sink_needs_a_uri_that_is_one() {
    let kind = "sinks.r.kind=rabbitmq";

    let without = only_problem(&[kind]);
    let wrong = only_problem(&[kind, "sinks.r.uri=http://u:secret@h"]);

    assert_eq!(without.key, "sinks.r.uri");
    assert_eq!(wrong.key, "sinks.r.uri");
    assert!(!format!("{wrong:?}").contains("secret"));
}

#[test]
fn a_kafka_sink_needs_brokers() {
    let without = only_problem(&["sinks.k.kind=kafka"]);
    assert_eq!(without.key, "sinks.k.brokers");
    assert!(without.detail.starts_with("is not set"), "{without}");
    for brokers in ["[]", "", "[\"\"]"] {
        let brokers = format!("sinks.k.brokers={brokers}");
        let empty = only_problem(&["sinks.k.kind=kafka", &brokers]);
        assert!(empty.detail.starts_with("is empty"), "{empty}");
    }
    for brokers in ["a:9092,b:9092", "\"a:9092,b:9092\"", "[\"a:9092\", \"b:9092\"]"] {
        let brokers = format!("sinks.k.brokers={brokers}");
        let resolved = with(&["sinks.k.kind=kafka", &brokers]).unwrap();
        let KindConfig::Kafka(kafka) = &resolved.sinks[&"k".into()].kind else { panic!() };
        assert_eq!(kafka.brokers.as_ref().unwrap().joined(), "a:9092,b:9092");
    }
}

#[test]
fn a_wrong_property_is_named_and_a_secret_one_not_shown() {
    let kafka = ["sinks.k.kind=kafka", "sinks.k.brokers=h"];
    for (property, key, words) in [
        ("\"no.such\"=1", "no.such", "No such configuration property"),
        ("\"linger.ms\"=soon", "linger.ms", "Invalid value"),
        ("acks=1", "acks", "must be all"),
        ("\"enable.idempotence\"=false", "enable.idempotence", "must be true"),
        ("\"metadata.broker.list\"=h", "metadata.broker.list", "sinks.<name>.brokers"),
        ("\"delivery.timeout.ms\"=5", "delivery.timeout.ms", "sinks.<name>.timeout"),
        ("\"transactional.id\"=a", "transactional.id", "remove it"),
    ] {
        let setting = format!("sinks.k.properties.{property}");

        let problem = only_problem(&[kafka[0], kafka[1], &setting]);

        assert!(problem.key.starts_with("sinks.k.properties"), "{problem}");
        assert!(problem.to_string().contains(key), "{problem}");
        assert!(problem.detail.contains(words), "{problem}");
    }
    let file = "sinks.k.properties.\"ssl.ca.location\"=/no/such/file";
    let tls = "sinks.k.properties.\"security.protocol\"=ssl";
    let problem = only_problem(&[kafka[0], kafka[1], tls, file]);
    assert!(problem.key.contains("ssl.ca.location"), "{problem}");
    for secret in ["\"ssl.key.pem\"=hush", "\"sasl.jaas.config\"=\"login password=hush;\""] {
        let secret = format!("sinks.k.properties.{secret}");
        let problem = only_problem(&[kafka[0], kafka[1], tls, &secret]);
        assert!(!format!("{problem:?}").contains("hush"), "{problem}");
    }
}

#[test]
fn property_that_breaks_a_promise_is_refused_by_any_of_its_names() {
    for (property, words) in [
        ("\"delivery.report.only.error\"=true", "no record is ever confirmed"),
        ("\"topic.blacklist\"=orders", "no record to such a topic"),
        ("\"topic.acks\"=1", "must be all"),
        ("\"topic.request.required.acks\"=1", "must be all"),
        ("\"topic.delivery.timeout.ms\"=5", "sinks.<name>.timeout"),
        ("\"message.send.max.retries\"=0", "at least 1"),
        ("\"max.in.flight.requests.per.connection\"=6", "at most 5"),
        ("\"topic.queuing.strategy\"=lifo", "must be fifo"),
        ("\"queue.buffering.backpressure.threshold\"=2", "must be 1"),
        ("\"topic.partitioner\"=random", "have no order"),
        ("partitioner= random", "starts with white space"),
        ("\"enable.gapless.guarantee\"=true", "must be false"),
        ("\"api.version.request\"=false", "must be true"),
        ("\"socket.max.fails\"=0", "must be 1"),
        ("\"log.connection.close\"=false", "must be true"),
        ("\"internal.termination.signal\"=15", "must be 0"),
        ("\"request.timeout.ms\"=9000", "below message.timeout.ms"),
        ("\"socket.timeout.ms\"=4500", "above request.timeout.ms"),
        ("\"queue.buffering.max.ms\"=9000", "below message.timeout.ms"),
        ("\"topic.metadata.propagation.max.ms\"=10000", "below sinks.<name>.timeout"),
        ("\"queue.buffering.max.kbytes\"=976", "message.max.bytes"),
        ("dr_msg_cb=x", "dr_msg_cb"),
    ] {
        let setting = format!("sinks.k.properties.{property}");

        let problem = only_problem(&["sinks.k.kind=kafka", "sinks.k.brokers=h", &setting]);

        assert!(problem.to_string().contains(words), "{setting}: {problem}");
    }
    for property in [
        "acks=all",
        "\"topic.acks\"=-1",
        "retries=1",
        "\"max.in.flight\"=5",
        "\"request.timeout.ms\"=8999",
        "\"socket.timeout.ms\"=4501",
        "\"linger.ms\"=0.5",
        "\"queue.buffering.max.kbytes\"=977",
        "partitioner=fnv1a",
    ] {
        let setting = format!("sinks.k.properties.{property}");
        let judged = with(&["sinks.k.kind=kafka", "sinks.k.brokers=h", &setting]);
        assert!(judged.is_ok(), "{property}: {judged:?}");
    }
}

#[test]
fn every_wrong_property_is_named_with_its_place_and_value() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let text = "[mongo]\nuri = \"mongodb://h/db\"\n[sinks.\"k.k\"]\nkind = \"kafka\"\n\
                brokers = \"h\"\n[sinks.\"k.k\".properties]\nacks = 1\nlinger.ms = \"soon\"\n\
                \"security.protocol\" = \"ssl\"\n\"ssl.ca.location\" = \"/no/such/ca\"\n\
                ssl.key.location = \"/no/such/key\"\n";
    std::fs::write(file.path(), text).unwrap();
    let set = vec!["sinks.\"k.k\".properties.\"no.such\"=1".to_owned()];
    let inputs = Inputs { file: Some(file.path().to_owned()), set, ..Inputs::default() };

    let problems = resolve(&load(&inputs).unwrap()).unwrap_err();

    let path = file.path().display();
    let expected = [
        format!("{path}:7: sinks.\"k.k\".properties.acks = \"1\": must be all"),
        format!("{path}:8: sinks.\"k.k\".properties.\"linger.ms\" = \"soon\": Invalid value"),
        "--set: sinks.\"k.k\".properties.\"no.such\" = \"1\": No such".to_owned(),
        format!("{path}:10: sinks.\"k.k\".properties.\"ssl.ca.location\" = \"/no/such/ca\": "),
        format!("{path}:11: sinks.\"k.k\".properties.\"ssl.key.location\" = \"/no/such/key\": "),
    ];
    assert_eq!(problems.len(), expected.len(), "{problems:?}");
    for (problem, expected) in problems.iter().zip(expected) {
        let line = problem.to_string();
        assert!(line.starts_with(&expected), "{line}");
        assert!(!line.contains(['\n']) && !line.ends_with("\\n"), "{line:?}");
    }
}

#[test]
fn an_empty_source_or_prefix_of_cloud_events_is_refused() {
    for key in ["cloudevents_source", "cloudevents_prefix"] {
        let setting = format!("sinks.k.{key}=");
        let sink = ["sinks.k.kind=kafka", "sinks.k.brokers=h", "sinks.k.cloudevents=true"];

        let problem = only_problem(&[&sink[..], &[&setting]].concat());

        assert_eq!(problem.key, format!("sinks.k.{key}"));
    }
}

#[test]
fn password_file_needs_a_username_and_must_be_readable() {
    let file = "/no/such/file";
    let unreadable = format!("cannot read the file {file:?}: ");
    for (section, settings) in [
        ("mongo", vec!["sinks.s.kind=stdout"]),
        ("sinks.s", vec!["sinks.s.kind=rabbitmq", "sinks.s.uri=amqp://h"]),
        ("sinks.s", vec!["sinks.s.kind=kafka", "sinks.s.brokers=h"]),
    ] {
        let (user, file) =
            (format!("{section}.username=u"), format!("{section}.password_file={file}"));

        let without_user = with(&[&settings[..], &[&file]].concat()).unwrap_err();
        let with_user = only_problem(&[&settings[..], &[&user, &file]].concat());

        let keys: Vec<&str> = without_user.iter().map(|problem| problem.key.as_str()).collect();
        assert_eq!(keys, [format!("{section}.username"), format!("{section}.password_file")]);
        assert!(without_user[0].detail.starts_with("is not set, but password_file is"));
        assert_eq!(with_user.key, format!("{section}.password_file"));
        assert!(with_user.detail.starts_with(&unreadable), "{with_user}");
    }
}

#[test]
fn file_of_tls_must_hold_pem_and_be_regular() {
    let dir = tempfile::tempdir().unwrap();
    let [garbage, certificate, key] = ["garbage", "cert", "key"].map(|name| dir.path().join(name));
    let pair = rcgen::generate_simple_self_signed(["h".to_owned()]).unwrap();
    std::fs::write(&garbage, "-----BEGIN CERTIFICATE-----\nhush\n").unwrap();
    std::fs::write(&certificate, pair.cert.pem()).unwrap();
    std::fs::write(&key, pair.signing_key.serialize_pem()).unwrap();
    let sections = [
        ("mongo", vec!["sinks.s.kind=stdout"]),
        ("sinks.s", vec!["sinks.s.kind=rabbitmq", "sinks.s.uri=amqps://h"]),
        ("sinks.s", vec!["sinks.s.kind=kafka", "sinks.s.brokers=h"]),
    ];
    for (section, settings) in sections {
        let one =
            |name: &str, file: &std::path::Path| format!("{section}.tls.{name}={}", file.display());
        for (file, words) in [
            (garbage.as_path(), "contains no certificate in PEM"),
            (&key, "contains no certificate in PEM"),
            (dir.path(), "it must be a regular file"),
        ] {
            let problem = only_problem(&[&settings[..], &[&one("ca_file", file)]].concat());

            assert_eq!(problem.key, format!("{section}.tls.ca_file"));
            assert!(problem.detail.contains(words), "{problem}");
        }
        let right = with(&[&settings[..], &[&one("ca_file", &certificate)]].concat());
        assert!(right.is_ok(), "{right:?}");
    }
    let sink = ["sinks.s.kind=rabbitmq", "sinks.s.uri=amqps://h"];
    let files = [&certificate, &certificate].map(|file| file.display().to_string());
    let no_key = only_problem(&[
        sink[0],
        sink[1],
        &format!("sinks.s.tls.cert_file={}", files[0]),
        &format!("sinks.s.tls.key_file={}", files[1]),
    ]);
    assert!(no_key.detail.contains("contains no private key in PEM"), "{no_key}");
}

#[test]
fn a_key_of_another_kind_is_refused() {
    for (setting, key) in [
        ("sinks.out.uri=amqp://h", "uri"),
        ("sinks.out.brokers=h", "brokers"),
        ("sinks.out.cloudevents=true", "cloudevents"),
        ("sinks.out.cloudevents_source=x", "cloudevents_source"),
        ("sinks.out.declare={topics = [{name = \"t\"}]}", "declare.topics"),
        ("sinks.out.declare={queues = [{name = \"q\"}]}", "declare.queues"),
    ] {
        let problem = only_problem(&["sinks.out.kind=stdout", setting]);
        assert_eq!(problem.key, format!("sinks.out.{key}"));
    }
}

#[test]
fn two_file_sinks_with_one_file_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("below")).unwrap();
    std::os::unix::fs::symlink(folder.path(), folder.path().join("link")).unwrap();
    let kinds = ["sinks.a.kind=file", "sinks.\"b.c\".kind=file", "relay.default_sink=a"];
    let with_both = |path: &str, other: &str| {
        let paths = [format!("sinks.a.path={path}"), format!("sinks.\"b.c\".path={other}")];
        with(&[&kinds[..], &[&paths[0], &paths[1]]].concat())
    };
    let within = |name: &str| format!("{}/{name}", folder.path().display());
    let here = std::env::current_dir().unwrap().join("x.ndjson").display().to_string();
    let file = within("x.ndjson");

    for (path, other) in [
        (&file, &file),
        (&file, &within(".//x.ndjson")),
        (&file, &within("below/../x.ndjson")),
        (&file, &within("link/x.ndjson")),
        (&here, &"x.ndjson".to_owned()),
    ] {
        let problems = with_both(path, other).unwrap_err();

        let keys: Vec<&str> = problems.iter().map(|problem| problem.key.as_str()).collect();
        assert_eq!(keys, ["sinks.\"b.c\".path"], "{path} {other}");
        assert!(problems[0].detail.contains("sinks.a.path"), "{}", problems[0]);
    }
    assert!(with_both(&file, &within("y.ndjson")).is_ok());
    assert!(with_both(&file, &within("below/x.ndjson")).is_ok());
}

#[test]
fn a_wrong_property_is_named_whatever_is_wrong_elsewhere() {
    let problems = with(&[
        "log.level=loud",
        "sinks.a.kind=rabbitmq",
        "sinks.k.kind=kafka",
        "sinks.k.brokers=h",
        "sinks.k.tls={}",
        "sinks.k.properties.acks=1",
    ])
    .unwrap_err();

    let keys: Vec<&str> = problems.iter().map(|problem| problem.key.as_str()).collect();
    assert_eq!(keys, ["sinks.a.uri", "sinks.k.properties.acks", "log.level"]);
}
