//! Configuration from any source: read, or refused with an error; and printed so that it reads
//! back.

use std::path::Path;

use postrider::config::Config;
use postrider::config::file::FileError;
use postrider::config::keys::keys;
use postrider::config::print::print;
use postrider::config::{ConfigLoadError, Inputs, LoadedConfig, Origin, load, resolve};
use postrider_settings::secret::{is_secret_header, shown_name, shown_text};
use proptest::prelude::*;
use proptest::sample::select;
use tempfile::TempDir;

use crate::{arbitrary, corpus};

/// Names of sinks, sources and the like that users could choose.
const NAMES: [&str; 12] =
    ["a", "A", "mongo", "orders", "a b", "é", "a.b", "", "q\"q", "x\ny", "'", "*"];

/// Values as they are in a file.
const VALUES: [&str; 44] = [
    "0",
    "1",
    "-1",
    "255",
    "10001",
    "9223372036854775807",
    "0.5",
    "nan",
    "-inf",
    "1e308",
    "true",
    "false",
    "\"\"",
    "\"30s\"",
    "\"0s\"",
    "\"1m30s\"",
    "\"1ns\"",
    "\"100years\"",
    "\"16MiB\"",
    "\"16EiB\"",
    "\"0-127\"",
    "\"{type}\"",
    "\"{\"",
    "\"*\"",
    "\"key\"",
    "\"none\"",
    "\"block\"",
    "\"json\"",
    "\"rabbitmq\"",
    "\"stdout\"",
    "\"stdout\"",
    "\"kafka\"",
    "\"mongodb://u:p@h:1/db?w=1\"",
    "\"amqp://u:p@h:5672/v\"",
    "\"127.0.0.1:0\"",
    "\"a\"",
    "[]",
    "[\"a\", \"b\"]",
    "[1, {a = 2}]",
    "{}",
    "{type = \"T*\", sink = \"a\", headers = {\"a b\" = \"{key}\"}}",
    "[{type = \"T\"}, {}, {headers = {\"x\\ny\" = \"\\n\"}}]",
    "{queues = [{name = \"q\", arguments = {\"x-a\" = 1}}], topics = [{name = \"t\"}]}",
    "1979-05-27T07:32:00Z",
];

fn quoted(text: &str) -> String {
    // The serializer knows how a key is quoted.
    let table = toml::Table::from_iter([(text.to_owned(), toml::Value::Integer(0))]);
    table.to_string().trim_end().strip_suffix(" = 0").unwrap().to_owned()
}

/// A key by its parts: a known one with a user's names, or a similar one.
fn key() -> impl Strategy<Value = Vec<String>> + Clone {
    let known = (select(&keys().all[..]), proptest::collection::vec(select(&NAMES[..]), 3));
    let known = known.prop_map(|(key, names)| {
        let mut names = names.into_iter();
        let part = |part: &str| match part {
            "*" => names.next().unwrap_or("a").to_owned(),
            part => part.to_owned(),
        };
        key.pattern.iter().map(String::as_str).map(part).collect::<Vec<String>>()
    });
    let misspelt = (known.clone(), any::<proptest::sample::Index>(), arbitrary::text());
    let misspelt = misspelt.prop_map(|(mut key, at, part)| {
        let at = at.index(key.len());
        key[at] = part;
        key
    });
    let cut = known.clone().prop_map(|mut key| {
        key.pop();
        key.push("x".to_owned());
        key
    });
    prop_oneof![20 => known, 1 => misspelt, 1 => cut]
}

/// A line that makes most of the drawn configurations complete.
fn sink() -> impl Strategy<Value = String> {
    (select(&NAMES[..]), select(&["stdout", "stdout", "stdout", "rabbitmq", "kafka"][..]))
        .prop_map(|(name, kind)| format!("sinks.{}.kind = \"{kind}\"", quoted(name)))
}

fn value() -> impl Strategy<Value = String> {
    prop_oneof![
        5 => select(&VALUES[..]).prop_map(str::to_owned),
        1 => arbitrary::text().prop_map(|text| toml::Value::String(text).to_string()),
    ]
}

