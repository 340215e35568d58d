//! The layers of configuration, merged: defaults < file < environment < `--set`.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde_path_to_error::Segment;
use toml::{Table, Value};

use crate::config::file::{self, Lines};
use crate::config::keys::{self, Holds};
use crate::config::problem::{self, Origin, Problem};
use crate::config::tree::Config;
use crate::config::variable::{FILE_SUFFIX, PREFIX};
use crate::config::{print, variable};

/// Where the name of a property stands: `sinks.<name>.properties.<property>`.
const PROPERTY: usize = 3;

/// Where configuration comes from.
#[derive(Clone, Debug, Default)]
pub struct Inputs {
    /// `--config` or `POSTRIDER_CONFIG`.
    pub file: Option<PathBuf>,
    /// The process's environment.
    pub environment: Vec<(String, String)>,
    /// `--set section.key=value`, in order.
    pub set: Vec<String>,
}

/// The merged configuration and where its values came from.
#[derive(Clone, Debug, Default)]
pub struct Loaded {
    /// The settings.
    pub config: Config,
    /// By path, for every leaf that a layer sets.
    pub origins: BTreeMap<Vec<String>, Origin>,
    /// The lines of the file.
    pub lines: Lines,
    /// What an operator should know, though it stops nothing.
    pub warnings: Vec<String>,
}

impl Loaded {
    /// Where the value at `path` came from.
    pub fn origin(&self, path: &[&str]) -> Origin {
        let path: Vec<String> = path.iter().map(|part| (*part).to_owned()).collect();
        self.origins.get(&path).cloned().unwrap_or(Origin::Default)
    }

    /// Whether anything at or below `path` was set.
    pub fn is_set(&self, path: &[&str]) -> bool {
        self.origins.keys().any(|set| {
            set.len() >= path.len() && set.iter().zip(path).all(|(own, wanted)| own == wanted)
        })
    }

    /// The same problem with its value and its place.
    pub fn located(&self, problem: Problem) -> Problem {
        let path = path_of(&problem.key);
        let value = print::shown(&self.config, &path);
        let origin = place(&self.origins, &self.lines, &path, value.is_some());
        Problem { origin, value, ..problem }
    }
}

/// The path that a key names. (A name of the user's with a dot in it is not found, and has no place.)
fn path_of(key: &str) -> Vec<String> {
    let mut path: Vec<String> = key.split('.').map(str::to_owned).collect();
    if path.len() > PROPERTY && path[0] == "sinks" && path[2] == "properties" {
        let name = path.split_off(PROPERTY).join(".");
        path.push(name);
    }
    path
}

/// Where a value was written; where it is absent, the section of the file that lacks it.
fn place(
    origins: &BTreeMap<Vec<String>, Origin>,
    lines: &Lines,
    path: &[String],
    has_value: bool,
) -> Origin {
    let longest = move || (1..=path.len()).rev().map(move |length| &path[..length]);
    if let Some(origin) = longest().find_map(|path| origins.get(path)) {
        return match origin {
            // Within a list its item has a line of its own.
            Origin::File(..) => longest().find_map(|path| lines.get(path)).unwrap_or(origin),
            origin => origin,
        }
        .clone();
    }
    let section = longest().find_map(|path| lines.get(path)).filter(|_| !has_value);
    section.cloned().unwrap_or(Origin::Default)
}

/// A configuration that cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// A named file that cannot be read.
    #[error("cannot read the configuration file {}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Why not.
        #[source]
        source: std::io::Error,
    },
    /// A file that is not TOML. (The line itself is not quoted: it may hold a secret.)
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
    /// Unknown keys and values of the wrong type, all of them.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))]
    Problems(Vec<Problem>),
}

/// Reads and merges all layers.
///
/// # Errors
///
/// [`LoadError`]; unknown keys and wrong types all at once.
pub fn load(inputs: &Inputs) -> Result<Loaded, LoadError> {
    let mut layers = Layers::default();
    if let Some(path) = &inputs.file {
        let (table, lines) = file::read(path)?;
        layers.lines = lines;
        layers.merge(table, &mut Vec::new(), &Origin::File(path.clone(), 1));
    }
    for (name, text) in &inputs.environment {
        match name.strip_prefix(PREFIX) {
            Some(rest) => layers.environment(name, rest, text),
            None => layers.warnings.extend(variable::slip(name)),
        }
    }
    for setting in &inputs.set {
        layers.set(setting);
    }
    layers.finish()
}

#[derive(Default)]
struct Layers {
    table: Table,
    origins: BTreeMap<Vec<String>, Origin>,
    lines: Lines,
    problems: Vec<Problem>,
    warnings: Vec<String>,
}

impl Layers {
    fn merge(&mut self, table: Table, path: &mut Vec<String>, origin: &Origin) {
        for (name, value) in table {
            path.push(name);
            match value {
                Value::Table(table) if table.is_empty() && keys::holds(path).is_none() => {
                    self.put_section(path, origin);
                }
                Value::Table(table) if keys::holds(path) != Some(Holds::Tree) => {
                    self.merge(table, path, origin);
                }
                value => self.put(path.clone(), value, origin),
            }
            path.pop();
        }
    }

