//! Files that follow from the types: docs/configuration.md, config/postrider.toml, the JSON Schema for
//! editors, and the chart's schema of its values. `POSTRIDER_BLESS=1 cargo test --lib` writes them.

use std::fmt::Write;

use serde_json::{Map, Value as Json, json};
use toml::{Table, Value};

use super::keys::{Key, KeyForm, Section, description, keys, schema};
use super::sections::Config;
use crate::blessed::compare;
use crate::sink::config::DeliveryConfig;
use crate::sink::configured::ConfiguredSink;
use crate::sink::kafka::{RESERVED, Reserved};
use crate::sink::registry::KindConfig;

const TEMPLATE: &str = include_str!("reference.template.md");

/// The width of a comment in the sample.
const COMMENT_COLUMNS: usize = 118;

/// The sinks of the sample, by kind.
const SAMPLE_SINKS: [(&str, &str); 4] =
    [("rabbitmq", "orders"), ("kafka", "stream"), ("file", "archive"), ("stdout", "console")];

#[test]
fn reference_page_follows_from_the_types() {
    compare("docs/configuration.md", &page());
}

#[test]
fn sample_follows_from_the_types() {
    compare("config/postrider.toml", &sample());
}

#[test]
fn json_schema_follows_from_the_types() {
    compare("schema/config.schema.json", &pretty(&published()));
}

#[test]
fn schema_of_the_charts_values_holds_that_of_the_configuration() {
    let path = "helm/postrider/values.schema.json";
    let text = std::fs::read_to_string(path).unwrap();
    let mut values: Json = serde_json::from_str(&text).unwrap();
    let mut config = published();
    config["properties"].as_object_mut().unwrap().remove("$schema");
    for keyword in ["$schema", "title"] {
        config.as_object_mut().unwrap().remove(keyword);
    }
    // The names of sinks become a part of the names of environment variables.
    config["properties"]["sinks"]["propertyNames"] = json!({
        "description": "Letters, digits, - and single _",
        "pattern": "^[A-Za-z0-9]+([_-][A-Za-z0-9]+)*$",
    });
    // The chart's own messages say more.
    remove_required(&mut config);
    values["properties"]["config"] = config;
    compare(path, &pretty(&values));
}

fn remove_required(schema: &mut Json) {
    match schema {
        Json::Object(object) => {
            object.retain(|keyword, list| keyword != "required" || !list.is_array());
            object.values_mut().for_each(remove_required);
        }
        Json::Array(items) => items.iter_mut().for_each(remove_required),
        _ => {}
    }
}

fn pretty(value: &Json) -> String {
    serde_json::to_string_pretty(value).unwrap() + "\n"
}

/// The schema as editors and Helm need it: a text with `${VAR}` is allowed in place of any value that is not
/// a table or a list, and our own keywords are left out.
fn published() -> Json {
    let mut schema = schema();
    schema["title"] = "Configuration of Postrider".into();
    publish(&mut schema, false);
    schema["properties"]["$schema"] = json!({
        "type": "string",
        "description": "The JSON Schema of this file. Postrider does not read it.",
    });
    schema
}

/// `is_item`: whether it is within a list. Elsewhere a required key may come from the environment.
fn publish(schema: &mut Json, is_item: bool) {
    match schema {
        Json::Object(object) => {
            object.retain(|keyword, _| {
                !keyword.starts_with("x-")
                    && keyword != "format"
                    && (keyword != "required" || is_item)
            });
            if object.get("description").is_some_and(Json::is_string) {
                let text = description(object);
                object.insert("description".to_owned(), text.into());
            }
            for (keyword, below) in object.iter_mut() {
                match (keyword.as_str(), below) {
                    ("default" | "examples" | "const" | "enum", _) => {}
                    ("properties", Json::Object(properties)) => {
                        properties.values_mut().for_each(|one| publish(one, is_item));
                    }
                    (keyword, below) => publish(below, is_item || keyword == "items"),
                }
            }
            let is_enum = object
                .get("oneOf")
                .and_then(Json::as_array)
                .is_some_and(|all| all.iter().all(|one| one["const"].is_string()));
            let kind = object.get("type").and_then(Json::as_str).unwrap_or_default().to_owned();
            let is_strict = ["integer", "number", "boolean"].contains(&kind.as_str())
                || object.contains_key("pattern")
                || object.contains_key("enum")
                || is_enum;
            if is_strict {
                let mut outer = Map::new();
                for keyword in ["description", "default"] {
                    outer.extend(object.remove(keyword).map(|own| (keyword.to_owned(), own)));
                }
                let variable = json!({ "type": "string", "pattern": "\\$\\{" });
                outer.insert("anyOf".to_owned(), json!([Json::Object(object.clone()), variable]));
                *object = outer;
            }
        }
        Json::Array(items) => items.iter_mut().for_each(|one| publish(one, is_item)),
        _ => {}
    }
}

