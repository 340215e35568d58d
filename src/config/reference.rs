//! docs/configuration.md, made from the code: the keys with what they hold, the defaults, the
//! rules as they are told to who breaks them, and the words of `config/postrider.toml`.

use std::collections::BTreeMap;
use std::fmt::Write;

use toml::Table;

use super::keys::{self, Holds, KEYS};
use super::tree::Sink;
use super::{Inputs, LoadError, load, resolve};
use crate::blessed::compare;
use crate::sink::kafka::{RESERVED, Reserved};

const SAMPLE: &str = include_str!("../../config/postrider.toml");
const TEMPLATE: &str = include_str!("reference.template.md");

/// The user's own name in what is asked here.
const NAME: &str = "name";

/// Values beyond the bounds of any key that has some.
const BEYOND: [&str; 8] = ["0", "-1.0", "0.5", "1000000000", "0s", "100years", "0B", "1EB"];

#[test]
fn the_page_in_the_repository_is_what_the_code_says() {
    compare("docs/configuration.md", &page());
}

#[test]
fn every_key_is_explained_in_the_sample_file() {
    let words = Words::of(SAMPLE);
    for (key, _) in KEYS {
        let explained = words.keys.get(key).is_some_and(|words| !words.is_empty());
        assert!(explained, "{key} has no comment above it in config/postrider.toml");
    }
}

fn page() -> String {
    let words = Words::of(SAMPLE);
    let mut page = TEMPLATE.to_owned();
    let mut sections: Vec<&str> = Vec::new();
    for (key, _) in KEYS {
        let section = key.split('.').next().unwrap();
        if !sections.contains(&section) {
            sections.push(section);
        }
    }
    for section in sections {
        write!(page, "## {}\n\n", heading(section)).unwrap();
        let mut tables = words.tables.iter().filter(|(table, _)| table[0] == section).peekable();
        let own = |key: &str| key.split('.').next() == Some(section);
        let mut keys: Vec<_> = KEYS.into_iter().filter(|(key, _)| own(key)).collect();
        // The list before what stands in it.
        keys.sort_by_key(|(key, _)| *key != section);
        for (key, holds) in keys {
            let path: Vec<&str> = key.split('.').collect();
            let above = |table: &[String]| match section {
                "sinks" => true,
                _ => path.len() > table.len() && table.iter().zip(&path).all(|(a, b)| a == b),
            };
            if let Some((table, about)) = tables.next_if(|(table, _)| above(table)) {
                if table.len() > 1 && section != "sinks" {
                    write!(page, "### [{}]\n\n", table.join(".")).unwrap();
                }
                write!(page, "{}\n\n", markdown(about)).unwrap();
            }
            page.push_str(&entry(key, holds, &words));
        }
    }
    page.truncate(page.trim_end().len());
    page.push('\n');
    page
}

fn heading(section: &str) -> String {
    match section {
        "sinks" => "[sinks.NAME]".to_owned(),
        "routes" => "[[routes]]".to_owned(),
        _ => format!("[{section}]"),
    }
}

fn entry(key: &str, holds: Holds, words: &Words) -> String {
    let mut facts = vec![kind(key, holds)];
    let kinds = kinds_of_sink(key);
    if !kinds.is_empty() {
        facts.push(format!("for {}", kinds.join(" and ")));
    }
    if let Some(default) = words.defaults.get(key).cloned().or_else(|| default_of_sink(key)) {
        facts.push(format!("default `{default}`"));
    }
    facts.extend(bounds(key, holds));
    let mut entry = format!(
        "### {}\n\n{} · {}\n\n{}\n\n",
        shown(key),
        facts.join("; "),
        variable(key),
        markdown(&words.keys[key])
    );
    if key == "sinks.*.declare" {
        write!(entry, "```toml\n{}```\n\n", words.declared).unwrap();
    }
    if key == "sinks.*.properties.*" {
        entry.push_str(&reserved_properties());
    }
    entry
}

/// What librdkafka's properties cannot be set to, as the sink refuses it.
fn reserved_properties() -> String {
    let mut table = "These are refused, by any of their names: librdkafka's aliases count, with \
                     `topic.` in front too (`delivery.timeout.ms`, `topic.acks`).\n\n\
                     | property | refused | why |\n|---|---|---|\n"
        .to_owned();
    for Reserved { name, refused, why } in RESERVED {
        let why = why.replace("sinks.<name>.", "sinks.NAME.");
        writeln!(table, "| `{name}` | {refused} | {why} |").unwrap();
    }
    table + "\n"
}

