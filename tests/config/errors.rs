//! Each error of the configuration and of the servers that it names: the input, and the lines that report it, with
//! place, key, value, what is wrong and what to do. A row is data; `run` and `check` must report the same.

use std::collections::BTreeSet;

use crate::support::command_line::{PLANTED, file_of, with, with_environment};
use crate::support::ports::free_port;
use crate::support::process::{call, call_with};
use crate::support::queue::stdout_sink;
use crate::support::roles;

/// What a file lacks to be valid: most rows are about something else.
const MONGO: &str = "[mongo]\nuri = \"mongodb://h/app\"\n";
const SINK: &str = "[sinks.out]\nkind = \"stdout\"\n";

/// An input, and the lines that report what is wrong with it. `FILE` is the name of the file; a line that ends in `…`
/// continues with the words of a library.
#[derive(Default)]
struct Case {
    suffix: &'static str,
    text: &'static str,
    environment: &'static [(&'static str, &'static str)],
    set: &'static [&'static str],
    lines: &'static [&'static str],
}

fn file(suffix: &'static str, text: &'static str) -> Case {
    Case { suffix, text, ..Case::default() }
}

fn no_file() -> Case {
    Case::default()
}

impl Case {
    fn env(self, environment: &'static [(&'static str, &'static str)]) -> Self {
        Self { environment, ..self }
    }

    fn set(self, set: &'static [&'static str]) -> Self {
        Self { set, ..self }
    }

    fn says(self, lines: &'static [&'static str]) -> Self {
        Self { lines, ..self }
    }

    /// The text with what it lacks of a valid TOML file.
    fn whole(&self) -> String {
        let is_yaml = self.text.starts_with("mongo:");
        let lacks = |section: &str| !self.text.contains(section) && !is_yaml;
        let mut text = self.text.to_owned();
        if self.suffix == ".toml" {
            text += if lacks("[mongo") { MONGO } else { "" };
            text += if lacks("[sinks") { SINK } else { "" };
        }
        text
    }

    /// Fails unless `run` and `check` report these lines and no other.
    async fn check(&self) {
        let file = (!self.text.is_empty()).then(|| file_of(self.suffix, &self.whole()));
        let mut arguments: Vec<&str> = Vec::new();
        let path = file.as_ref().map_or("", |file| file.path().to_str().unwrap());
        if file.is_some() {
            arguments.extend(["--config", path]);
        }
        let sections = ["mongo.uri=mongodb://h/app", "sinks.out.kind=stdout"];
        let sections = sections.iter().filter(|_| file.is_none() || self.suffix != ".toml");
        for setting in sections.chain(self.set) {
            arguments.extend(["--set", setting]);
        }
        let run = with_environment(self.environment, &[&["run"], &arguments[..]].concat()).await;
        let check = ["check", "--offline"];
        let check = with_environment(self.environment, &[&check, &arguments[..]].concat()).await;

        let (run, check) = (run.with_code(2), check.with_code(2));
        let reported: Vec<String> =
            run.stderr.lines().map(|line| line.replace(path_or(path), "FILE")).collect();
        assert_eq!(reported.len(), self.lines.len(), "{:?}: {run}", self.text);
        for line in self.lines {
            let line = format!("error: {line}");
            let is_it = |reported: &String| match line.strip_suffix('…') {
                Some(start) => reported.starts_with(start),
                None => *reported == line,
            };
            assert!(reported.iter().any(is_it), "no {line:?} in {run}");
        }
        for line in run.stderr.lines() {
            let line = line.strip_prefix("error: ").unwrap();
            assert!(format!("{}{}", check.stdout, check.stderr).contains(line), "{line}: {check}");
            assert!(!line.ends_with('.'), "{line}");
        }
    }
}

/// A text that is in no line, in place of an empty path.
fn path_or(path: &str) -> &str {
    if path.is_empty() { "\u{0}" } else { path }
}