fn file() -> impl Strategy<Value = String> {
    let line = (key(), value()).prop_map(|(key, value)| {
        let key: Vec<String> = key.iter().map(|part| quoted(part)).collect();
        format!("{} = {value}", key.join("."))
    });
    let lines = proptest::collection::vec(line, 0..4);
    let lines = (proptest::collection::vec(sink(), 0..3), lines)
        .prop_map(|(sinks, lines)| [sinks, lines].concat().join("\n"));
    let sample = include_str!("../../config/postrider.toml");
    let changed =
        proptest::collection::vec((any::<proptest::sample::Index>(), any::<char>()), 1..4);
    let changed = changed.prop_map(move |changes| {
        let mut characters: Vec<char> = sample.chars().collect();
        for (at, character) in changes {
            let at = at.index(characters.len());
            characters[at] = character;
        }
        characters.into_iter().collect()
    });
    prop_oneof![8 => lines, 2 => changed, 1 => arbitrary::text()]
}

fn plain_value() -> impl Strategy<Value = String> {
    prop_oneof![
        2 => value(),
        3 => value().prop_map(|value| value.trim_matches('"').to_owned()),
        1 => arbitrary::text(),
    ]
}

fn environment() -> impl Strategy<Value = Vec<(String, String)>> {
    let known = key().prop_map(|key| key.join("__").to_uppercase());
    let name = prop_oneof![
        6 => known.clone(),
        1 => known.prop_map(|name| name + "_FILE"),
        1 => arbitrary::text(),
    ];
    let variable =
        (name, plain_value()).prop_map(|(name, text)| (format!("POSTRIDER__{name}"), text));
    proptest::collection::vec(variable, 0..3)
}

fn set() -> impl Strategy<Value = Vec<String>> {
    let dotted = |key: Vec<String>| -> String {
        key.iter().map(|part| quoted(part)).collect::<Vec<_>>().join(".")
    };
    let setting =
        (key(), plain_value()).prop_map(move |(key, text)| format!("{}={text}", dotted(key)));
    proptest::collection::vec(prop_oneof![6 => setting, 1 => arbitrary::text()], 0..3)
}

/// A configuration without what is never printed.
fn shown(config: &Config) -> String {
    let mut table = toml::Table::try_from(config).unwrap();
    table.remove("api");
    table["ops"].as_table_mut().unwrap().remove("listen");
    for (_, sink) in table["sinks"].as_table_mut().unwrap() {
        sink.as_table_mut().unwrap().remove("properties");
        // Hosts that may be a secret are hidden.
        sink.as_table_mut().unwrap().remove("brokers");
        remove_files(sink.as_table_mut().unwrap());
    }
    // So are names of sinks.
    table["relay"].as_table_mut().unwrap().remove("default_sink");
    remove_files(table["mongo"].as_table_mut().unwrap());
    let mut shown = toml::Value::Table(table);
    hide_uris(&mut shown);
    // Not the table: a NaN is not the same as itself.
    format!("{shown:?}")
}

/// The password of a URI is printed under no key.
fn hide_uris(value: &mut toml::Value) {
    match value {
        toml::Value::String(text) => *text = shown_text(text).into_owned(),
        toml::Value::Array(items) => items.iter_mut().for_each(hide_uris),
        toml::Value::Table(table) => {
            // Headers, by their names; no other key of a table has such a name and is printed.
            table.retain(|name, _| !is_secret_header(name));
            table.iter_mut().for_each(|(_, item)| hide_uris(item));
            let whole = std::mem::take(table).into_iter();
            *table = whole.map(|(name, item)| (shown_name(&name).to_owned(), item)).collect();
        }
        _ => {}
    }
}

/// A name that does not begin as a path does is not printed.
fn remove_files(section: &mut toml::Table) {
    section.remove("password_file");
    section.remove("tls");
}

fn judge(inputs: &Inputs) -> Result<(), TestCaseError> {
    let loaded = match load(inputs) {
        Ok(loaded) => loaded,
        Err(error) => return judge_error(&error),
    };
    let printed = print(&loaded);
    let parsed: Config = toml::from_str(&printed.replace("$${", "${"))
        .map_err(|error| TestCaseError::fail(format!("{error}\n{printed}")))?;
    prop_assert_eq!(shown(&parsed), shown(&loaded.config), "{}", printed);
    let again = print(&LoadedConfig {
        config: parsed,
        origins: loaded.origins.clone(),
        ..LoadedConfig::default()
    });
    prop_assert_eq!(&again, &printed);
    if let Err(problems) = resolve(&loaded) {
        prop_assert!(!problems.is_empty());
        for problem in problems {
            prop_assert!(!problem.key.is_empty() && !problem.detail.is_empty(), "{:?}", problem);
        }
    }
    Ok(())
}