/// The key as a person writes it.
fn shown(key: &str) -> String {
    key.replace("routes.*.", "routes[].").replace('*', "NAME")
}

fn variable(key: &str) -> String {
    if key.starts_with("routes.") {
        return "in the environment only as a whole: `POSTRIDER__ROUTES`".to_owned();
    }
    let name = key.to_uppercase().replace('.', "__").replace('*', "NAME");
    format!("`POSTRIDER__{name}`")
}

/// What the key takes, as its own refusal of something else says.
fn kind(key: &str, holds: Holds) -> String {
    match (key, holds) {
        ("sinks.*.allow", _) => return "list of texts".to_owned(),
        ("api.tokens", _) => return "list of texts and tables".to_owned(),
        ("routes", _) => return "list of tables".to_owned(),
        (_, Holds::Tree) => return "table".to_owned(),
        (_, Holds::Texts) => return "text, or list of texts".to_owned(),
        _ => {}
    }
    let no_such = if holds == Holds::Value { "\"@\"" } else { "@" };
    let refusal = match load(&with(key, no_such, "stdout")) {
        Ok(_) => return "text".to_owned(),
        Err(LoadError::Problems { problems, .. }) => problems[0].detail.clone(),
        Err(error) => panic!("{key}: {error}"),
    };
    for (told, kind) in [
        ("\"30s\"", "duration"),
        ("\"16MiB\"", "size"),
        ("true or false", "`true` or `false`"),
        ("an integer", "integer"),
        ("a number", "number"),
    ] {
        if refusal.contains(told) {
            return kind.to_owned();
        }
    }
    match refusal.strip_prefix("must be ") {
        // Such as "one of `a`, `b`".
        Some(variants) if variants.contains('`') => variants.to_owned(),
        _ => panic!("{key} refuses {no_such}: {refusal}"),
    }
}

/// `key` with this value, and whatever else a configuration needs.
fn with(key: &str, value: &str, kind: &str) -> Inputs {
    let mut set = vec!["mongo.uri=mongodb://h/db".to_owned()];
    set.push("relay.dead_letter={ sink = \"name\", destination = \"d\" }".to_owned());
    if kind == "rabbitmq" {
        set.push(format!("sinks.{NAME}.uri=amqp://h"));
    }
    if kind == "kafka" {
        set.push(format!("sinks.{NAME}.brokers=h"));
    }
    set.push(format!("sinks.{NAME}.kind={kind}"));
    match key.strip_prefix("routes.*.") {
        Some(name) => set.push(format!("routes=[{{ {name} = \"{value}\" }}]").replace(".*", ".x")),
        None => set.push(format!("{}={value}", key.replace('*', NAME))),
    }
    Inputs { set, ..Inputs::default() }
}

/// The sinks that a key is for, where not for all.
fn kinds_of_sink(key: &str) -> Vec<&'static str> {
    let Some(name) = key.strip_prefix("sinks.*.") else { return Vec::new() };
    let value = match name {
        "uri" => "amqp://h",
        "mandatory" | "cloudevents" => "true",
        "declare" => "{ topics = [{ name = \"t\" }], queues = [{ name = \"q\" }] }",
        "properties.*" => return vec!["kafka"],
        "kind" | "timeout" | "key_window" | "allow" => return Vec::new(),
        _ => "x",
    };
    let takes = |kind: &&str| match resolve(&load(&with(key, value, kind)).unwrap()) {
        Ok(_) => true,
        // Of a table a part may be for another kind.
        Err(problems) if name == "declare" => problems.len() == 1,
        Err(_) => false,
    };
    ["rabbitmq", "kafka", "stdout"].into_iter().filter(takes).collect()
}

/// The default of a sink's key; the sample file has no sink that is none of the user's.
fn default_of_sink(key: &str) -> Option<String> {
    let name = key.strip_prefix("sinks.*.").filter(|name| *name != "kind")?;
    let sink: Sink = toml::from_str("kind = \"stdout\"").unwrap();
    let sink = Table::try_from(sink).unwrap();
    Some(sink.get(name)?.to_string())
}

