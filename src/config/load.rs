//! The layers of configuration, merged: defaults < file < environment < `--set`.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde_path_to_error::Segment;
use toml::{Table, Value};

use crate::config::file::{self, BEYOND_INTEGERS, Lines};
use crate::config::keys::{self, Holds, dotted};
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

impl Inputs {
    /// What an operator should know of the environment, though it stops nothing.
    pub fn warnings(&self) -> Vec<String> {
        self.environment.iter().filter_map(|(name, _)| variable::unread(name)).collect()
    }
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

    /// Whether the key has a value that a layer sets.
    pub fn sets(&self, key: &str) -> bool {
        let path = keys::path_of(key).unwrap_or_default();
        let is_there =
            Table::try_from(&self.config).is_ok_and(|all| print::at(&all, &path).is_some());
        is_there && place(&self.origins, &self.lines, &path, true) != Origin::Default
    }

    /// The same problem with its value and its place.
    pub fn located(&self, problem: Problem) -> Problem {
        let path = keys::path_of(&problem.key).unwrap_or_default();
        let value = print::shown(&self.config, &path);
        let origin = place(&self.origins, &self.lines, &path, value.is_some());
        Problem { origin, value, ..problem }
    }
}

/// Where a value was written; where it is absent, the section of the file that lacks it.
fn place(
    origins: &BTreeMap<Vec<String>, Origin>,
    lines: &Lines,
    path: &[String],
    has_value: bool,
) -> Origin {
    let longest = move || (1..=path.len()).rev().map(move |length| &path[..length]);
    let set = longest().find_map(|path| Some((path.len(), origins.get(path)?)));
    if let Some((length, origin)) = set {
        // Within a list its item has a line of its own.
        let mut within = longest().take_while(|path| path.len() > length);
        return match origin {
            Origin::File(..) => within.find_map(|path| lines.get(path)).unwrap_or(origin),
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
    #[error("{}", problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))]
    Problems {
        /// What is wrong; at least one.
        problems: Vec<Problem>,
        /// Everything else: defaults are in the place of what is wrong.
        rest: Box<Loaded>,
    },
}

/// Reads and merges all layers.
///
/// # Errors
///
/// [`LoadError`]; unknown keys and wrong types all at once.
pub fn load(inputs: &Inputs) -> Result<Loaded, LoadError> {
    let mut layers = Layers { warnings: inputs.warnings(), ..Layers::default() };
    if let Some(path) = &inputs.file {
        let (table, lines) = file::read(path)?;
        layers.lines = lines;
        layers.merge(table, &mut Vec::new(), &Origin::File(path.clone(), 1));
    }
    for (name, text) in &inputs.environment {
        if let Some(rest) = name.strip_prefix(PREFIX) {
            layers.environment(name, rest, text);
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
        self.problems.push(Problem { origin, ..Problem::new(dotted(path), detail) });
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
            Ok(text) => self.put_text(path, without_line_end(&text), origin),
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
        let parts = setting.split_once('=');
        match parts.and_then(|(key, text)| Some((keys::path_of(key)?, text))) {
            Some((path, text)) => self.put_text(path, text, &Origin::Set),
            None => {
                let problem = Problem::new(redact(setting), "must be section.key=value");
                self.problems.push(Problem { origin: Origin::Set, ..problem });
            }
        }
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
                    let detail = match is_integer(text) {
                        true => BEYOND_INTEGERS,
                        false => "must be one TOML value such as 5, true or [\"a\", \"b\"]",
                    };
                    return self.wrong(&path, detail, origin);
                }
            },
        };
        self.put(path, value, origin);
    }

    fn finish(mut self) -> Result<Loaded, LoadError> {
        let mut table = self.table.clone();
        self.check_characters(&mut Vec::new(), &Value::Table(table.clone()));
        let config = loop {
            match serde_path_to_error::deserialize(Value::Table(table.clone())) {
                Ok(config) => break config,
                Err(error) => {
                    let path: Vec<String> = error.path().iter().map(name_of).collect();
                    let message = error.inner().message();
                    if message.ends_with(problem::NO_NAME) && put_empty_text(&mut table, &path) {
                        // Such a text, where one of some names belongs, is answered with the names.
                        continue;
                    }
                    self.wrong_type(&path, message);
                    // Without it, so that the next one is found too.
                    if !remove(&mut table, &path) {
                        break Config::default();
                    }
                }
            }
        };
        let Self { origins, lines, warnings, problems, .. } = self;
        let loaded = Loaded { config, origins, lines, warnings };
        match problems.is_empty() {
            true => Ok(loaded),
            false => Err(LoadError::Problems { problems, rest: Box::new(loaded) }),
        }
    }

    /// Notes each text with a control character: most often the end of a line, which came with
    /// a secret, and would become part of a name.
    fn check_characters(&mut self, path: &mut Vec<String>, value: &Value) {
        let below: Vec<(String, &Value)> = match value {
            Value::String(text) if !keys::may_have_lines(path) => {
                if let Some(found) = text.chars().find(|character| character.is_control()) {
                    let is_last = text.trim_end_matches(char::is_control).find(found).is_none();
                    let within = if is_last { "at its end" } else { "in it" };
                    let detail = format!("has the control character {found:?} {within}; remove it");
                    let origin = place(&self.origins, &self.lines, path, true);
                    let value = print::plain(&self.table, path);
                    let problem = Problem::new(dotted(path), detail);
                    self.problems.push(Problem { origin, value, ..problem });
                }
                return;
            }
            Value::Array(items) => {
                items.iter().enumerate().map(|(at, item)| (at.to_string(), item)).collect()
            }
            Value::Table(table) => table.iter().map(|(name, item)| (name.clone(), item)).collect(),
            _ => return,
        };
        for (name, value) in below {
            path.push(name);
            self.check_characters(path, value);
            path.pop();
        }
    }

    fn wrong_type(&mut self, path: &[String], message: &str) {
        let value = print::plain(&self.table, path);
        let (field, detail) = problem::of_type(message, value.as_deref());
        let field = field.filter(|field| path.last() != Some(field));
        let path: Vec<String> = path.iter().cloned().chain(field).collect();
        let value = print::plain(&self.table, &path);
        let origin = place(&self.origins, &self.lines, &path, value.is_some());
        let problem = Problem { origin, value, ..Problem::new(dotted(&path), detail) };
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

/// Puts an empty text where a value is; `false` where none is.
fn put_empty_text(table: &mut Table, path: &[String]) -> bool {
    let Some((first, below)) = path.split_first() else { return false };
    let value = below.iter().try_fold(table.get_mut(first), |value, name| {
        Some(match value? {
            Value::Table(table) => table.get_mut(name),
            Value::Array(items) => items.get_mut(name.parse::<usize>().ok()?),
            _ => None,
        })
    });
    match value.flatten() {
        Some(value) => {
            *value = Value::String(String::new());
            true
        }
        None => false,
    }
}

/// The text as a TOML value: one, and nothing behind it.
fn read_value(text: &str) -> Option<Value> {
    let mut table: Table = format!("value = {text}").parse().ok()?;
    let value = table.remove("value");
    value.filter(|_| table.is_empty())
}

/// Whether the text is an integer, however large.
fn is_integer(text: &str) -> bool {
    let digits = text.trim().trim_start_matches(['+', '-']);
    !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit())
}

/// What a file holds, without the line ends behind it: editors and tools add some.
pub(super) fn without_line_end(text: &str) -> &str {
    text.trim_end_matches(['\n', '\r'])
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
    let shown = match setting.split_once('=') {
        Some((key, _)) => format!("{key}=…"),
        None => setting.to_owned(),
    };
    shown.replace(char::is_control, " ")
}

#[cfg(test)]
mod tests;