#[fixture::test]
async fn each_error_of_the_configuration_has_place_key_value_and_remedy() {
    let mut seen = BTreeSet::new();
    for case in [files(), keys(), values(), rules(), mongo(), sinks(), api()].into_iter().flatten()
    {
        assert!(seen.insert((case.text, case.environment, case.set)), "twice: {:?}", case.text);
        case.check().await;
    }
}

#[fixture::test]
async fn missing_file_is_reported_with_its_path_and_remedy() {
    let error = "error: /no/such/file.toml: cannot read the configuration file: no such file or \
                 directory; check --config or POSTRIDER_CONFIG\n";
    let by_option = call(&["run", "-c", "/no/such/file.toml"]).await.with_code(2);
    let variable = [("POSTRIDER_CONFIG", "/no/such/file.toml")];
    let by_variable = with_environment(&variable, &["config", "print"]).await.with_code(2);

    assert_eq!(by_option.stderr, error);
    assert_eq!(by_variable.stderr, error);
}

#[fixture::test]
async fn each_error_of_mongodb_is_one_sentence() {
    let port = free_port();
    let options = "serverSelectionTimeoutMS=300";
    let login = roles::uri("nobody", PLANTED, "app");
    for (uri, said) in [
        (
            format!("mongodb://127.0.0.1:{port}/app?{options}"),
            format!("cannot connect to MongoDB at 127.0.0.1:{port}: connection refused\n"),
        ),
        (
            format!("mongodb://127.0.0.1:{port}/app?{options}&tls=true"),
            format!("cannot connect to MongoDB at 127.0.0.1:{port}: connection refused\n"),
        ),
        (
            format!("mongodb://no-such-host.invalid:1/app?{options}"),
            "cannot connect to MongoDB at no-such-host.invalid:1: ".to_owned(),
        ),
        (
            login,
            "SCRAM failure: Authentication failed: the user or its password is wrong, or the user is \
             in another database (authSource)\n"
                .to_owned(),
        ),
    ] {
        let settings = with(stdout_sink(), &[&format!("mongo.uri={uri}")]);

        let ended = call_with(&settings, &["outbox", "stats"]).await.with_code(1);

        assert!(ended.stderr.starts_with("error: ") && ended.stderr.contains(&said), "{ended}");
        assert_eq!(ended.stderr.lines().count(), 1, "{ended}");
        assert!(ended.is_free_of(PLANTED), "{ended}");
        for dump in ["Kind:", "labels", "Topology", "server response", "None", "Command failed"] {
            assert!(!ended.stderr.contains(dump), "{dump}: {ended}");
        }
    }
}

/// Files that cannot be read or parsed.
fn files() -> Vec<Case> {
    vec![
        file(".toml", "[mongo\n").says(&["FILE:1:7: invalid TOML: …"]),
        file(".toml", "[mongo]\nuri = \n").says(&["FILE:2:7: invalid TOML: …"]),
        file(".toml", "mongo:\n  uri: a\n").says(&["FILE:1:7: looks like YAML; rename the file to .yaml, or write TOML"]),
        file(".toml", "[mongo]\nuri = \"a\"\nuri = \"b\"\n").says(&["FILE:3:1: the key uri appears twice; remove one of the two"]),
        file(".toml", "[mongo]\n[mongo]\n").says(&["FILE:2:2: the key mongo appears twice; remove one of the two"]),
        file(".yaml", "mongo:\n  uri: [1, 2\nrelay: {}\n").says(&["FILE:3:6: invalid YAML"]),
        file(".yaml", "mongo:\n  uri: a\n  uri: b\n").says(&["FILE:3:3: the key uri appears twice; remove one of the two"]),
        file(".yaml", "mongo:\n  uri: a\nsinks:\n  out:\n    kind: stdout\n   timeout: 5s\n").says(&["FILE:6:4: the indentation (3) matches no enclosing level (0 or 2 or 4); align it with the keys of its section"]),
        file(".yaml", "mongo:\n\turi: a\n").says(&["FILE:2:2: line 2 begins with a tab, and YAML permits only spaces there; replace it"]),
        file(".yaml", "- a\n").says(&["FILE:1:1: must be a table of sections at the top level"]),
        file(".yaml", "api:\n  tokens:\n  - a\n  -\n").says(&["FILE:4:4: api.tokens.1: is null, which a list cannot contain; set a value, or remove it"]),
        file(".yaml", "relay:\n  batchsize: 5\n").says(&["FILE:2: relay.batchsize: unknown key; did you mean relay.batch_size?"]),
        file(".json", "{\n \"mongo\": {,}\n}\n").says(&["FILE:2:12: invalid JSON: …"]),
        file(".json", "mongo: {}\n").says(&["FILE:1:1: invalid JSON: …"]),
        file(".json", "{\"ops\": {\"listen\": \"\u{7f}\"}}").says(&["FILE:1:21: cannot read this JSON: remove control characters, lone surrogates, numbers above 1.8e308, keys above 1024 characters, or deep nesting"]),
        file(".json", "{\"api\": {\"tokens\": [\n  null]}}").says(&["FILE:2:3: api.tokens.0: is null, which a list cannot contain; set a value, or remove it"]),
    ]
}