    /// Notes that there is a section, though nothing is set in it: what it lacks is missed then.
    fn put_section(&mut self, path: &[String], origin: &Origin) {
        if !keys::is_section(path) {
            return self.unknown(path, origin);
        }
        let mut table = &mut self.table;
        for name in path {
            let section = table.entry(name.clone()).or_insert_with(|| Table::new().into());
            let Value::Table(below) = section else { return };
            table = below;
        }
    }

    /// Sets one leaf, or notes that the key is unknown.
    fn put(&mut self, mut path: Vec<String>, value: Value, origin: &Origin) {
        let origin = &self.line_of(&path, origin);
        if keys::holds(&path) == Some(Holds::Properties) {
            // One form, whether its dots were TOML's or quoted.
            let name = path.split_off(PROPERTY).join(".");
            path.push(name);
        }
        if let Value::Array(items) = &value
            && path == ["routes"]
        {
            self.check_routes(items, origin);
        } else if path.len() > 1 && path[0] == "routes" {
            let detail = "routes are a list: [[routes]] in the file, or routes = [{ … }]";
            return self.wrong(&path, detail, origin);
        } else if keys::holds(&path).is_none() {
            return self.unknown(&path, origin);
        }
        insert(&mut self.table, &path, value);
        self.origins.insert(path, origin.clone());
    }

    /// The origin, with the line of this key where it is the file's.
    fn line_of(&self, path: &[String], origin: &Origin) -> Origin {
        match origin {
            Origin::File(..) => self.lines.get(path).unwrap_or(origin).clone(),
            origin => origin.clone(),
        }
    }

    fn check_routes(&mut self, routes: &[Value], origin: &Origin) {
        for (at, route) in routes.iter().enumerate() {
            for name in route.as_table().into_iter().flat_map(Table::keys) {
                let path = vec!["routes".to_owned(), at.to_string(), name.clone()];
                if keys::holds(&path).is_none() && !keys::is_section(&path) {
                    self.unknown(&path, origin);
                }
            }
        }
    }

    fn unknown(&mut self, path: &[String], origin: &Origin) {
        let detail = match (keys::is_section(path), keys::nearest(path)) {
            (true, _) => "is a section; set a key below it".to_owned(),
            (false, Some(nearest)) => format!("unknown key; did you mean {nearest}?"),
            (false, None) => "unknown key; config/postrider.toml has all keys".to_owned(),
        };
        self.wrong(path, detail, origin);
    }

    fn wrong(&mut self, path: &[String], detail: impl Into<String>, origin: &Origin) {
        let origin = self.line_of(path, origin);
        // A name of nothing but dots would not be seen as one.
        let quoted = |part: &String| match part.contains(char::is_alphanumeric) {
            true => part.clone(),
            false => format!("{part:?}"),
        };
        let key = path.iter().map(quoted).collect::<Vec<_>>().join(".");
        self.problems.push(Problem { origin, ..Problem::new(key, detail) });
    }

    fn environment(&mut self, name: &str, rest: &str, text: &str) {
        let origin = Origin::Environment(name.to_owned());
        let path = self.with_known_names(rest.to_lowercase());
        // A key may itself end so; none does at present, nor does a property of librdkafka.
        if matches!(keys::holds(&path), None | Some(Holds::Properties))
            && let Some(stem) = rest.strip_suffix(FILE_SUFFIX)
        {
            let path = self.with_known_names(stem.to_lowercase());
            if keys::holds(&path).is_some() {
                return self.put_file(path, text, &origin);
            }
        }
        if self.is_free(&path, &origin) {
            self.put_text(path, text, &origin);
        }
    }

    /// Whether no other variable sets this key, with its name or that of its file; else that is
    /// noted.
    fn is_free(&mut self, path: &[String], origin: &Origin) -> bool {
        let Some(Origin::Environment(other)) = self.origins.get(path) else { return true };
        let detail = format!("is set by {other} too; keep one of the two");
        self.wrong(path, detail, origin);
        false
    }

    fn put_file(&mut self, path: Vec<String>, file: &str, origin: &Origin) {
        if !self.is_free(&path, origin) {
            return;
        }
        match std::fs::read_to_string(file) {
            Ok(text) => self.put_text(path, text.strip_suffix('\n').unwrap_or(&text), origin),
            Err(error) => {
                self.wrong(&path, format!("cannot read the file {file:?}: {error}"), origin);
            }
        }
    }

    /// Names in the environment are upper case; those of sinks and sources may be known otherwise.
    fn with_known_names(&self, lowered: String) -> Vec<String> {
        let mut table = Some(&self.table);
        let mut path = Vec::new();
        for part in lowered.split("__") {
            let known = table
                .and_then(|table| table.keys().find(|name| name.to_lowercase() == part).cloned());
            let name = known.unwrap_or_else(|| part.to_owned());
            table = table.and_then(|table| table.get(&name)).and_then(Value::as_table);
            path.push(name);
        }
        if keys::holds(&path) == Some(Holds::Properties) {
            // A variable's name can have no dots, and a property's has no underscores.
            for part in &mut path[PROPERTY..] {
                *part = part.replace('_', ".");
            }
        }
        path
    }

