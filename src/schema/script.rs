//! The schema as a mongosh script.

use bson::Bson;

use crate::config::tree::Validator;
use crate::outbox::collections::names;
use crate::schema::index::{self, Index};
use crate::schema::{SchemaOptions, validator};

/// What the script does, with `{{…}}` where the schema goes.
const TEMPLATE: &str = include_str!("setup.template.js");

/// Where a line is broken.
const WIDTH: usize = 100;

/// A script for `mongosh` that makes of a database what [`apply`](super::apply()) makes of it.
///
/// `prefix` and `options` are what it does where its environment (`OUTBOX_PREFIX`,
/// `OUTBOX_RETENTION`, `OUTBOX_VALIDATOR`) says nothing. At the defaults it is the file
/// `schema/mongodb-setup.js`.
pub fn script(prefix: &str, options: &SchemaOptions) -> String {
    let validation = match options.validator {
        Validator::Error => "error",
        Validator::Warn => "warn",
        Validator::Off => "off",
    };
    let retention = humantime::format_duration(options.retention).to_string().replace(' ', "");
    let all = names::ALL.iter().map(|name| Bson::from(*name)).collect();
    let indexes: Vec<String> = index::ALL.iter().map(index_entry).collect();
    fill(
        TEMPLATE,
        [
            ("collections", literal(&Bson::Array(all), 0)),
            ("records", literal(&names::RECORDS.into(), 0)),
            ("validator", literal(&validator::validator().into(), 0)),
            ("indexes", indexes.join("\n")),
            ("level", literal(&validator::LEVEL.into(), 0)),
            ("retention", literal(&retention.into(), 0)),
            ("validation", literal(&validation.into(), 0)),
            ("prefix", literal(&prefix.into(), 0)),
        ],
    )
}

/// A template with its places filled, in this order: what a user wrote, such as the prefix,
/// comes last.
pub(super) fn fill<const N: usize>(template: &str, parts: [(&str, String); N]) -> String {
    parts.into_iter().fold(template.to_owned(), |script, (name, text)| {
        script.replace(&format!("{{{{{name}}}}}"), &text)
    })
}

fn index_entry(index: &Index) -> String {
    let mut lines: Vec<String> = index.serves.iter().map(|line| format!("  // {line}")).collect();
    lines.push("  {".into());
    lines.push(format!("    name: {},", literal(&index.name.into(), 4)));
    lines.push(format!("    key: {},", literal(&index.key().into(), 4)));
    let partial = literal(&index.partial.filter().into(), 4);
    lines.push(format!("    partialFilterExpression: {partial},"));
    if index.unique {
        lines.push("    unique: true,".into());
    }
    if index.expires {
        lines.push("    expireAfterSeconds: seconds(retention),".into());
    }
    lines.push("  },".into());
    lines.join("\n")
}

/// A value as a JavaScript literal: on one line if that is short enough, else broken.
pub(super) fn literal(value: &Bson, indent: usize) -> String {
    let (open, entries, close) = match value {
        Bson::Document(fields) => {
            let entry = |(name, value): (&String, &Bson)| {
                format!("{}: {}", property(name), literal(value, indent + 2))
            };
            ("{", fields.iter().map(entry).collect::<Vec<_>>(), "}")
        }
        Bson::Array(items) => {
            ("[", items.iter().map(|item| literal(item, indent + 2)).collect(), "]")
        }
        other => return other.clone().into_relaxed_extjson().to_string(),
    };
    let inside = if open == "{" { " " } else { "" };
    let line = format!("{open}{inside}{}{inside}{close}", entries.join(", "));
    if !line.contains('\n') && indent + line.len() <= WIDTH {
        return line;
    }
    let margin = " ".repeat(indent);
    let lines: Vec<String> = entries.iter().map(|entry| format!("{margin}  {entry},\n")).collect();
    format!("{open}\n{}{margin}{close}", lines.concat())
}

fn property(name: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '$';
    match name.chars().all(plain) && !name.starts_with(|c: char| c.is_ascii_digit()) {
        true => name.to_owned(),
        false => Bson::from(name).into_relaxed_extjson().to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/schema/mongodb-setup.js");

    /// With `POSTRIDER_BLESS=1` the file is written anew.
    #[test]
    fn the_file_in_the_repository_is_the_script_at_the_defaults() {
        let expected = script("", &SchemaOptions::default());
        if std::env::var_os("POSTRIDER_BLESS").is_some() {
            std::fs::write(FILE, &expected).unwrap();
        }

        let file = std::fs::read_to_string(FILE).unwrap();

        assert!(file == expected, "{FILE} is out of date: POSTRIDER_BLESS=1 writes it anew");
    }

    #[test]
    fn every_place_in_the_template_is_filled() {
        let script = script("app_", &SchemaOptions::default());

        assert!(!script.contains("{{"), "{script}");
        assert!(script.contains(r#"process.env.OUTBOX_PREFIX ?? "app_";"#));
    }
}