/// What is told to who goes beyond it.
fn bounds(key: &str, holds: Holds) -> Option<String> {
    if matches!(holds, Holds::Tree | Holds::Properties | Holds::Texts) || key.ends_with("uri") {
        return None;
    }
    BEYOND.iter().find_map(|value| {
        let loaded = load(&with(key, value, "stdout")).ok()?;
        let told = resolve(&loaded).err()?;
        let own = told.iter().find(|problem| problem.key == key.replace('*', NAME))?;
        let rule = own.detail.strip_prefix("must be ")?;
        let is_bound = ["between ", "at least ", "above ", "below "];
        // The reason is for who breaks it.
        is_bound
            .iter()
            .any(|word| rule.starts_with(word))
            .then(|| rule.split(": ").next())?
            .map(str::to_owned)
    })
}

/// What the sample file says.
#[derive(Default)]
struct Words {
    /// The comments of each key.
    keys: BTreeMap<&'static str, String>,
    /// The defaults, as they stand there: another test compares them with the code's.
    defaults: BTreeMap<&'static str, String>,
    /// The comments of tables, in their order.
    tables: Vec<(Vec<String>, String)>,
    /// The example of what sinks declare.
    declared: String,
}

impl Words {
    fn of(sample: &str) -> Self {
        let mut found = Self::default();
        let (mut table, mut comment) = (Vec::new(), Vec::new());
        for line in sample.lines() {
            let example = line.strip_prefix('#').unwrap_or(line);
            if line.is_empty() {
                comment.clear();
            } else if let Some(words) = line.strip_prefix("# ") {
                comment.push(words);
            } else if example.starts_with('[') {
                let name = example.trim_matches(['[', ']']);
                table = name.split('.').map(str::to_owned).collect();
                let words = std::mem::take(&mut comment).join(" ");
                if name.ends_with(".properties") {
                    // The names below it are not ours.
                    found.add(&[&table[..], &["x".to_owned()]].concat(), &words);
                } else if keys::holds(&table).is_some() {
                    found.add(&table, &words);
                } else if !words.is_empty() {
                    found.tables.push((table.clone(), words));
                }
                if name == "routes" {
                    table.push("0".to_owned());
                }
            } else if let Some((name, value)) = example.split_once(" = ") {
                let mut path = table.clone();
                path.extend(name.split('.').map(str::to_owned));
                if path == ["routes", "0", "headers"] {
                    path.push("x".to_owned());
                }
                let words = std::mem::take(&mut comment).join(" ");
                let key = found.add(&path, &words);
                if let Some(key) = key.filter(|_| example == line) {
                    found.defaults.insert(key, value.to_owned());
                }
            }
            let is_example = example.len() < line.len() && !line.starts_with("# ");
            if is_example && table.last().is_some_and(|name| name == "declare") {
                writeln!(found.declared, "{example}").unwrap();
            }
        }
        found
    }

    fn add(&mut self, path: &[String], words: &str) -> Option<&'static str> {
        // What stands below a key that is a tree, such as `declare`, is an example.
        let pattern = KEYS.into_iter().map(|(key, _)| key).find(|key| {
            let parts: Vec<&str> = key.split('.').collect();
            parts.len() == path.len()
                && parts.iter().zip(path).all(|(part, name)| *part == "*" || part == name)
        });
        let all = self.keys.entry(pattern?).or_default();
        *all = [all.as_str(), words].join(" ").trim().to_owned();
        pattern
    }
}

/// Words of a comment as Markdown: what may be markup, or is a name, is put in backticks.
fn markdown(words: &str) -> String {
    let mut in_code = false;
    let mut text = Vec::new();
    for word in words.split(' ') {
        let ticks = word.matches('`').count();
        let name = word.trim_matches(|c: char| ",.;:()=…".contains(c));
        let dotted = name.split('.').filter(|part| part.starts_with(|c: char| c.is_alphabetic()));
        let is_name = name.contains(['_', '{', '<', '*']) || dotted.count() > 1;
        match is_name && ticks == 0 && !in_code {
            true => text.push(word.replacen(name, &format!("`{name}`"), 1)),
            false => text.push(word.to_owned()),
        }
        in_code ^= ticks % 2 == 1;
    }
    text.join(" ")
}
