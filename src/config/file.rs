//! The configuration file: its values, and the line of each.

use std::collections::BTreeMap;
use std::path::Path;

use toml::Table;
use toml::de::{DeTable, DeValue};

use crate::config::load::LoadError;
use crate::config::problem::Origin;

/// By path, with positions in lists as names: the line of every key, table and item of a list.
pub type Lines = BTreeMap<Vec<String>, Origin>;

/// Of a number with too many digits, whose type the parser has no name for.
pub(super) const BEYOND_INTEGERS: &str = "is beyond the integers of TOML, which have 64 bits";

/// Reads the file.
///
/// # Errors
///
/// It cannot be read, or is not TOML. Its text is not quoted: it may hold a secret.
pub fn read(path: &Path) -> Result<(Table, Lines), LoadError> {
    let text = std::fs::read_to_string(path)
        .map_err(|source| LoadError::File { path: path.to_owned(), source })?;
    let wrong = |error: toml::de::Error| {
        let start = error.span().map_or(0, |span| span.start);
        let before = text.get(..start).unwrap_or("");
        let detail = if is_yaml(path, &text) {
            "looks like YAML; Postrider reads TOML"
        } else if error.message().ends_with("expected any valid TOML value") {
            BEYOND_INTEGERS
        } else {
            error.message()
        };
        LoadError::Syntax {
            path: path.to_owned(),
            line: before.matches('\n').count() + 1,
            column: before.chars().rev().take_while(|character| *character != '\n').count() + 1,
            detail: detail.to_owned(),
        }
    };
    let spanned = DeTable::parse(&text).map_err(wrong)?;
    let table = text.parse::<Table>().map_err(wrong)?;
    let mut lines = Reader { path, text: &text, lines: Lines::new() };
    lines.table(spanned.get_ref(), &mut Vec::new());
    Ok((table, lines.lines))
}

/// Whether a file that is not TOML has YAML's form: a key and a colon, and no table of TOML's.
fn is_yaml(path: &Path, text: &str) -> bool {
    let by_name = path.extension().is_some_and(|end| end == "yaml" || end == "yml");
    let is_key = |line: &str| {
        let name = line.trim_start_matches(['-', ' ']).split(':').next().unwrap_or_default();
        let is_word = |c: char| c.is_alphanumeric() || "_.-".contains(c);
        !name.is_empty() && name.chars().all(is_word) && line.contains(':')
    };
    let mut lines = text.lines().filter(|line| !line.trim().is_empty() && !line.starts_with('#'));
    by_name || lines.next().is_some_and(|first| first == "---" || is_key(first))
}

struct Reader<'a> {
    path: &'a Path,
    text: &'a str,
    lines: Lines,
}

impl Reader<'_> {
    fn table(&mut self, table: &DeTable<'_>, path: &mut Vec<String>) {
        for (name, value) in table {
            path.push(name.get_ref().to_string());
            self.note(path, name.span().start);
            self.value(value.get_ref(), path);
            path.pop();
        }
    }

    fn value(&mut self, value: &DeValue<'_>, path: &mut Vec<String>) {
        match value {
            DeValue::Table(table) => self.table(table, path),
            DeValue::Array(items) => {
                for (at, item) in items.iter().enumerate() {
                    path.push(at.to_string());
                    self.note(path, item.span().start);
                    self.value(item.get_ref(), path);
                    path.pop();
                }
            }
            _ => {}
        }
    }

    fn note(&mut self, path: &[String], at: usize) {
        let line = self.text.get(..at).unwrap_or("").matches('\n').count() + 1;
        let origin = Origin::File(self.path.to_owned(), line);
        // A table with several headers is where the first one is.
        self.lines.entry(path.to_vec()).or_insert(origin);
    }
}