/// Keys that are unknown, missing, or set twice.
fn keys() -> Vec<Case> {
    vec![
        file(".toml", "[relay]\nbatchsize = 1\n[ops]\nlistn = \"x\"\n").says(&["FILE:4: ops.listn: unknown key; did you mean ops.listen?", "FILE:2: relay.batchsize: unknown key; did you mean relay.batch_size?"]),
        file(".toml", "[zebra]\nstripes = 1\n").says(&["FILE:2: zebra.stripes: unknown key; see docs/configuration.md for all keys"]),
        file(".toml", "[api]\ninsecure = true\n").says(&["FILE:2: api.insecure: was renamed; set api.allow_unauthenticated"]),
        file(".toml", "[relay]\nfollow = true\nprobe_max = \"5s\"\n").says(&["FILE:2: relay.follow: was renamed; set relay.change_stream", "FILE:3: relay.probe_max: was renamed; set relay.sink_probe_interval_max"]),
        no_file().set(&["sinks.out.allow=[\"a\"]"]).says(&["--set: sinks.out.allow: was renamed; set sinks.out.allowed_destinations"]),
        file(".toml", "[[routes]]\ntyp = \"x\"\n").says(&["FILE:2: routes.0.typ: unknown key; did you mean routes.0.type?"]),
        no_file().set(&["relay.backoff=5"]).says(&["--set: relay.backoff: is a section; set a key below it"]),
        no_file().set(&["routes.type=x"]).says(&["--set: routes.type: routes is a list; write [[routes]] in the file, or routes = [{ … }]"]),
        no_file().set(&["relay.batch_size"]).says(&["--set: relay.batch_size…: must have the form section.key=value"]),
        no_file().env(&[("POSTRIDER__RELAY__LEASES", "1s")]).says(&["POSTRIDER__RELAY__LEASES: relay.leases: unknown key; did you mean relay.lease?"]),
        no_file().env(&[("POSTRIDER__RELAY", "{ lease = \"1m\" }"), ("POSTRIDER__RELAY__LEASE", "2m")]).says(&["POSTRIDER__RELAY__LEASE: relay.lease: is also set by POSTRIDER__RELAY; remove one of the two"]),
        no_file().env(&[("POSTRIDER__OUTBOX__DATABASE_FILE", "/no/such/file")]).says(&["POSTRIDER__OUTBOX__DATABASE_FILE: outbox.database: cannot read the file \"/no/such/file\": no such file or directory; check the path and its permissions"]),
        file(".toml", "[sinks.Orders]\nkind = \"stdout\"\n[sinks.orders]\nkind = \"stdout\"\n").env(&[("POSTRIDER__SINKS__ORDERS__TIMEOUT", "3s")]).says(&["POSTRIDER__SINKS__ORDERS__TIMEOUT: sinks.orders: may be \"Orders\" or \"orders\", since variables ignore case; rename one of the two, or set the key in the file or by --set"]),
        file(".toml", "[sinks.orders]\nuri = \"x\"\n").says(&["FILE:1: sinks.orders.kind: is not set; set it to one of `rabbitmq`, `kafka`, `file`, `stdout`"]),
        file(".toml", "[relay.dead_letter]\n").says(&["FILE:1: relay.dead_letter.sink: is not set; set it"]),
    ]
}

