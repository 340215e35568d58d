//! The layers of configuration, merged: defaults < file < environment < `--set`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use postrider_settings::secret::read_file;
use postrider_sinks::configured::ConfiguredSink;
use postrider_sinks::registry::KindConfig;
use serde_path_to_error::Segment;
use toml::{Table, Value};

use crate::config::file::{self, BEYOND_INTEGERS, FileError, Lines};
use crate::config::keys::{self, KeyForm, dotted};
use crate::config::problem::{self, ConfigProblem, Origin, shown_key};
use crate::config::sections::Config;
use crate::config::substitute::substitute;
use crate::config::variable::{FILE_SUFFIX, PREFIX};
use crate::config::{redacted, variable};

/// Where the name of a property stands: `sinks.<name>.properties.<property>`.
const PROPERTY: usize = 3;

/// Below it every integer is a double.
const MAX_EXACT: f64 = 9_007_199_254_740_992.0;

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
pub struct LoadedConfig {
    /// The settings.
    pub config: Config,
    /// By path, for every leaf that a layer sets.
    pub origins: BTreeMap<Vec<String>, Origin>,
    /// The lines of the file.
    pub lines: Lines,
    /// What an operator should know, though it prevents nothing.
    pub warnings: Vec<String>,
    /// Values beyond the bounds of their keys, and keys of another kind of sink; the defaults are in their
    /// place. [`resolve`](crate::config::resolve()) reports them with the other broken rules.
    pub broken: Vec<ConfigProblem>,
}

impl LoadedConfig {
    /// Where the value at `path` came from.
    pub fn origin(&self, path: &[&str]) -> Origin {
        let path: Vec<String> = path.iter().map(|part| (*part).to_owned()).collect();
        self.origins.get(&path).cloned().unwrap_or(Origin::Default)
    }

    /// Whether the key has a value that a layer sets.
    pub fn sets(&self, key: &str) -> bool {
        let path = keys::path_of(key).unwrap_or_default();
        let is_there =
            Table::try_from(&self.config).is_ok_and(|all| redacted::at(&all, &path).is_some());
        is_there && place(&self.origins, &self.lines, &path, true) != Origin::Default
    }