/// The default of a key, as TOML; `None` where it has none.
fn default_of(key: &Key) -> Option<Value> {
    let table = match key.kinds.first() {
        None => Table::try_from(Config::default()).unwrap(),
        Some(kind) => {
            let kind = ConfiguredSink::read(kind, Table::new()).unwrap();
            Table::try_from(kind).unwrap()
        }
    };
    let path = if key.kinds.is_empty() { &key.pattern[..] } else { &key.pattern[2..] };
    let (first, below) = path.split_first()?;
    below.iter().try_fold(table.get(first)?, |value, name| value.get(name)).cloned()
}

/// The example of a key, as TOML.
fn example_of(key: &Key) -> Option<Value> {
    let example = key.schema.get("examples")?.as_array()?.first()?.clone();
    serde_json::from_value(example).ok()
}

/// Text of a doc comment as words: without the backticks that Markdown needs.
fn plain(text: &str) -> String {
    text.replace('`', "")
}

fn comment(page: &mut String, text: &str) {
    let mut line = String::new();
    for word in plain(text).split(' ') {
        if !line.is_empty() && line.chars().count() + word.chars().count() + 1 > COMMENT_COLUMNS {
            writeln!(page, "# {line}").unwrap();
            line.clear();
        }
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
    }
    if !line.is_empty() {
        writeln!(page, "# {line}").unwrap();
    }
}

fn sample() -> String {
    let mut page = "# Every key at its default. A line `#key = …` is an example of a key without a default.\n\
                    # Generated from the types by `POSTRIDER_BLESS=1 cargo test --lib`.\n#\n\
                    # Environment variables POSTRIDER__SECTION__KEY (…_FILE reads the value from a file) override this file, and\n\
                    # `--set section.key=value` overrides both. `postrider config print` shows what is in force, and why.\n\
                    # Durations and sizes are text with a unit: \"500ms\", \"30s\", \"1m30s\", \"7d\"; \"16MiB\". No duration is above 100\n\
                    # years. ${VAR} and ${VAR:-default} in a text are replaced by environment variables.\n"
        .to_owned();
    for section in &keys().sections {
        let is_sink = section.pattern.first().is_some_and(|first| first == "sinks");
        if is_sink {
            continue;
        }
        write_section(&mut page, section);
        if section.pattern == ["partitions"] {
            sample_sinks(&mut page);
        }
    }
    page
}

fn write_section(page: &mut String, section: &Section) {
    let mut path = section.pattern.clone();
    let named = [&path[..], &["*".to_owned()]].concat();
    let is_of_tables =
        |key: &&Key| key.pattern.len() == named.len() + 1 && key.pattern.starts_with(&named);
    if !is_list_section(section) && keys().all.iter().any(|key| is_of_tables(&key)) {
        path = named;
    }
    let is_own = |key: &&Key| {
        let depth = path.len() + usize::from(is_list_section(section));
        key.pattern.len() == depth + 1
            && key.pattern.starts_with(&path)
            && key.is_of_item == is_list_section(section)
    };
    let own: Vec<&Key> = keys().all.iter().filter(is_own).collect();
    if own.is_empty() {
        return;
    }
    let has_default = own.iter().any(|key| default_of(key).is_some());
    let off =
        if has_default && !section.is_optional && !is_list_section(section) { "" } else { "#" };
    page.push('\n');
    comment(page, &section.description);
    let with_name = path.iter().map(|part| if part == "*" { "mongo" } else { part }.to_owned());
    let name = super::keys::dotted(&with_name.collect::<Vec<_>>());
    if is_list_section(section) {
        writeln!(page, "{off}[[{name}]]").unwrap();
    } else {
        writeln!(page, "{off}[{name}]").unwrap();
    }
    for key in own {
        write_key(page, key, off);
    }
}