/// Values of the wrong type, and variables in them.
fn values() -> Vec<Case> {
    vec![
        file(".toml", "[relay]\nlease = 30\n").says(&["FILE:2: relay.lease = 30: must be text with a unit, at most 100 years, for example \"30s\" or \"1m30s\""]),
        no_file().set(&["relay.lease=30"]).says(&["--set: relay.lease = \"30\": must be text with a unit, at most 100 years, for example \"30s\" or \"1m30s\""]),
        no_file().set(&["relay.batch_bytes=16"]).says(&["--set: relay.batch_bytes = \"16\": must be text with a unit, for example \"16MiB\""]),
        no_file().set(&["relay.batch_size=many"]).says(&["--set: relay.batch_size: must be a TOML value, for example 5, true or [\"a\", \"b\"]"]),
        no_file().set(&["relay.batch_size=\"5\""]).says(&["--set: relay.batch_size = \"5\": must be an integer of 0 or above"]),
        no_file().set(&["relay.batch_size=1.5"]).says(&["--set: relay.batch_size = 1.5: must be an integer of 0 or above"]),
        no_file().set(&["relay.batch_size=99999999999999999999"]).says(&["--set: relay.batch_size: must be an integer of at most 64 bits"]),
        no_file().set(&["relay.enabled=yes"]).says(&["--set: relay.enabled: must be a TOML value, for example 5, true or [\"a\", \"b\"]"]),
        file(".toml", "[relay]\nenabled = \"yes\"\n").says(&["FILE:2: relay.enabled = \"yes\": must be true or false"]),
        file(".toml", "[relay]\nordering = \"keys\"\n").says(&["FILE:2: relay.ordering = \"keys\": must be `key` or `none`; did you mean key?"]),
        no_file().set(&["log.format=jsn"]).says(&["--set: log.format = \"jsn\": must be one of `auto`, `json`, `text`; did you mean json?"]),
        file(".toml", "[sinks.orders]\nkind = \"rabbit\"\n").says(&["FILE:2: sinks.orders.kind = \"rabbit\": must be one of `rabbitmq`, `kafka`, `file`, `stdout`; did you mean rabbitmq?"]),
        file(".toml", "[sinks.orders]\nkind = \"nats\"\n").says(&["FILE:2: sinks.orders.kind = \"nats\": must be one of `rabbitmq`, `kafka`, `file`, `stdout`"]),
        file(".toml", "[outbox]\ndatabase = \"app\\r\"\n").says(&["FILE:2: outbox.database = \"app\\r\": contains the control character '\\r' at its end; remove it"]),
        file(".toml", "[api]\ntokens = [5]\n").says(&["FILE:2: api.tokens.0: must be text, or { name = \"…\", token = \"…\", scopes = [\"append\", \"read\"] }; is of type integer"]),
        file(".toml", "[mongo]\nuri = \"mongodb://u:${PASSWORD}@h/app\"\n").says(&["FILE:2: mongo.uri: contains ${PASSWORD}, but the environment variable PASSWORD is not set; set it, or write ${PASSWORD:-default}"]),
        file(".toml", "[instance]\nname = \"${NAME\"\n").says(&["FILE:2: instance.name = \"${NAME\": contains ${ without }; add it, or write $${ for the text ${"]),
        file(".toml", "[instance]\nname = \"${A B}\"\n").says(&["FILE:2: instance.name = \"${A B}\": contains ${A…}, which is not a variable name; write ${NAME} or ${NAME:-default}, or $${ for the text ${"]),
    ]
}

