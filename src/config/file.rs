//! The configuration file in TOML, YAML or JSON: its values, and the line of each.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use postrider_settings::files::{io_text, read_text};
use postrider_settings::quoted;
use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_saphyr::Spanned;
use toml::de::{DeTable, DeValue};
use toml::{Table, Value};

use crate::config::keys::dotted;
use crate::config::problem::Origin;

/// The line of every key, table and list item, by path; positions in lists are names.
pub type Lines = BTreeMap<Vec<String>, Origin>;

/// The error for an integer with too many digits.
pub(super) const BEYOND_INTEGERS: &str = "must be an integer of at most 64 bits";

/// A configuration file that cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// The operating system does not read it.
    #[error(
        "{}: cannot read the configuration file: {}; check --config or POSTRIDER_CONFIG",
        path.display(),
        io_text(cause)
    )]
    Read {
        /// The file.
        path: PathBuf,
        /// Why not.
        cause: std::io::Error,
    },
    /// It is not TOML, YAML or JSON. (The line itself is not quoted: it may hold a secret.)
    #[error("{}:{line}:{column}: {detail}", path.display())]
    Syntax {
        /// The file.
        path: PathBuf,
        /// From 1.
        line: usize,
        /// From 1.
        column: usize,
        /// The parser's words.
        detail: String,
    },
}

/// The language of a file, by the end of its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    Toml,
    Yaml,
    Json,
}

impl Format {
    fn of(path: &Path) -> Self {
        let end = path.extension().unwrap_or_default().to_ascii_lowercase();
        if end == "yaml" || end == "yml" {
            Self::Yaml
        } else if end == "json" {
            Self::Json
        } else {
            Self::Toml
        }
    }
}

/// Reads the file: YAML where its name ends in `.yaml` or `.yml`, JSON where it ends in `.json`, else TOML.
///
/// # Errors
///
/// [`FileError`]: the file cannot be read, or has another language. Its text is not quoted: it may hold a
/// secret.
pub fn read(path: &Path) -> Result<(Table, Lines), FileError> {
    let text = read_text(path).map_err(|cause| FileError::Read { path: path.to_owned(), cause })?;
    let text = text.as_str();
    match Format::of(path) {
        Format::Toml => read_toml(path, text),
        Format::Yaml => read_yaml(path, text, |line| {
            wrong_indentation(text, line).unwrap_or_else(|| "invalid YAML".to_owned())
        }),
        Format::Json => {
            // YAML's parser takes JSON and more, and knows the lines.
            if let Err(error) = serde_json::from_str::<serde::de::IgnoredAny>(text) {
                let detail = error.to_string();
                let detail = detail.split(" at line ").next().unwrap_or_default();
                let detail = format!("invalid JSON: {detail}");
                return Err(syntax(path, error.line(), error.column(), detail));
            }
            let unread = "cannot read this JSON: remove control characters, lone surrogates, \
                          numbers above 1.8e308, keys above 1024 characters, or deep nesting";
            read_yaml(path, text, |_| unread.to_owned())
        }
    }
}

fn read_toml(path: &Path, text: &str) -> Result<(Table, Lines), FileError> {
    let wrong = |error: toml::de::Error| {
        let span = error.span().unwrap_or_default();
        let start = span.start;
        let before = text.get(..start).unwrap_or("");
        let detail = if resembles_yaml(text) {
            "looks like YAML; rename the file to .yaml, or write TOML".to_owned()
        } else if error.message().ends_with("expected any valid TOML value") {
            BEYOND_INTEGERS.to_owned()
        } else if error.message() == "duplicate key" {
            there_twice(text.get(span).unwrap_or_default())
        } else {
            format!("invalid TOML: {}", error.message())
        };
        let column = before.chars().rev().take_while(|character| *character != '\n').count() + 1;
        syntax(path, line_at(text, start), column, detail)
    };
    let spanned = DeTable::parse(text).map_err(wrong)?;
    let table = text.parse::<Table>().map_err(wrong)?;
    let mut lines = Reader { path, lines: Lines::new() };
    lines.toml_table(spanned.get_ref(), text, &mut Vec::new());
    Ok((table, lines.lines))
}

