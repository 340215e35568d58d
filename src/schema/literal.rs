//! Formats values and templates of the scripts.

use bson::Bson;

use crate::schema::index::{self, Expiry, Index};

/// Code that the scripts for collections share.
pub(super) const COMMON: &str = include_str!("common.js");

/// Maximum length of a line, in characters.
const MAX_LINE_CHARS: usize = 100;

/// Fills a template, in this order: values of the user, such as the prefix, come last.
pub(super) fn fill<const N: usize>(template: &str, parts: [(&str, String); N]) -> String {
    parts.into_iter().fold(template.to_owned(), |script, (name, text)| {
        script.replace(&format!("{{{{{name}}}}}"), &text)
    })
}

/// Returns an entry of a list of indexes, or of an object if it has a property's name.
pub(super) fn index_entry(property: &str, index: &Index) -> String {
    let mut lines: Vec<String> = index.serves.iter().map(|line| format!("  // {line}")).collect();
    lines.push(format!("  {property}{{"));
    lines.push(format!("    name: {},", literal(&index.name.into(), 4)));
    lines.push(format!("    key: {},", literal(&index.key().into(), 4)));
    if let Some(partial) = index.partial {
        let partial = literal(&partial.filter().into(), 4);
        lines.push(format!("    partialFilterExpression: {partial},"));
    }
    if index.unique {
        lines.push("    unique: true,".into());
    }
    match index.expiry {
        Some(Expiry::Retention) => {
            lines.push("    expireAfterSeconds: seconds(retention),".into());
            lines.push("    adjusted: true,".into());
        }
        Some(Expiry::AtDate) => lines.push("    expireAfterSeconds: 0,".into()),
        None => {}
    }
    if let Some(rival) = index.rival {
        let key = literal(&index::document(rival.keys).into(), 4);
        let setting = literal(&rival.setting.into(), 4);
        lines.push(format!("    excludes: {{ key: {key}, setting: {setting} }},"));
    }
    lines.push("  },".into());
    lines.join("\n")
}

/// Formats a value as a JavaScript literal, on one line if short enough.
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
    if !line.contains('\n') && indent + line.len() <= MAX_LINE_CHARS {
        return line;
    }
    let margin = " ".repeat(indent);
    let lines: Vec<String> = entries.iter().map(|entry| format!("{margin}  {entry},\n")).collect();
    format!("{open}\n{}{margin}{close}", lines.concat())
}

fn property(name: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '$';
    if name.chars().all(plain) && !name.starts_with(|c: char| c.is_ascii_digit()) {
        name.to_owned()
    } else {
        Bson::from(name).into_relaxed_extjson().to_string()
    }
}