    fn set(&mut self, setting: &str) {
        match Self::parsed(setting) {
            Some((path, text)) => self.put_text(path, text, &Origin::Set),
            None => {
                let key = redact(setting);
                self.wrong(&[key], "must be section.key=value", &Origin::Set);
            }
        }
    }

    /// Path and text of `key=value`. The dotted key is TOML's own, quoted names and all.
    fn parsed(setting: &str) -> Option<(Vec<String>, &str)> {
        let (key, text) = setting.split_once('=')?;
        let mut value = Value::Table(format!("{key} = 0").parse().ok()?);
        let mut path = Vec::new();
        while let Value::Table(table) = value {
            let (name, below) = table.into_iter().next()?;
            path.push(name);
            value = below;
        }
        Some((path, text))
    }

    fn put_text(&mut self, path: Vec<String>, text: &str, origin: &Origin) {
        let value = match keys::holds(&path) {
            None => {
                return match read_value(text) {
                    // A whole section at once, as `{ sink = "a", destination = "b" }`.
                    Some(Value::Table(table)) if keys::is_section(&path) => {
                        self.merge(table, &mut path.clone(), origin);
                    }
                    _ => self.unknown(&path, origin),
                };
            }
            Some(Holds::Text | Holds::Properties) => Value::String(text.to_owned()),
            Some(Holds::Texts) => match read_value(text) {
                // Quoted or not: no such text begins with a quotation mark.
                Some(value @ (Value::Array(_) | Value::String(_))) => value,
                _ => Value::String(text.to_owned()),
            },
            Some(Holds::Value | Holds::Tree) => match read_value(text) {
                Some(value) => value,
                None => {
                    let detail = "must be a TOML value such as 5, true or [\"a\", \"b\"]";
                    return self.wrong(&path, detail, origin);
                }
            },
        };
        self.put(path, value, origin);
    }

    fn finish(mut self) -> Result<Loaded, LoadError> {
        let mut table = self.table.clone();
        let config = loop {
            match serde_path_to_error::deserialize(Value::Table(table.clone())) {
                Ok(config) => break config,
                Err(error) => {
                    let path: Vec<String> = error.path().iter().map(name_of).collect();
                    self.wrong_type(&path, error.inner().message());
                    // Without it, so that the next one is found too.
                    if !remove(&mut table, &path) {
                        break Config::default();
                    }
                }
            }
        };
        match self.problems.is_empty() {
            true => Ok(Loaded {
                config,
                origins: self.origins,
                lines: self.lines,
                warnings: self.warnings,
            }),
            false => Err(LoadError::Problems(self.problems)),
        }
    }

    fn wrong_type(&mut self, path: &[String], message: &str) {
        let value = print::plain(&self.table, path);
        let (field, detail) = problem::of_type(message, value.as_deref());
        let field = field.filter(|field| path.last() != Some(field));
        let path: Vec<String> = path.iter().cloned().chain(field).collect();
        let value = print::plain(&self.table, &path);
        let origin = place(&self.origins, &self.lines, &path, value.is_some());
        let problem = Problem { origin, value, ..Problem::new(path.join("."), detail) };
        // A key of a route that is unknown was noted before, with the nearest known one.
        if !self.problems.iter().any(|other| other.key == problem.key) {
            self.problems.push(problem);
        }
    }
}

/// A part of a path, with a position in a list as its name.
fn name_of(segment: &Segment) -> String {
    match segment {
        Segment::Seq { index } => index.to_string(),
        segment => segment.to_string(),
    }
}

/// Removes what is at the path, or the last table on the way to it; `false` where nothing is there.
fn remove(table: &mut Table, path: &[String]) -> bool {
    let Some((name, below)) = path.split_first() else { return false };
    let is_removed = match table.get_mut(name) {
        Some(Value::Table(table)) => remove(table, below),
        Some(Value::Array(items)) => below.split_first().is_some_and(|(at, below)| {
            let item = at.parse().ok().and_then(|at: usize| items.get_mut(at));
            item.and_then(Value::as_table_mut).is_some_and(|item| remove(item, below))
        }),
        _ => false,
    };
    is_removed || table.remove(name).is_some()
}

/// The text as a TOML value.
fn read_value(text: &str) -> Option<Value> {
    format!("value = {text}").parse::<Table>().ok()?.remove("value")
}

fn insert(table: &mut Table, path: &[String], value: Value) {
    match path {
        [] => {}
        [name] => {
            table.insert(name.clone(), value);
        }
        [name, below @ ..] => {
            let entry = table.entry(name.clone()).or_insert_with(|| Value::Table(Table::new()));
            if !entry.is_table() {
                *entry = Value::Table(Table::new());
            }
            if let Value::Table(table) = entry {
                insert(table, below, value);
            }
        }
    }
}

/// What stands before the `=`: behind it may be a secret.
fn redact(setting: &str) -> String {
    match setting.split_once('=') {
        Some((key, _)) => format!("{key}=…"),
        None => setting.to_owned(),
    }
}

#[cfg(test)]
mod tests;