fn judge_error(error: &ConfigLoadError) -> Result<(), TestCaseError> {
    match error {
        ConfigLoadError::Problems { problems, .. } => {
            prop_assert!(!problems.is_empty());
            for problem in problems {
                // Where it is not a text of the command line itself.
                let is_text = problem.detail == "must have the form section.key=value";
                prop_assert!(problem.key != "." || is_text, "{}", error);
                prop_assert!(!problem.detail.is_empty(), "{}", error);
                // A missing value has no place.
                let is_placed = problem.origin != Origin::Default;
                prop_assert!(is_placed || problem.detail.starts_with("is not set"), "{}", error);
            }
        }
        ConfigLoadError::File(FileError::Syntax { line, column, .. }) => {
            prop_assert!(*line > 0 && *column > 0)
        }
        ConfigLoadError::File(FileError::Read { .. }) => {}
    }
    Ok(())
}

fn written(dir: &Path, name: &str, text: &str) -> Inputs {
    let file = dir.join(name);
    std::fs::write(&file, text).unwrap();
    Inputs { file: Some(file), ..Inputs::default() }
}

proptest! {
    #[test]
    fn a_configuration_reads_back_or_is_refused(
        text in file(),
        name in select(&["postrider.toml", "a\nb # c.toml"][..]),
        environment in environment(),
        set in set(),
    ) {
        let dir = TempDir::new().unwrap();

        judge(&Inputs { environment, set, ..written(dir.path(), name, &text) })?;
    }

    #[test]
    fn any_environment_and_command_line_are_read(environment in environment(), set in set()) {
        judge(&Inputs { file: None, environment, set })?;
    }
}

/// A password that no other text contains.
const PLANTED: &str = "pl4nted";

/// URIs, good and broken, with a password that should have been escaped or not.
fn uri() -> impl Strategy<Value = String> {
    let scheme =
        select(&["mongodb://", "mongodb+srv://", "amqp://", "amqps://", "http://", "://", ""][..]);
    let part = || "[a-z0-9:/?#@&=%,. \\[\\]é]{0,4}";
    let host = prop_oneof![Just("h:5672/v".to_owned()), "[a-z0-9:/?#&=%,. ]{0,12}"];
    let parts = (scheme, "[a-z%]{0,3}", part(), part(), host);
    // A user and a colon before two slashes are a scheme.
    let parts = parts.prop_filter("a scheme", |(scheme, _, before, ..)| {
        !scheme.is_empty() || !before.starts_with("//")
    });
    parts.prop_map(|(scheme, user, before, behind, host)| {
        format!("{scheme}{user}:{before}{PLANTED}{behind}@{host}")
    })
}

proptest! {
    #[test]
    fn no_password_of_a_uri_is_printed(
        uri in uri(),
        key in select(&["mongo.uri", "mongo.sources.mongo.uri", "connection_strings.mongo", "sinks.r.uri"][..]),
    ) {
        let set = vec![format!("{key}={uri}"), "sinks.r.kind=rabbitmq".to_owned()];
        let loaded = load(&Inputs { set, ..Inputs::default() }).unwrap();

        let outputs = [print(&loaded), format!("{loaded:?}"), format!("{:?}", resolve(&loaded))];

        for output in outputs {
            prop_assert!(!output.contains(PLANTED), "{}\n{}", uri, output);
        }
    }
}

#[test]
fn the_corpus_is_read() {
    let dir = TempDir::new().unwrap();
    for (name, text) in corpus::texts("configuration") {
        judge(&written(dir.path(), "c.toml", &text))
            .unwrap_or_else(|error| panic!("{name}: {error}"));
    }
    for setting in corpus::lines("settings") {
        let inputs = Inputs { set: vec![setting.clone()], ..Inputs::default() };
        judge(&inputs).unwrap_or_else(|error| panic!("{setting:?}: {error}"));
        let (name, text) = setting.split_once('=').unwrap_or((&setting, ""));
        let name = format!("POSTRIDER__{}", name.replace('.', "__"));
        let inputs = Inputs { environment: vec![(name, text.to_owned())], ..Inputs::default() };
        judge(&inputs).unwrap_or_else(|error| panic!("{setting:?}: {error}"));
    }
}