fn write_key(page: &mut String, key: &Key, off: &str) {
    if key.form == KeyForm::Dotted {
        return;
    }
    comment(page, &description(&key.schema));
    let is_empty = |value: &Value| value.as_array().is_some_and(Vec::is_empty);
    let has_example = key.schema.contains_key("examples");
    let default = default_of(key).filter(|it| !(key.is_of_item || is_empty(it) && has_example));
    let name = key.pattern.last().unwrap();
    if let Some(default) = default {
        writeln!(page, "{off}{name} = {default}").unwrap();
        return;
    }
    let example = example_of(key).unwrap_or_else(|| panic!("{} needs an example", key.name()));
    // That of a key with a free name is a table with one.
    let (name, example) = match (name.as_str(), example) {
        ("*", Value::Table(one)) => one.into_iter().next().unwrap(),
        (name, example) => (name.to_owned(), example),
    };
    writeln!(page, "#{name} = {example}").unwrap();
}

fn is_list_section(section: &Section) -> bool {
    super::keys::is_list(&section.pattern)
}

fn sample_sinks(page: &mut String) {
    let sinks = keys().sections.iter().find(|section| section.pattern == ["sinks"]).unwrap();
    page.push('\n');
    comment(page, &sinks.description);
    for (kind, name) in SAMPLE_SINKS {
        writeln!(page, "#[sinks.{name}]\n#kind = \"{kind}\"").unwrap();
        let own = keys().all.iter().filter(|key| key.kinds.iter().any(|own| own == kind));
        for key in own.clone().filter(|key| key.pattern.len() == 3 && key.pattern[2] != "kind") {
            let is_common = is_delivery(key);
            if is_common && kind != "rabbitmq" {
                continue;
            }
            write_key(page, key, "#");
        }
        for section in keys().sections.iter().filter(|section| {
            section.pattern.len() == 3
                && section.pattern[0] == "sinks"
                && section.kind.as_deref() == Some(kind)
        }) {
            comment(page, &section.description);
            writeln!(page, "#[sinks.{name}.{}]", section.pattern[2]).unwrap();
            for key in own.clone().filter(|key| {
                key.pattern.len() > 3
                    && key.pattern.starts_with(&section.pattern)
                    && !key.is_of_item
            }) {
                if key.form == KeyForm::Dotted {
                    let example = key.schema["examples"][0].as_object().unwrap();
                    for (property, value) in example {
                        writeln!(page, "#{property} = {value}").unwrap();
                    }
                } else {
                    write_key(page, key, "#");
                }
            }
        }
        page.push('\n');
    }
    page.truncate(page.trim_end().len());
    page.push('\n');
}

/// Whether a sink's key is one of every kind.
fn is_delivery(key: &Key) -> bool {
    let delivery = Table::try_from(DeliveryConfig::default()).unwrap();
    key.kinds.len() > 1 && delivery.contains_key(key.pattern.last().unwrap())
}

fn page() -> String {
    let mut page = TEMPLATE.to_owned();
    let mut last = String::new();
    for section in &keys().sections {
        let top = &section.pattern[0];
        if *top == "sinks" {
            if *top != last {
                page_of_sinks(&mut page, section);
            }
        } else {
            if section.pattern.len() == 1 {
                let name = if is_list_section(section) {
                    format!("[[{top}]]")
                } else {
                    format!("[{top}]")
                };
                write!(page, "## {name}\n\n{}\n\n", section.description).unwrap();
            } else if section.pattern.last().unwrap() != "*" {
                write!(page, "### [{}]\n\n{}\n\n", section.pattern.join("."), section.description)
                    .unwrap();
            }
            let own = keys().all.iter().filter(|key| is_in(key, section));
            for key in own {
                page.push_str(&entry(key));
            }
        }
        last.clone_from(top);
    }
    page.truncate(page.trim_end().len());
    page.push('\n');
    page
}

/// Whether a key is in this section, and in none below it.
fn is_in(key: &Key, section: &Section) -> bool {
    let longest = keys().sections.iter().filter(|other| key.pattern.starts_with(&other.pattern));
    longest.map(|other| other.pattern.len()).max() == Some(section.pattern.len())
        && key.pattern.starts_with(&section.pattern)
}

fn page_of_sinks(page: &mut String, section: &Section) {
    write!(page, "## [sinks.NAME]\n\n{}\n\n", section.description).unwrap();
    let kinds = KindConfig::KINDS.iter().map(|kind| format!("`{kind}`")).collect::<Vec<_>>();
    write!(
        page,
        "### sinks.NAME.kind\n\n{}; required · `POSTRIDER__SINKS__NAME__KIND`\n\nThe kind of broker.\n\n",
        kinds.join(" or ")
    )
    .unwrap();
    let of_sinks = || {
        keys()
            .all
            .iter()
            .filter(|key| key.pattern[0] == "sinks" && key.pattern.last().unwrap() != "kind")
    };
    for key in of_sinks().filter(|key| is_delivery(key)) {
        page.push_str(&entry(key));
    }
    for kind in KindConfig::KINDS {
        let own =
            of_sinks().filter(|key| !is_delivery(key) && key.kinds.iter().any(|own| own == kind));
        let about = schema()["properties"]["sinks"]["additionalProperties"]["oneOf"]
            .as_array()
            .unwrap()
            .iter()
            .find(|one| one["properties"]["kind"]["const"] == *kind)
            .map(|one| description(one.as_object().unwrap()))
            .unwrap();
        write!(page, "### kind = \"{kind}\"\n\n{about}\n\n").unwrap();
        for key in own {
            page.push_str(&entry(key));
        }
    }
}

