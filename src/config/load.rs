//! The layers of configuration, merged: defaults < file < environment < `--set`.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use toml::{Table, Value};

use crate::config::keys::{self, Holds};
use crate::config::tree::Config;

/// Environment variables that begin so are ours, all of them.
const PREFIX: &str = "POSTRIDER__";

/// Where the name of a property stands: `sinks.<name>.properties.<property>`.
const PROPERTY: usize = 3;

/// Names a secret's file in place of its value.
const FILE_SUFFIX: &str = "_FILE";

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

/// Where one value came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Nobody said anything else.
    Default,
    /// A line of the file.
    File(PathBuf),
    /// An environment variable.
    Environment(String),
    /// The command line.
    Set,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File(path) => write!(f, "{}", path.display()),
            Self::Environment(name) => f.write_str(name),
            Self::Set => f.write_str("--set"),
        }
    }
}

/// The merged configuration and where its values came from.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// The settings.
    pub config: Config,
    /// By path, for every leaf that somebody has set.
    pub origins: BTreeMap<Vec<String>, Origin>,
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
}

/// A configuration that can't be read; each problem names its key and where it stands.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// A named file that can't be read.
    #[error("cannot read the configuration file {}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Why not.
        #[source]
        source: std::io::Error,
    },
    /// A file that is no TOML. (The line itself is not quoted: it may hold a secret.)
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
    /// Keys that there are not, all of them.
    #[error("{}", .0.join("\n"))]
    Unknown(Vec<String>),
    /// A value that can't be used.
    #[error("{key}: {detail} (from {origin})")]
    Value {
        /// The key.
        key: String,
        /// What is wrong, and what would be right.
        detail: String,
        /// Where it stands.
        origin: Origin,
    },
    /// A `--set` that is no `key=value`.
    #[error("--set {0:?}: write --set section.key=value")]
    Set(String),
}

/// Reads and merges all layers.
///
/// # Errors
///
/// [`LoadError`]; unknown keys are told all at once.
pub fn load(inputs: &Inputs) -> Result<Loaded, LoadError> {
    let mut layers = Layers::default();
    if let Some(path) = &inputs.file {
        let table = read_file(path)?;
        layers.merge(table, &mut Vec::new(), &Origin::File(path.clone()));
    }
    for (name, text) in &inputs.environment {
        if let Some(rest) = name.strip_prefix(PREFIX) {
            layers.environment(name, rest, text)?;
        }
    }
    for setting in &inputs.set {
        layers.set(setting)?;
    }
    layers.finish()
}

fn read_file(path: &Path) -> Result<Table, LoadError> {
    let text = std::fs::read_to_string(path)
        .map_err(|source| LoadError::File { path: path.to_owned(), source })?;
    text.parse::<Table>().map_err(|error| {
        let before = error.span().map_or("", |span| text.get(..span.start).unwrap_or(""));
        LoadError::Syntax {
            path: path.to_owned(),
            line: before.matches('\n').count() + 1,
            column: before.chars().rev().take_while(|character| *character != '\n').count() + 1,
            detail: error.message().to_owned(),
        }
    })
}

#[derive(Default)]
struct Layers {
    table: Table,
    origins: BTreeMap<Vec<String>, Origin>,
    unknown: Vec<String>,
}

impl Layers {
    fn merge(&mut self, table: Table, path: &mut Vec<String>, origin: &Origin) {
        for (name, value) in table {
            path.push(name);
            match value {
                Value::Table(table) if keys::holds(path) != Some(Holds::Tree) => {
                    self.merge(table, path, origin);
                }
                value => self.put(path.clone(), value, origin),
            }
            path.pop();
        }
    }