/// Values that break a rule.
fn rules() -> Vec<Case> {
    vec![
        file(".toml", "[relay]\nmax_attempts = 0\n").says(&["FILE:2: relay.max_attempts = 0: must be between 1 and 1000000"]),
        no_file().env(&[("POSTRIDER__RELAY__POLL_INTERVAL", "1ms")]).says(&["POSTRIDER__RELAY__POLL_INTERVAL: relay.poll_interval = \"1ms\": must be at least 10ms"]),
        no_file().set(&["relay.backoff.max=1ms"]).says(&["--set: relay.backoff.max = \"1ms\": must be at least relay.backoff.initial"]),
        no_file().set(&["relay.default_sink=ou"]).says(&["--set: relay.default_sink = \"ou\": unknown sink; the configured sinks are out; did you mean out?"]),
        file(".toml", "[[routes]]\nsink = \"other\"\n").says(&["FILE:2: routes.0.sink = \"other\": unknown sink; the configured sinks are out"]),
        file(".toml", "[[routes]]\ndestination = \"{nope}\"\n").says(&["FILE:2: routes.0.destination = \"{nope}\": unknown variable {nope}; use {type}, {key}, {destination}, {tenantId}, {aggregate} or {header.NAME}"]),
        no_file().set(&["sinks.out.timeout=30s"]).says(&["--set: sinks.out.timeout = \"30s\": must be below relay.lease, since a publish that outlives its lease is repeated"]),
        no_file().set(&["partitions.static=9-300"]).says(&["--set: partitions.static = \"9-300\": must be a set of partitions such as 0-127 or 3,7-9, each between 0 and 255"]),
        no_file().set(&["partitions.stale_after=1s", "partitions.heartbeat=900ms"]).says(&["--set: partitions.stale_after = \"1s\": must be at least twice partitions.heartbeat, so that one late heartbeat is not a failure"]),
        no_file().set(&["outbox.collection_prefix=a b"]).says(&["--set: outbox.collection_prefix = \"a b\": must contain only letters, digits, _ . and -"]),
        no_file().set(&["outbox.collection_prefix=system."]).says(&["--set: outbox.collection_prefix = \"system.\": must not contain \"system.\", which MongoDB reserves for its own collections"]),
        no_file().set(&["mongo.database=a.b"]).says(&["--set: mongo.database = \"a.b\": must not contain the character '.'; remove it"]),
        no_file().set(&["mongo.database=admin"]).says(&["--set: mongo.database = \"admin\": is a system database of MongoDB, without transactions; use another database"]),
        no_file().set(&["instance.name= x"]).says(&["--set: instance.name = \" x\": has 2 characters; must have between 1 and 200, without leading or trailing spaces"]),
        no_file().set(&["log.level=warning"]).says(&["--set: log.level = \"warning\": unknown level \"warning\"; set error, warn, info, debug, trace, off, or a filter, for example postrider=debug,info; did you mean warn?"]),
        no_file().set(&["log.level=hyper=trace"]).says(&["--set: log.level = \"hyper=trace\": logs nothing of Postrider, since it contains only other targets; set error, warn, info, debug, trace, off, or a filter, for example postrider=debug,info"]),
        no_file().set(&["ops.listen=9464"]).says(&["--set: ops.listen = \"9464\": must be host:port, for example 127.0.0.1:8080"]),
        no_file().set(&["feed.enabled=true", "events.enabled=false"]).says(&["--set: feed.enabled = true: requires the event store; set events.enabled = true, or feed.enabled = false"]),
    ]
}