fn entry(key: &Key) -> String {
    let mut facts = vec![kind_of(key)];
    match default_of(key).filter(|_| !key.is_of_item && key.form != KeyForm::Dotted) {
        Some(default) => facts.push(format!("default `{default}`")),
        None if description(&key.schema).contains("Required.") => facts.push("required".to_owned()),
        None => {}
    }
    facts.extend(key.bounds());
    let mut entry = format!(
        "### {}\n\n{} · {}\n\n{}\n\n",
        shown(key),
        facts.join("; "),
        variable(key),
        description(&key.schema)
    );
    if key.form != KeyForm::Dotted
        && let Some(example) = example_of(key).filter(|_| {
            !key.is_of_item && !key.pattern.contains(&"*".to_owned()) || key.kinds.len() == 1
        })
    {
        let name = key.pattern.last().unwrap().as_str();
        if name != "*" {
            write!(entry, "For example `{name} = {example}`.\n\n").unwrap();
        }
    }
    if key.form == KeyForm::Dotted && key.pattern.len() == 4 {
        entry.push_str(&reserved_properties());
    }
    entry
}

/// The properties of librdkafka that cannot be set, as the sink refuses them.
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

/// The key as an operator writes it.
fn shown(key: &Key) -> String {
    let name = key.name();
    match keys().all.iter().find(|list| {
        name.starts_with(&format!("{}.*", list.name()))
            && key.is_of_item
            && super::keys::is_list(&list.pattern)
    }) {
        Some(list) => {
            let list = list.name();
            format!(
                "{}[]{}",
                list.replace('*', "NAME"),
                name[list.len() + 2..].replace('*', "NAME")
            )
        }
        None => name.replace('*', "NAME"),
    }
}

fn variable(key: &Key) -> String {
    if key.is_of_item {
        let list = keys().all.iter().find(|list| {
            super::keys::is_list(&list.pattern) && key.pattern.starts_with(&list.pattern)
        });
        return format!(
            "in the environment only as a whole: `{}`",
            variable_name(&list.unwrap().name())
        );
    }
    format!("`{}`", variable_name(&key.name()))
}

fn variable_name(key: &str) -> String {
    format!("POSTRIDER__{}", key.to_uppercase().replace('.', "__").replace('*', "NAME"))
}

/// What the key takes.
fn kind_of(key: &Key) -> String {
    let schema = &key.schema;
    let words: Vec<String> = ["oneOf", "anyOf"]
        .iter()
        .filter_map(|name| schema.get(*name)?.as_array())
        .flatten()
        .filter_map(|one| Some(format!("`{}`", one["const"].as_str()?)))
        .collect();
    let listed = schema.get("enum").and_then(Json::as_array).into_iter().flatten();
    let words: Vec<String> = words
        .into_iter()
        .chain(listed.filter_map(|one| Some(format!("`{}`", one.as_str()?))))
        .collect();
    if !words.is_empty() {
        return words.join(" or ");
    }
    if key.form == KeyForm::TextOrList {
        return "text, or list of texts".to_owned();
    }
    match (schema.get("x-unit").and_then(Json::as_str), schema.get("type").and_then(Json::as_str)) {
        (Some(unit), _) => unit.to_owned(),
        (_, Some("string")) => "text".to_owned(),
        (_, Some("boolean")) => "`true` or `false`".to_owned(),
        (_, Some("array")) if schema["items"]["type"] == "string" => "list of texts".to_owned(),
        (_, Some("array")) if schema["items"].get("anyOf").is_some() => {
            "list of texts and tables".to_owned()
        }
        (_, Some("array")) => "list of tables".to_owned(),
        (_, Some("object")) => {
            if key.form == KeyForm::Dotted {
                "text".to_owned()
            } else {
                "table".to_owned()
            }
        }
        (_, Some(other)) => other.to_owned(),
        (None, None) => panic!("{} has no type: {schema:?}", key.name()),
    }
}
