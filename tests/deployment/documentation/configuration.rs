//! Configuration in the documentation is valid: TOML, keys, environment variables.
//!
//! A fragment of TOML is completed: by a `mongo.uri`; by a kind, `uri` or `brokers` for each sink
//! without; by a sink for each that is only named, and one where there is none; by the files that
//! it names. The result must pass every rule.

use std::collections::BTreeSet;
use std::io::Write;
use std::path::Path;

use postrider::config::keys;
use postrider::config::{ConfigLoadError, Inputs, load, resolve};
use toml::{Table, Value};

use crate::documentation::doc_page::{blocks, pages};
use crate::documentation::expect_none;

#[test]
fn blocks_of_toml_are_accepted() {
    let mut problems = Vec::new();
    let mut judged = 0;
    for block in blocks().iter().filter(|block| block.language == "toml") {
        if block.test.join(" ") == "not configuration" {
            continue;
        }
        judged += 1;
        if let Err(problem) = judge(&block.code) {
            problems.push(format!("{}: {problem}", block.place));
        }
    }
    assert!(judged > 3, "only {judged} blocks were found");
    expect_none(&problems);
}

fn judge(code: &str) -> Result<(), String> {
    let mut table: Table = code.parse().map_err(|error| format!("no TOML: {error}"))?;
    complete(&mut table);
    let files = tempfile::tempdir().unwrap();
    let mut table = Value::Table(table);
    put_files(&mut table, files.path(), &mut 0);
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(toml::to_string(&table).unwrap().as_bytes()).unwrap();
    let inputs = Inputs { file: Some(file.path().to_owned()), ..Inputs::default() };
    let loaded = load(&inputs).map_err(|error| error.to_string())?;
    match resolve(&loaded) {
        Ok(_) => Ok(()),
        Err(problems) => {
            let messages: Vec<String> = problems.iter().map(ToString::to_string).collect();
            Err(messages.join("; "))
        }
    }
}

fn complete(table: &mut Table) {
    let mongo = below(table, "mongo");
    mongo.entry("uri").or_insert("mongodb://127.0.0.1:27017/app".into());
    let mut named = BTreeSet::new();
    if let Some(relay) = table.get("relay") {
        let dead_letter = relay.get("dead_letter").and_then(|table| table.get("sink"));
        named.extend([relay.get("default_sink"), dead_letter].into_iter().filter_map(text));
    }
    for route in table.get("routes").and_then(Value::as_array).into_iter().flatten() {
        named.extend(text(route.get("sink")));
    }
    let sinks = below(table, "sinks");
    for (_, sink) in sinks.iter_mut() {
        let Some(sink) = sink.as_table_mut() else { continue };
        let topics = sink.get("declare").is_some_and(|declare| declare.get("topics").is_some());
        let is_kafka =
            topics || ["brokers", "topic", "properties"].iter().any(|key| sink.contains_key(*key));
        let kind = if is_kafka { "kafka" } else { "rabbitmq" };
        let kind = sink.entry("kind").or_insert(kind.into()).clone();
        match kind.as_str() {
            Some("kafka") => sink.entry("brokers").or_insert("127.0.0.1:9092".into()),
            Some("rabbitmq") => sink.entry("uri").or_insert("amqp://127.0.0.1".into()),
            _ => continue,
        };
    }
    if sinks.is_empty() && named.is_empty() {
        named.insert("out".into());
    }
    for name in named {
        let stdout: Table = [("kind".to_owned(), Value::from("stdout"))].into_iter().collect();
        sinks.entry(name).or_insert(stdout.into());
    }
}

fn text(value: Option<&Value>) -> Option<String> {
    value?.as_str().map(str::to_owned)
}

fn put_files(value: &mut Value, folder: &Path, count: &mut usize) {
    match value {
        Value::Array(items) => items.iter_mut().for_each(|item| put_files(item, folder, count)),
        Value::Table(table) => {
            for (name, item) in table.iter_mut() {
                if !name.ends_with("_file") {
                    put_files(item, folder, count);
                    continue;
                }
                *count += 1;
                let file = folder.join(count.to_string());
                let text = match name.as_str() {
                    "password_file" | "token_file" => format!("secret-of-16-characters-{count}"),
                    _ => rcgen::generate_simple_self_signed([]).unwrap().cert.pem(),
                };
                std::fs::write(&file, text).unwrap();
                *item = file.to_str().unwrap().into();
            }
        }
        _ => {}
    }
}

fn below<'a>(table: &'a mut Table, name: &str) -> &'a mut Table {
    let entry = table.entry(name).or_insert(Table::new().into());
    entry.as_table_mut().unwrap_or_else(|| panic!("{name} is a table"))
}

#[test]
fn keys_in_the_text_are_keys() {
    let mut problems = Vec::new();
    for page in pages() {
        for span in page.spans() {
            let Some(path) = key(&span.text) else { continue };
            if keys::form(&path).is_none() && !keys::is_section(&path) {
                let nearest = keys::nearest(&path).unwrap_or_default();
                problems.push(format!(
                    "{}: there is no key {}; the nearest is {nearest}",
                    span.place, span.text
                ));
            }
        }
    }
    expect_none(&problems);
}

/// Properties of librdkafka and a topic of Debezium, whose names begin like a section of the configuration.
const OF_OTHERS: [&str; 3] =
    ["api.version.request", "log.connection.close", "outbox.event.<aggregatetype>"];

/// The key in a piece of code, where there is one: `relay.lease`, `sinks.<name>.timeout = "5s"`.
fn key(code: &str) -> Option<Vec<String>> {
    let name = code.split([' ', '=']).next().unwrap_or_default();
    if OF_OTHERS.contains(&name) {
        return None;
    }
    let name = name.replace(['<', '>', '*'], "").replace("..", ".name.");
    let path: Vec<String> = name.split('.').map(str::to_owned).collect();
    let is_word = |part: &String| {
        !part.is_empty() && part.chars().all(|c| c.is_ascii_lowercase() || c == '_')
    };
    let is_file = ["md", "rs", "toml", "js", "json"].contains(&path.last()?.as_str());
    let is_ours = keys::is_section(&path[..1]) && path.len() > 1;
    (is_ours && !is_file && path.iter().all(is_word)).then_some(path)
}

#[test]
fn variables_in_the_text_and_the_code_are_read() {
    let mut problems = Vec::new();
    let mut judged = 0;
    for page in pages() {
        for line in page.lines() {
            for rest in line.text.split("POSTRIDER__").skip(1) {
                let name =
                    rest.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').next().unwrap();
                // The common prefix, and its placeholder.
                if name.is_empty() || name.starts_with("SECTION__KEY") {
                    continue;
                }
                judged += 1;
                let variable = format!("POSTRIDER__{name}");
                let inputs =
                    Inputs { environment: vec![(variable, "@".into())], ..Inputs::default() };
                if let Err(ConfigLoadError::Problems { problems: found, .. }) = load(&inputs) {
                    // A whole table may be given at once, and this text is not a valid value of
                    // most keys.
                    let unknown = found.iter().filter(|one| one.detail.starts_with("unknown key"));
                    problems.extend(unknown.map(|one| format!("{}: {one}", line.place)));
                }
            }
        }
    }
    assert!(judged > 5, "only {judged} variables were found");
    expect_none(&problems);
}