/// Whether text that is not TOML begins as YAML does: with a key and a colon.
fn resembles_yaml(text: &str) -> bool {
    let is_key = |line: &str| {
        let name = line.trim_start_matches(['-', ' ']).split(':').next().unwrap_or_default();
        let is_word = |c: char| c.is_alphanumeric() || "_.-".contains(c);
        !name.is_empty() && name.chars().all(is_word) && line.contains(':')
    };
    let mut lines = text.lines().filter(|line| !line.trim().is_empty() && !line.starts_with('#'));
    lines.next().is_some_and(|first| first == "---" || is_key(first))
}

/// `unread` returns the error for what the parser refuses in a line: its own words may quote the text.
fn read_yaml(
    path: &Path,
    text: &str,
    unread: impl FnOnce(usize) -> String,
) -> Result<(Table, Lines), FileError> {
    let options = serde_saphyr::options! { with_snippet: false };
    let node = serde_saphyr::from_str_with_options::<Option<Node>>(text, options);
    let node = node.map_err(|error| {
        let location = error.location();
        let (line, column) = location.map_or((1, 1), |at| (at.line(), at.column()));
        let words = own_words(&error).unwrap_or_else(|| unread(line as usize));
        syntax(path, line as usize, column as usize, words)
    })?;
    let mut reader = Reader { path, lines: Lines::new() };
    match node {
        None | Some(Node::Null) => Ok((Table::new(), Lines::new())),
        Some(Node::Table(entries)) => {
            let table = reader.yaml_table(entries, &mut Vec::new())?;
            Ok((table, reader.lines))
        }
        Some(_) => Err(syntax(path, 1, 1, "must be a table of sections at the top level")),
    }
}

fn syntax(path: &Path, line: usize, column: usize, detail: impl Into<String>) -> FileError {
    let (line, column) = (line.max(1), column.max(1));
    FileError::Syntax { path: path.to_owned(), line, column, detail: detail.into() }
}

/// The words for our own [`Node`]'s errors and for a key that is there twice, which quote no value.
fn own_words(error: &serde_saphyr::Error) -> Option<String> {
    if let serde_saphyr::Error::DuplicateMappingKey { key: Some(key), .. } = error {
        return Some(there_twice(&quoted(key)));
    }
    let text = error.to_string();
    let own = [BEYOND_INTEGERS, NOT_TEXT_KEY];
    own.into_iter().find(|own| text.contains(own)).map(str::to_owned)
}

/// Names a tab, or an indentation that matches no level, as the cause of an error in this line of YAML.
fn wrong_indentation(text: &str, line: usize) -> Option<String> {
    let lines: Vec<&str> = text.lines().collect();
    let indent = |line: &str| line.len() - line.trim_start_matches([' ', '\t']).len();
    let of = |line: usize| lines.get(line.checked_sub(1)?).copied();
    // The parser may report the line after it.
    for at in [line, line.saturating_sub(1)] {
        if of(at).is_some_and(|line| line[..indent(line)].contains('\t')) {
            return Some(format!(
                "line {at} begins with a tab, and YAML permits only spaces there; replace it"
            ));
        }
    }
    let width = indent(of(line)?);
    let (mut levels, mut opens) = (Vec::new(), false);
    for earlier in &lines[..line - 1] {
        let content = earlier.trim();
        if content.is_empty() || content.starts_with('#') {
            continue;
        }
        let level = indent(earlier);
        levels.retain(|one| *one < level);
        levels.push(level);
        if let Some(item) = content.strip_prefix('-').filter(|item| item.starts_with(' ')) {
            levels.push(level + 1 + indent(item));
        }
        opens = content.ends_with([':', '|', '>', '-', ',', '[', '{']);
    }
    let is_deeper = levels.last().is_none_or(|last| width > *last);
    if levels.contains(&width) || (is_deeper && opens) {
        return None;
    }
    let levels: Vec<String> = levels.iter().map(usize::to_string).collect();
    Some(format!(
        "the indentation ({width}) matches no enclosing level ({}); align it with the keys of its \
         section",
        levels.join(" or ")
    ))
}

fn there_twice(key: &str) -> String {
    format!("the key {key} appears twice; remove one of the two")
}

/// The error for a key of YAML that is a number, a list or a table.
const NOT_TEXT_KEY: &str = "a key must be text";

/// A value of YAML, with the lines of keys and list items.
#[derive(Debug)]
enum Node {
    Null,
    Value(Value),
    List(Vec<Spanned<Node>>),
    Table(Vec<(Spanned<String>, Node)>),
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(input: D) -> Result<Self, D::Error> {
        input.deserialize_any(NodeVisitor)
    }
}