    /// Sets one leaf, or notes that there is no such key.
    fn put(&mut self, mut path: Vec<String>, value: Value, origin: &Origin) {
        if keys::holds(&path) == Some(Holds::Properties) {
            // One form, whether its dots were TOML's or quoted.
            let name = path.split_off(PROPERTY).join(".");
            path.push(name);
        }
        if let Value::Array(items) = &value
            && path == ["routes"]
        {
            self.check_routes(items, origin);
        } else if keys::holds(&path).is_none() {
            return self.unknown(&path, origin);
        }
        insert(&mut self.table, &path, value);
        self.origins.insert(path, origin.clone());
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
        let key = path.join(".");
        let hint = match (keys::is_section(path), keys::nearest(path)) {
            (true, _) => "is a section, not a value".to_owned(),
            (false, Some(nearest)) => format!("is no key; did you mean {nearest}?"),
            (false, None) => "is no key; config/postrider.toml shows all".to_owned(),
        };
        self.unknown.push(format!("{key} {hint} (from {origin})"));
    }

    fn environment(&mut self, name: &str, rest: &str, text: &str) -> Result<(), LoadError> {
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
        self.put_text(path, text, &origin)
    }

    fn put_file(
        &mut self,
        path: Vec<String>,
        file: &str,
        origin: &Origin,
    ) -> Result<(), LoadError> {
        let wrong = |detail: String| LoadError::Value {
            key: path.join("."),
            detail,
            origin: origin.clone(),
        };
        if let Some(Origin::Environment(other)) = self.origins.get(&path) {
            return Err(wrong(format!("is set by {other} too; keep one of the two")));
        }
        let text = std::fs::read_to_string(file)
            .map_err(|error| wrong(format!("cannot read the file {file:?}: {error}")))?;
        let text = text.strip_suffix('\n').unwrap_or(&text).to_owned();
        self.put_text(path, &text, origin)
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

    fn set(&mut self, setting: &str) -> Result<(), LoadError> {
        let wrong = || LoadError::Set(redact(setting));
        let (key, text) = setting.split_once('=').ok_or_else(wrong)?;
        // The dotted key is TOML's own, quoted names and all.
        let probe: Table = format!("{key} = 0").parse().map_err(|_| wrong())?;
        let mut path = Vec::new();
        let mut value = Value::Table(probe);
        while let Value::Table(table) = value {
            let (name, below) = table.into_iter().next().ok_or_else(wrong)?;
            path.push(name);
            value = below;
        }
        self.put_text(path, text, &Origin::Set)
    }

    fn put_text(
        &mut self,
        path: Vec<String>,
        text: &str,
        origin: &Origin,
    ) -> Result<(), LoadError> {
        let value = match keys::holds(&path) {
            None => {
                match read_value(text) {
                    // A whole section at once, as `{ sink = "a", destination = "b" }`.
                    Some(Value::Table(table)) if keys::is_section(&path) => {
                        self.merge(table, &mut path.clone(), origin);
                    }
                    _ => self.unknown(&path, origin),
                }
                return Ok(());
            }
            Some(Holds::Text | Holds::Properties) => Value::String(text.to_owned()),
            Some(Holds::Texts) => match read_value(text) {
                // Quoted or not: no such text begins with a quotation mark.
                Some(value @ (Value::Array(_) | Value::String(_))) => value,
                _ => Value::String(text.to_owned()),
            },
            Some(Holds::Value | Holds::Tree) => {
                read_value(text).ok_or_else(|| LoadError::Value {
                    key: path.join("."),
                    detail: "is not a TOML value such as 5, true or [\"a\", \"b\"]".to_owned(),
                    origin: origin.clone(),
                })?
            }
        };
        self.put(path, value, origin);
        Ok(())
    }

    fn finish(self) -> Result<Loaded, LoadError> {
        if !self.unknown.is_empty() {
            return Err(LoadError::Unknown(self.unknown));
        }
        let config = serde_path_to_error::deserialize(Value::Table(self.table));
        match config {
            Ok(config) => Ok(Loaded { config, origins: self.origins }),
            Err(error) => {
                let key = error.path().to_string();
                let path: Vec<String> = key.split('.').map(str::to_owned).collect();
                let origin = self.origins.get(&path).or_else(|| {
                    // Within a list, or for a whole section that lacks a key.
                    self.origins.iter().find(|(set, _)| set[0] == path[0]).map(|(_, origin)| origin)
                });
                let origin = origin.cloned().unwrap_or(Origin::Default);
                let detail = error.inner().message().trim_end().to_owned();
                Err(LoadError::Value { key, detail, origin })
            }
        }
    }
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
mod tests {
    use std::time::Duration;

    use super::*;

    fn environment(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    fn file(text: &str) -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        file
    }

    fn inputs(text: &str) -> (tempfile::NamedTempFile, Inputs) {
        let file = file(text);
        let inputs = Inputs { file: Some(file.path().to_owned()), ..Inputs::default() };
        (file, inputs)
    }

    #[test]
    fn later_layers_win_and_each_value_knows_where_it_came_from() {
        let (file, mut inputs) = inputs(
            "[relay]\nbatch_size = 1\nmax_attempts = 1\nlease = \"1m\"\n[sinks.A]\nkind = \"stdout\"",
        );
        inputs.environment = environment(&[
            ("POSTRIDER__RELAY__BATCH_SIZE", "2"),
            ("POSTRIDER__RELAY__MAX_ATTEMPTS", "2"),
            ("POSTRIDER__SINKS__A__TIMEOUT", "3s"),
            ("POSTRIDER_CONFIG", "elsewhere"),
        ]);
        inputs.set = vec!["relay.batch_size=3".into()];

        let loaded = load(&inputs).unwrap();

        assert_eq!(loaded.config.relay.batch_size, 3);
        assert_eq!(loaded.config.relay.max_attempts, 2);
        assert_eq!(loaded.config.relay.lease, Duration::from_secs(60));
        assert_eq!(loaded.config.sinks["A"].timeout, Duration::from_secs(3));
        assert_eq!(loaded.origin(&["relay", "batch_size"]), Origin::Set);
        let variable = Origin::Environment("POSTRIDER__RELAY__MAX_ATTEMPTS".into());
        assert_eq!(loaded.origin(&["relay", "max_attempts"]), variable);
        let in_file = Origin::File(file.path().to_owned());
        assert_eq!(loaded.origin(&["relay", "lease"]), in_file);
        assert_eq!(loaded.origin(&["relay", "poll_interval"]), Origin::Default);
    }

    #[test]
    fn a_section_may_be_given_as_one_table() {
        let table = "{ sink = \"a\", destination = \"d\" }";
        let inputs = Inputs {
            environment: environment(&[("POSTRIDER__RELAY__DEAD_LETTER", table)]),
            set: vec!["relay.backoff={ kind = \"fixed\" }".into()],
            ..Inputs::default()
        };

        let config = load(&inputs).unwrap().config;

        assert_eq!(config.relay.dead_letter.unwrap().destination, "d");
        assert_eq!(config.relay.backoff.kind, crate::config::tree::BackoffKind::Fixed);
    }

    #[test]
    fn properties_come_from_every_layer_by_their_own_names() {
        let secret = file("hush\n");
        let (_file, mut inputs) = inputs(
            "[sinks.K]\nkind = \"kafka\"\n[sinks.K.properties]\nsasl.username = \"u\"\nlinger.ms = 1",
        );
        inputs.environment = environment(&[
            (
                "POSTRIDER__SINKS__K__PROPERTIES__SASL_PASSWORD_FILE",
                secret.path().to_str().unwrap(),
            ),
            ("POSTRIDER__SINKS__K__PROPERTIES__LINGER_MS", "2"),
        ]);
        inputs.set = vec!["sinks.K.properties={ \"ssl.ca.location\" = \"/ca\" }".into()];

        let loaded = load(&inputs).unwrap();

        let properties = loaded.config.sinks["K"].properties.clone().unwrap();
        let expected = [
            ("linger.ms", "2"),
            ("sasl.password", "hush"),
            ("sasl.username", "u"),
            ("ssl.ca.location", "/ca"),
        ];
        assert_eq!(properties, crate::config::properties::Properties::from(expected));
        let origin = loaded.origin(&["sinks", "K", "properties", "ssl.ca.location"]);
        assert_eq!(origin, Origin::Set);
    }

    #[test]
    fn every_unknown_key_is_told_at_once_with_the_nearest_right_one() {
        let (_file, mut inputs) =
            inputs("[relay]\nbatchsize = 1\n[[routes]]\ntyp = \"x\"\n[sink.a]\nkind = \"stdout\"");
        inputs.environment = environment(&[("POSTRIDER__RELAY__LEASES", "1s")]);

        let error = load(&inputs).unwrap_err().to_string();

        for part in [
            "relay.batchsize is no key; did you mean relay.batch_size?",
            "routes.0.typ is no key; did you mean routes.0.type?",
            "sink.a.kind is no key; did you mean sinks.a.kind?",
            "relay.leases is no key; did you mean relay.lease? (from POSTRIDER__RELAY__LEASES)",
        ] {
            assert!(error.contains(part), "{part}\n--\n{error}");
        }
    }

    #[test]
    fn a_secret_is_read_from_a_file_without_its_last_newline() {
        let secret = file("mongodb://u:p@h/db\n");
        let name = secret.path().to_str().unwrap();
        let both = [("POSTRIDER__MONGO__URI", "x"), ("POSTRIDER__MONGO__URI_FILE", name)];

        let one = Inputs { environment: environment(&both[1..]), ..Inputs::default() };
        let two = Inputs { environment: environment(&both), ..Inputs::default() };

        let uri = load(&one).unwrap().config.mongo.uri.unwrap();
        assert_eq!(uri.expose(), "mongodb://u:p@h/db");
        assert!(load(&two).unwrap_err().to_string().contains("keep one of the two"));
    }

    #[test]
    fn text_for_text_keys_is_taken_as_it_is_and_other_text_is_toml() {
        let set = |setting: &str| Inputs { set: vec![setting.into()], ..Inputs::default() };

        let database = load(&set("mongo.database=12")).unwrap().config.mongo.database;
        let relayed = load(&set("relay.enabled=false")).unwrap().config.relay.enabled;
        let wrong = load(&set("relay.enabled=nope")).unwrap_err().to_string();

        assert_eq!(database.as_deref(), Some("12"));
        assert!(!relayed);
        assert!(wrong.starts_with("relay.enabled: is not a TOML value"), "{wrong}");
    }

    #[test]
    fn a_wrong_value_is_told_with_its_key_its_place_and_what_would_be_right() {
        for (text, key, part) in [
            ("[relay]\nlease = 30", "relay.lease", "a text with a unit"),
            ("[relay]\nordering = \"keys\"", "relay.ordering", "`key`"),
            ("[relay]\nbatch_bytes = \"16\"", "relay.batch_bytes", "has no unit"),
            ("[sinks.a]\nuri = \"x\"", "sinks.a", "kind"),
        ] {
            let (file, inputs) = inputs(text);

            let error = load(&inputs).unwrap_err().to_string();

            assert!(error.starts_with(key), "{error}");
            assert!(error.contains(part), "{error}");
            assert!(error.contains(file.path().to_str().unwrap()), "{error}");
        }
    }

    #[test]
    fn a_file_that_is_no_toml_is_told_by_line_without_quoting_it() {
        let (_file, inputs) = inputs("[mongo]\nuri = \"mongodb://u:secret@h\n");

        let error = load(&inputs).unwrap_err().to_string();

        assert!(error.contains(":2:"), "{error}");
        assert!(!error.contains("secret"), "{error}");
    }

    #[test]
    fn a_named_file_that_is_missing_is_an_error() {
        let inputs = Inputs { file: Some("/nowhere/postrider.toml".into()), ..Inputs::default() };

        assert!(load(&inputs).unwrap_err().to_string().contains("/nowhere/postrider.toml"));
    }
}