    /// The same problem with its value and its place.
    pub fn located(&self, problem: ConfigProblem) -> ConfigProblem {
        let path = keys::path_of(&problem.key).unwrap_or_default();
        let value = redacted::in_config(&self.config, &path);
        let origin = place(&self.origins, &self.lines, &path, value.is_some());
        ConfigProblem { origin, value, ..problem }
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
pub enum ConfigLoadError {
    /// A named file that cannot be read.
    #[error(transparent)]
    File(#[from] FileError),
    /// Unknown keys and values of the wrong type, all of them.
    #[error("{}", problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))]
    Problems {
        /// What is wrong; at least one.
        problems: Vec<ConfigProblem>,
        /// Everything else: defaults are in the place of what is wrong.
        rest: Box<LoadedConfig>,
    },
}

/// Reads and merges all layers.
///
/// # Errors
///
/// [`ConfigLoadError`]; unknown keys and wrong types all at once.
pub fn load(inputs: &Inputs) -> Result<LoadedConfig, ConfigLoadError> {
    let mut layers = Layers {
        warnings: inputs.warnings(),
        variables: inputs.environment.iter().cloned().collect(),
        ..Layers::default()
    };
    if let Some(path) = &inputs.file {
        let (mut table, lines) = file::read(path)?;
        // For editors.
        table.remove("$schema");
        layers.lines = lines;
        layers.merge(table, &mut Vec::new(), &Origin::File(path.clone(), 1));
    }
    let own = inputs.environment.iter();
    let mut own: Vec<_> = own.filter(|(name, _)| name.starts_with(PREFIX)).collect();
    // A whole section before a key of it: the order of the environment must not matter.
    own.sort_by_key(|(name, _)| (name.matches("__").count(), name));
    for (name, text) in own {
        layers.environment(name, &name[PREFIX.len()..], text);
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
    problems: Vec<ConfigProblem>,
    broken: Vec<ConfigProblem>,
    warnings: Vec<String>,
    /// The environment, for `${VAR}` in the file.
    variables: BTreeMap<String, String>,
}

impl Layers {
    fn merge(&mut self, table: Table, path: &mut Vec<String>, origin: &Origin) {
        for (name, value) in table {
            path.push(name);
            match value {
                Value::Table(table) if table.is_empty() && keys::form(path).is_none() => {
                    self.put_section(path, origin);
                }
                // An empty table in place of a value is wrong; its type is judged like any other.
                Value::Table(table)
                    if !table.is_empty() || keys::form(path) == Some(KeyForm::Dotted) =>
                {
                    self.merge(table, path, origin);
                }
                value if matches!(origin, Origin::File(..)) => {
                    self.put_from_file(path, value, origin);
                }
                value => self.put(path.clone(), value, origin),
            }
            path.pop();
        }
    }

    /// Sets one leaf of the file, with its variables replaced.
    fn put_from_file(&mut self, path: &[String], mut value: Value, origin: &Origin) {
        let before = self.problems.len();
        let is_replaced = self.replace_variables(&mut path.to_vec(), &mut value, origin);
        if self.problems.len() > before {
            return;
        }
        match value {
            // As in the environment: `batch_size = "${SIZE:-100}"` is a number.
            Value::String(text) if is_replaced => {
                let origin = self.line_of(path, origin);
                self.put_text(path.to_vec(), &text, &origin);
            }
            value => self.put(path.to_vec(), value, origin),
        }
    }

    /// Replaces `${VAR}` in every text of a value; whether there was any.
    fn replace_variables(
        &mut self,
        path: &mut Vec<String>,
        value: &mut Value,
        origin: &Origin,
    ) -> bool {
        match value {
            Value::String(text) => {
                match substitute(text, |name| self.variables.get(name).cloned()) {
                    Ok(None) => false,
                    Ok(Some(replaced)) => {
                        *text = replaced;
                        true
                    }
                    Err(detail) => {
                        let origin = self.line_of(path, origin);
                        let path = with_whole_property(path.clone());
                        let problem = ConfigProblem::new(dotted(&path), detail);
                        let value = redacted::unread(&path, value);
                        self.problems.push(ConfigProblem { origin, value, ..problem });
                        false
                    }
                }
            }
            Value::Array(items) => {
                for (at, item) in items.iter_mut().enumerate() {
                    path.push(at.to_string());
                    self.replace_variables(path, item, origin);
                    path.pop();
                }
                false
            }
            Value::Table(table) => {
                for (name, below) in table.iter_mut() {
                    path.push(name.to_owned());
                    self.replace_variables(path, below, origin);
                    path.pop();
                }
                false
            }
            _ => false,
        }
    }

    /// Notes that a section is there though it sets nothing: its required keys are missed then.
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
    fn put(&mut self, path: Vec<String>, value: Value, origin: &Origin) {
        let origin = &self.line_of(&path, origin);
        let path = with_whole_property(path);
        if let Some(list) = keys::list_above(&path) {
            let detail = is_list(list);
            return self.wrong(&path, detail, origin);
        }
        if keys::form(&path).is_none() {
            return self.unknown(&path, origin);
        }
        if let (Origin::Environment(name), Some(Origin::Environment(other))) =
            (origin, self.origins.get(&path))
            && name != other
        {
            let detail = format!("is also set by {other}; remove one of the two");
            return self.wrong(&path, detail, origin);
        }
        if let Value::Array(items) = &value
            && keys::is_list(&path)
        {
            self.check_items(&path, items, origin);
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

    fn check_items(&mut self, list: &[String], items: &[Value], origin: &Origin) {
        for (at, item) in items.iter().enumerate() {
            for name in item.as_table().into_iter().flat_map(Table::keys) {
                let path = [list, &[at.to_string(), name.clone()]].concat();
                if !keys::is_known(&path) {
                    self.unknown(&path, origin);
                }
            }
        }
    }

    fn unknown(&mut self, path: &[String], origin: &Origin) {
        if let Some(list) = keys::list_above(path)
            && path[list.len()].parse::<usize>().is_err()
        {
            return self.wrong(path, is_list(list), origin);
        }
        if let Some(now) = keys::renamed(path) {
            return self.wrong(path, format!("was renamed; set {now}"), origin);
        }
        let detail = match (keys::is_section(path), keys::nearest(path)) {
            (true, _) => "is a section; set a key below it".to_owned(),
            (false, Some(nearest)) => {
                format!("unknown key; did you mean {}?", shown_key(&nearest))
            }
            (false, None) => "unknown key; see docs/configuration.md for all keys".to_owned(),
        };
        self.wrong(path, detail, origin);
    }

    fn wrong(&mut self, path: &[String], detail: impl Into<String>, origin: &Origin) {
        let origin = self.line_of(path, origin);
        self.problems.push(ConfigProblem { origin, ..ConfigProblem::new(dotted(path), detail) });
    }

    fn environment(&mut self, name: &str, rest: &str, text: &str) {
        let origin = Origin::Environment(name.to_owned());
        let Some(path) = self.with_known_names(&rest.to_lowercase(), &origin) else { return };
        // A key may itself end so, such as `password_file`; a name of the operator's may not.
        let is_of_operator = |key: &keys::Key| key.pattern.last().is_some_and(|last| last == "*");
        if keys::at(&path).all(is_of_operator)
            && let Some(stem) = rest.strip_suffix(FILE_SUFFIX)
        {
            let path = self.with_known_names(&stem.to_lowercase(), &origin);
            if let Some(path) = path.filter(|path| keys::form(path).is_some()) {
                return self.put_file(path, text, &origin);
            }
        }
        self.put_text(path, text, &origin);
    }

    fn put_file(&mut self, path: Vec<String>, file: &str, origin: &Origin) {
        match read_file(Path::new(file)) {
            Ok(text) => self.put_text(path, text.expose(), origin),
            Err(detail) => self.wrong(&path, detail, origin),
        }
    }

    /// Names in the environment are upper case; those of sinks and sources may be known otherwise. `None`
    /// for a name that may be either of two, which is noted.
    fn with_known_names(&mut self, lowered: &str, origin: &Origin) -> Option<Vec<String>> {
        let mut table = Some(&self.table);
        let mut path = Vec::new();
        for part in lowered.split("__") {
            let names = table.into_iter().flat_map(Table::keys);
            let alike: Vec<&String> = names.filter(|name| name.to_lowercase() == part).collect();
            if let [one, other, ..] = alike[..] {
                let detail = format!(
                    "may be {one:?} or {other:?}, since variables ignore case; rename one of the two, or \
                     set the key in the file or by --set"
                );
                path.push(part.to_owned());
                self.wrong(&path, detail, origin);
                return None;
            }
            let name = alike.first().map_or(part, |name| name.as_str()).to_owned();
            table = table.and_then(|table| table.get(&name)).and_then(Value::as_table);
            path.push(name);
        }
        if keys::form(&path) == Some(KeyForm::Dotted) {
            // A variable's name can have no dots, and a property's has no underscores.
            for part in &mut path[PROPERTY..] {
                *part = part.replace('_', ".");
            }
        }
        Some(path)
    }

    fn set(&mut self, setting: &str) {
        let parts = setting.split_once('=');
        match parts.and_then(|(key, text)| Some((keys::path_of(key)?, text))) {
            // Nothing but `=` behind an unknown key may end a secret in Base64.
            Some((path, text)) if keys::is_known(&path) || !text.trim_matches('=').is_empty() => {
                self.put_text(path, text, &Origin::Set);
            }
            _ => {
                let key = known_start(setting);
                let problem = ConfigProblem::new(key, "must have the form section.key=value");
                self.problems.push(ConfigProblem { origin: Origin::Set, ..problem });
            }
        }
    }

    fn put_text(&mut self, path: Vec<String>, text: &str, origin: &Origin) {
        let value = match keys::form(&path) {
            None => {
                return match read_value(text) {
                    // A whole section at once, as `{ sink = "a", destination = "b" }`.
                    Some(Value::Table(table)) if keys::is_section(&path) && table.is_empty() => {
                        self.put_section(&path, origin);
                    }
                    Some(Value::Table(table)) if keys::is_section(&path) => {
                        self.merge(table, &mut path.clone(), origin);
                    }
                    _ => self.unknown(&path, origin),
                };
            }
            Some(KeyForm::Text | KeyForm::Dotted) => Value::String(text.to_owned()),
            Some(KeyForm::TextOrList) => match read_value(text) {
                // Quoted or not: no such text begins with a quotation mark.
                Some(value @ (Value::Array(_) | Value::String(_))) => value,
                _ => Value::String(text.to_owned()),
            },
            Some(KeyForm::Value) => match read_value(text) {
                Some(value) => value,
                None => {
                    let detail = if is_integer(text) {
                        BEYOND_INTEGERS
                    } else {
                        "must be a TOML value, for example 5, true or [\"a\", \"b\"]"
                    };
                    return self.wrong(&path, detail, origin);
                }
            },
        };
        self.put(path, value, origin);
    }

    fn finish(mut self) -> Result<LoadedConfig, ConfigLoadError> {
        let mut table = self.table.clone();
        self.check_characters(&mut Vec::new(), &Value::Table(table.clone()));
        let sinks = match table.remove("sinks") {
            Some(Value::Table(sinks)) => sinks,
            _ => Table::new(),
        };
        self.check_bounds(&mut Vec::new(), &mut table, None);
        let read = |table| serde_path_to_error::deserialize(Value::Table(table));
        let mut config: Config = self.deserialize(&[], table, read).unwrap_or_default();
        for (name, sink) in sinks {
            let sink = self.sink(&name, sink);
            config.sinks.extend(sink.map(|sink| (name, sink)));
        }
        let Self { origins, lines, warnings, problems, broken, .. } = self;
        let loaded = LoadedConfig { config, origins, lines, warnings, broken };
        if problems.is_empty() {
            Ok(loaded)
        } else {
            Err(ConfigLoadError::Problems { problems, rest: Box::new(loaded) })
        }
    }

    /// Reads one sink by its kind; `None` where that is missing or unknown.
    fn sink(&mut self, name: &str, sink: Value) -> Option<ConfiguredSink> {
        let path = ["sinks".to_owned(), name.to_owned()];
        let Value::Table(mut table) = sink else {
            self.wrong_type(&path, "invalid type: expected a map");
            return None;
        };
        let kind_path = [&path[..], &["kind".to_owned()]].concat();
        let kind = match table.get("kind") {
            Some(Value::String(kind)) if KindConfig::KINDS.contains(&kind.as_str()) => kind.clone(),
            other => {
                let kinds: Vec<String> =
                    KindConfig::KINDS.iter().map(|kind| format!("`{kind}`")).collect();
                let kinds = kinds.join(", ");
                if other.is_some() {
                    self.wrong_type(&kind_path, &format!("unknown, expected one of {kinds}"));
                } else {
                    let origin = place(&self.origins, &self.lines, &kind_path, false);
                    self.wrong(
                        &kind_path,
                        format!("is not set; set it to one of {kinds}"),
                        &origin,
                    );
                }
                return None;
            }
        };
        self.check_kind(&mut path.to_vec(), &mut table, &kind);
        self.check_bounds(&mut path.to_vec(), &mut table, Some(&kind));
        self.deserialize(&path, table, |table| ConfiguredSink::read(&kind, table))
    }

    /// Reports and removes the keys of other kinds of sinks.
    fn check_kind(&mut self, path: &mut Vec<String>, table: &mut Table, kind: &str) {
        let names: Vec<String> = table.keys().cloned().collect();
        for name in names {
            path.push(name.clone());
            let kinds: Vec<&String> = keys::at(path).flat_map(|key| &key.kinds).collect();
            if let Some(Value::Table(below)) = table.get_mut(&name)
                && kinds.is_empty()
            {
                let was_empty = below.is_empty();
                self.check_kind(path, below, kind);
                if below.is_empty() && !was_empty {
                    table.remove(&name);
                }
            } else if !kinds.is_empty() && !kinds.iter().any(|own| *own == kind) {
                table.remove(&name);
                let names = kinds.iter().map(|kind| format!("{kind:?}")).collect::<Vec<_>>();
                let detail = format!(
                    "applies only to sinks of kind {}, not {kind:?}; remove it",
                    names.join(" and ")
                );
                self.wrong_value(path, detail);
            }
            path.pop();
        }
    }

    /// Reports and removes the values beyond the bounds of their keys.
    fn check_bounds(&mut self, path: &mut Vec<String>, table: &mut Table, kind: Option<&str>) {
        let names: Vec<String> = table.keys().cloned().collect();
        for name in names {
            path.push(name.clone());
            if let Some(Value::Table(below)) = table.get_mut(&name) {
                self.check_bounds(path, below, kind);
            } else if let Some(Value::Array(items)) = table.get_mut(&name) {
                for (at, item) in items.iter_mut().enumerate() {
                    let Value::Table(item) = item else { continue };
                    path.push(at.to_string());
                    self.check_bounds(path, item, kind);
                    path.pop();
                }
            } else if let Some(value) = table.get_mut(&name) {
                let is_own = |key: &&keys::Key| {
                    key.kinds.is_empty() || key.kinds.iter().any(|own| Some(own.as_str()) == kind)
                };
                let own: Vec<&keys::Key> = keys::at(path).filter(is_own).collect();
                // As in JSON Schema, 1.0 is an integer.
                if let Value::Float(number) = *value
                    && number.fract() == 0.0
                    && number.abs() < MAX_EXACT
                    && own.iter().any(|key| key.schema.get("type") == Some(&"integer".into()))
                {
                    *value = Value::Integer(number as i64);
                }
                if let Some(detail) = own.iter().find_map(|key| key.broken_bound(value)) {
                    table.remove(&name);
                    self.wrong_value(path, detail);
                }
            }
            path.pop();
        }
    }

    /// Reads a type from a table. Wrong values are reported and left out until the rest fits; `None` where
    /// the error has no place.
    fn deserialize<T>(
        &mut self,
        path: &[String],
        mut table: Table,
        read: impl Fn(Table) -> Result<T, serde_path_to_error::Error<toml::de::Error>>,
    ) -> Option<T> {
        loop {
            match read(table.clone()) {
                Ok(value) => return Some(value),
                Err(error) => {
                    let below: Vec<String> = error.path().iter().map(name_of).collect();
                    let message = error.inner().message();
                    if message.ends_with(problem::NO_NAME) && put_empty_text(&mut table, &below) {
                        // Such a text, where one of some names belongs, is answered with the names.
                        continue;
                    }
                    self.wrong_type(&[path, &below].concat(), message);
                    // Without it, so that the next one is found too.
                    if !remove(&mut table, &below) {
                        return None;
                    }
                }
            }
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
                    let detail =
                        format!("contains the control character {found:?} {within}; remove it");
                    let origin = place(&self.origins, &self.lines, path, true);
                    let value = redacted::in_table(&self.table, path);
                    let problem = ConfigProblem::new(dotted(path), detail);
                    self.problems.push(ConfigProblem { origin, value, ..problem });
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

    /// Notes a value that breaks a rule of its key.
    fn wrong_value(&mut self, path: &[String], detail: String) {
        let value = redacted::in_table(&self.table, path);
        let origin = place(&self.origins, &self.lines, path, value.is_some());
        self.broken.push(ConfigProblem {
            origin,
            value,
            ..ConfigProblem::new(dotted(path), detail)
        });
    }

    fn wrong_type(&mut self, path: &[String], message: &str) {
        let value = redacted::in_table(&self.table, path);
        let (field, detail) = problem::of_type(message, value.as_deref());
        let field = field.filter(|field| path.last() != Some(field));
        let path: Vec<String> = path.iter().cloned().chain(field).collect();
        let value = redacted::in_table(&self.table, &path);
        let origin = place(&self.origins, &self.lines, &path, value.is_some());
        let problem = ConfigProblem { origin, value, ..ConfigProblem::new(dotted(&path), detail) };
        // A key of a route that is unknown was noted before, with the nearest known one.
        if !self.problems.iter().any(|other| other.key == problem.key) {
            self.problems.push(problem);
        }
    }
}

/// The error for a key of a list's tables that names no table.
fn is_list(list: &[String]) -> String {
    let list = list.join(".");
    format!("{list} is a list; write [[{list}]] in the file, or {list} = [{{ … }}]")
}

/// The path with the name of a property in one piece, whether its dots were TOML's or quoted.
fn with_whole_property(mut path: Vec<String>) -> Vec<String> {
    if keys::form(&path) == Some(KeyForm::Dotted) {
        let name = path.split_off(PROPERTY).join(".");
        path.push(name);
    }
    path
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

/// The known key that a text begins with, and `…` for the rest, which may be a secret.
fn known_start(setting: &str) -> String {
    let is_of_key = |one: char| one.is_ascii_alphanumeric() || "._-\"".contains(one);
    let end = setting.find(|one| !is_of_key(one)).unwrap_or(setting.len());
    let key = &setting[..end];
    let is_known = keys::path_of(key).is_some_and(|path| keys::is_known(&path));
    format!("{}…", if is_known { key } else { "" })
}

#[cfg(test)]
mod tests;