struct NodeVisitor;

impl<'de> Visitor<'de> for NodeVisitor {
    type Value = Node;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E>(self) -> Result<Node, E> {
        Ok(Node::Null)
    }

    fn visit_none<E>(self) -> Result<Node, E> {
        Ok(Node::Null)
    }

    fn visit_some<D: Deserializer<'de>>(self, input: D) -> Result<Node, D::Error> {
        Node::deserialize(input)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Node, E> {
        Ok(Node::Value(value.into()))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Node, E> {
        Ok(Node::Value(value.into()))
    }

    fn visit_u64<E: serde::de::Error>(self, value: u64) -> Result<Node, E> {
        let value = i64::try_from(value).map_err(|_| E::custom(BEYOND_INTEGERS))?;
        Ok(Node::Value(value.into()))
    }

    fn visit_i128<E: serde::de::Error>(self, _: i128) -> Result<Node, E> {
        Err(E::custom(BEYOND_INTEGERS))
    }

    fn visit_u128<E: serde::de::Error>(self, _: u128) -> Result<Node, E> {
        Err(E::custom(BEYOND_INTEGERS))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Node, E> {
        Ok(Node::Value(value.into()))
    }

    fn visit_str<E>(self, text: &str) -> Result<Node, E> {
        Ok(Node::Value(text.into()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Node, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element()? {
            list.push(item);
        }
        Ok(Node::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Node, A::Error> {
        let mut table = Vec::new();
        while let Some(entry) = entries.next_entry()? {
            table.push(entry);
        }
        Ok(Node::Table(table))
    }
}

struct Reader<'a> {
    path: &'a Path,
    lines: Lines,
}

impl Reader<'_> {
    fn toml_table(&mut self, table: &DeTable<'_>, text: &str, path: &mut Vec<String>) {
        for (name, value) in table {
            path.push(name.get_ref().to_string());
            self.note(path, line_at(text, name.span().start));
            self.toml_value(value.get_ref(), text, path);
            path.pop();
        }
    }

    fn toml_value(&mut self, value: &DeValue<'_>, text: &str, path: &mut Vec<String>) {
        match value {
            DeValue::Table(table) => self.toml_table(table, text, path),
            DeValue::Array(items) => {
                for (at, item) in items.iter().enumerate() {
                    path.push(at.to_string());
                    self.note(path, line_at(text, item.span().start));
                    self.toml_value(item.get_ref(), text, path);
                    path.pop();
                }
            }
            _ => {}
        }
    }

    /// Null is as if the key were not there: so is a section whose keys are all commented out.
    fn yaml_table(
        &mut self,
        entries: Vec<(Spanned<String>, Node)>,
        path: &mut Vec<String>,
    ) -> Result<Table, FileError> {
        let mut table = Table::new();
        for (name, node) in entries {
            path.push(name.value.clone());
            self.note(path, name.referenced.line() as usize);
            if let Some(value) = self.yaml_value(node, path)? {
                table.insert(name.value, value);
            }
            path.pop();
        }
        Ok(table)
    }

    fn yaml_value(
        &mut self,
        node: Node,
        path: &mut Vec<String>,
    ) -> Result<Option<Value>, FileError> {
        Ok(Some(match node {
            Node::Null => return Ok(None),
            Node::Value(value) => value,
            Node::Table(entries) => Value::Table(self.yaml_table(entries, path)?),
            Node::List(items) => {
                let mut list = Vec::new();
                for (at, item) in items.into_iter().enumerate() {
                    path.push(at.to_string());
                    let (line, column) = (item.referenced.line(), item.referenced.column());
                    self.note(path, line as usize);
                    let Some(value) = self.yaml_value(item.value, path)? else {
                        let detail = format!(
                            "{}: is null, which a list cannot contain; set a value, or remove it",
                            dotted(path)
                        );
                        return Err(syntax(self.path, line as usize, column as usize, detail));
                    };
                    list.push(value);
                    path.pop();
                }
                Value::Array(list)
            }
        }))
    }

    fn note(&mut self, path: &[String], line: usize) {
        let origin = Origin::File(self.path.to_owned(), line);
        // A table with several headers is where the first one is.
        self.lines.entry(path.to_vec()).or_insert(origin);
    }
}

fn line_at(text: &str, at: usize) -> usize {
    text.get(..at).unwrap_or("").matches('\n').count() + 1
}