/// The connection to MongoDB.
fn mongo() -> Vec<Case> {
    vec![
        no_file().set(&["mongo.uri=localhost:27017/app"]).says(&["--set: mongo.uri = \"***\": invalid MongoDB URI: …"]),
        no_file().set(&["mongo.uri=mongodb://h:x/app"]).says(&["--set: mongo.uri = \"mongodb://h:***\": invalid MongoDB URI: …"]),
        no_file().set(&["mongo.uri=mongodb://h/"]).says(&["mongo.database: is not set, and the URI contains no database; set it, or write the URI as mongodb://host:27017/database"]),
        no_file().set(&["mongo.uri=mongodb://u:p/q@h/app"]).says(&["--set: mongo.uri = \"mongodb://u:***@h/app\": invalid MongoDB URI: …"]),
        no_file().set(&["mongo.uri=mongodb://h/app?timeoutMS=5000"]).says(&["--set: mongo.uri = \"mongodb://h/app?timeoutMS=5000\": invalid MongoDB URI: the option timeoutMS is not supported; Postrider sets a time limit for each operation; remove it"]),
        no_file().set(&["mongo.uri=mongodb://h/app?ssl=true&tls=false"]).says(&["--set: mongo.uri = \"mongodb://h/app?ssl=true&tls=false\": invalid MongoDB URI: ssl=true and tls=false contradict each other; remove one of the two"]),
        no_file().set(&["mongo.uri=mongodb://h/app?loadBalanced=true"]).says(&["--set: mongo.uri = \"mongodb://h/app?loadBalanced=true\": invalid MongoDB URI: the option loadBalanced is not supported; name the members of the replica set, and remove it"]),
        no_file().set(&["mongo.uri=mongodb://u:p@h/app", "mongo.username=v"]).says(&["--set: mongo.username = \"v\": mongo.uri also sets a user; remove one of the two"]),
        no_file().set(&["mongo.password_file=/no/such/file"]).says(&["mongo.username: is not set, but password_file is; set it, or remove password_file", "--set: mongo.password_file = \"/no/such/file\": cannot read the file \"/no/such/file\": no such file or directory; check the path and its permissions"]),
        no_file().set(&["mongo.tls.cert_file=/a"]).says(&["mongo.tls.key_file: is not set; set it, or remove cert_file", "--set: mongo.tls.cert_file = \"/a\": cannot read the file \"/a\": no such file or directory; check the path and its permissions"]),
    ]
}

/// Sinks.
fn sinks() -> Vec<Case> {
    vec![
        file(".toml", "[sinks.r]\nkind = \"rabbitmq\"\n").says(&["FILE:1: sinks.r.uri: is not set; set it, for example to amqp://user:password@host:5672/vhost"]),
        file(".toml", "[sinks.r]\nkind = \"rabbitmq\"\nuri = \"http://h\"\n").says(&["FILE:3: sinks.r.uri = \"http://h\": invalid AMQP URI: …"]),
        file(".toml", "[sinks.r]\nkind = \"rabbitmq\"\nuri = \"amqp://h\"\nbrokers = \"h:9092\"\n").says(&["FILE:4: sinks.r.brokers = \"h:9092\": applies only to sinks of kind \"kafka\", not \"rabbitmq\"; remove it"]),
        file(".toml", "[sinks.r]\nkind = \"rabbitmq\"\nuri = \"amqp://h\"\ntls.ca_file = \"/no/such/file\"\n").says(&["FILE:4: sinks.r.tls.ca_file = \"/no/such/file\": cannot read the file \"/no/such/file\": no such file or directory; check the path and its permissions", "FILE:4: sinks.r.tls: requires a URI with TLS; start it with amqps://"]),
        file(".toml", "[sinks.r]\nkind = \"rabbitmq\"\nuri = \"amqp://h\"\ndeclare.queues = [{ name = \"\" }]\n").says(&["FILE:4: sinks.r.declare.queues: invalid name \"\": must have between 1 and 255 bytes"]),
        file(".toml", "[sinks.k]\nkind = \"kafka\"\n").says(&["FILE:1: sinks.k.brokers: is not set; set it, for example to host:9092 or a list of addresses"]),
        file(".toml", "[sinks.k]\nkind = \"kafka\"\nbrokers = []\n").says(&["FILE:3: sinks.k.brokers: is empty; set it, for example to host:9092 or a list of addresses"]),
        file(".toml", "[sinks.k]\nkind = \"kafka\"\nbrokers = \"h\"\n[sinks.k.properties]\nacks = 1\n").says(&["FILE:5: sinks.k.properties.acks = \"1\": must be all; with less, a confirmed record can be lost"]),
        file(".toml", "[sinks.k]\nkind = \"kafka\"\nbrokers = \"h\"\n[sinks.k.properties]\n\"no.such\" = 1\n").says(&["FILE:5: sinks.k.properties.\"no.such\" = \"1\": …"]),
        file(".toml", "[sinks.k]\nkind = \"kafka\"\nbrokers = \"h\"\nusername = \"u\"\n").says(&["FILE:1: sinks.k.properties: …"]),
        file(".toml", "[sinks.f]\nkind = \"file\"\n").says(&["FILE:1: sinks.f.path: is not set; set it, for example to /folder/name.ndjson"]),
        file(".toml", "[sinks.f]\nkind = \"file\"\npath = \"/tmp/a\"\n[sinks.g]\nkind = \"file\"\npath = \"/tmp/a\"\n").says(&["FILE:6: sinks.g.path = \"/tmp/a\": is also the file of sinks.f.path; set another file"]),
    ]
}

/// The HTTP API.
fn api() -> Vec<Case> {
    vec![
        no_file().set(&["api.enabled=true", "api.listen=0.0.0.0:8080"]).says(&["--set: api.listen = \"0.0.0.0:8080\": accepts remote connections without authentication, with or without TLS; set api.tokens, bind to 127.0.0.1:8080, or set api.allow_unauthenticated = true if a proxy authenticates"]),
        no_file().set(&["api.enabled=true", "api.tls.cert_file=/a"]).says(&["api.tls.key_file: is not set, but api.tls.cert_file is; set both or neither"]),
        no_file().set(&["api.enabled=true", "api.tokens=[{ name = \"a\", token = \"t\", tenants = [] }]"]).says(&["--set: api.tokens.0.tenants: must not be empty; remove it if the token is not limited by it"]),
        no_file().set(&["api.enabled=true", "api.listen=0.0.0.0:8080", "api.tokens=[\"t\"]"]).says(&["--set: api.tokens.0 = \"***\": has fewer than 16 characters, and api.listen accepts remote connections; set a longer one, such as the output of openssl rand -hex 32"]),
        no_file().set(&["api.enabled=true", "api.tokens=[\"\"]"]).says(&["--set: api.tokens.0 = \"***\": must contain only ASCII letters, digits and punctuation, and at least one character"]),
        no_file().set(&["api.enabled=true", "api.tokens=[\"t\", \"t\"]"]).says(&["--set: api.tokens.1 = \"***\": is the same token as another one; set a different token"]),
        no_file().set(&["api.enabled=true", "api.tokens=[{ name = \"a\" }]"]).says(&["--set: api.tokens.0: has no token; set token or token_file"]),
        no_file().set(&["api.enabled=true", "api.tokens=[{ name = \"a\", token = \"t\", scopes = [\"reed\"] }]"]).says(&["--set: api.tokens.0.scopes: unknown scope \"reed\"; must be append, read, admin or consume; did you mean read?"]),
        no_file().set(&["api.enabled=true", "api.tokens=[{ name = \"a\", token = \"t\", scopes = [] }]"]).says(&["--set: api.tokens.0.scopes: must not be empty; remove it for all scopes, or set append, read, admin or consume"]),
        no_file().set(&["api.enabled=true", "api.tokens=[{ name = \"a\", token_file = \"/no/such/file\" }]"]).says(&["--set: api.tokens.0.token_file = \"/no/such/file\": cannot read the file \"/no/such/file\": no such file or directory; check the path and its permissions"]),
        no_file().set(&["api.enabled=true", "api.max_concurrent=0"]).says(&["--set: api.max_concurrent = 0: must be between 1 and 100000"]),
    ]
}
