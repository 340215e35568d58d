//! `postrider config print`: TOML that parses back, with where each value came from.

use toml::{Table, Value};

use postrider_settings::quoted;
use postrider_settings::secret::shown_name;

use crate::config::keys::dotted;
use crate::config::load::LoadedConfig;
use crate::config::problem::Origin;
use crate::config::redacted::hide;

/// The whole configuration, defaults too, each value with its origin as a comment and secrets hidden.
pub fn print(loaded: &LoadedConfig) -> String {
    // A tree of plain values: nothing in it can fail to serialise.
    let tree = Table::try_from(&loaded.config).unwrap_or_default();
    let mut printer = Printer { loaded, text: String::new() };
    printer.section(&tree, &mut Vec::new());
    printer.text.trim_start().to_owned()
}

struct Printer<'a> {
    loaded: &'a LoadedConfig,
    text: String,
}

impl Printer<'_> {
    fn section(&mut self, table: &Table, path: &mut Vec<String>) {
        let mut leaves = String::new();
        for (name, value) in table {
            path.push(name.clone());
            if !value.is_table() && path != &["routes"] {
                let shown = escaped(hide(path, value));
                let origin = self.loaded.origins.get(path.as_slice()).unwrap_or(&Origin::Default);
                let origin = comment(origin);
                leaves.push_str(&format!("{} = {shown} # {origin}\n", quoted(name)));
            }
            path.pop();
        }
        if !leaves.is_empty() {
            if !path.is_empty() {
                let shown: Vec<String> = path.iter().map(|name| shown_name(name).into()).collect();
                self.text.push_str(&format!("\n[{}]\n", dotted(&shown)));
            }
            self.text.push_str(&leaves);
        }
        for (name, value) in table {
            path.push(name.clone());
            match value {
                Value::Table(below) => self.section(below, path),
                Value::Array(routes) if path == &["routes"] => self.routes(routes),
                _ => {}
            }
            path.pop();
        }
    }

    fn routes(&mut self, routes: &[Value]) {
        let origin = comment(&self.loaded.origin(&["routes"]));
        for (at, route) in routes.iter().enumerate() {
            let Some(route) = route.as_table() else { continue };
            self.text.push_str(&format!("\n[[routes]] # {origin}\n"));
            for (name, value) in route {
                if value.as_table().is_some_and(Table::is_empty) {
                    continue;
                }
                let path = ["routes".to_owned(), at.to_string(), name.clone()];
                let shown = escaped(hide(&path, value));
                self.text.push_str(&format!("{} = {shown}\n", quoted(name)));
            }
        }
    }
}

/// The value with `$${` for `${`, which would be a variable in a file.
fn escaped(value: Value) -> Value {
    match value {
        Value::String(text) => Value::String(text.replace("${", "$${")),
        Value::Array(items) => Value::Array(items.into_iter().map(escaped).collect()),
        Value::Table(table) => {
            Value::Table(table.into_iter().map(|(name, item)| (name, escaped(item))).collect())
        }
        value => value,
    }
}

/// Where a value came from, on one line: a file's name can have more.
fn comment(origin: &Origin) -> String {
    origin.to_string().replace(char::is_control, " ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::load::{Inputs, load};
    use crate::config::sections::Config;

    fn loaded(settings: &[&str]) -> LoadedConfig {
        let set = settings.iter().map(|setting| (*setting).to_owned()).collect();
        load(&Inputs { set, ..Inputs::default() }).unwrap()
    }

    #[test]
    fn what_is_printed_parses_back_to_the_same() {
        let loaded = loaded(&[
            "mongo.database=app",
            "sinks.\"a b\".kind=stdout",
            "routes=[{type = \"Order*\", headers = {a = \"{type}\"}}]",
            "relay.batch_bytes=3KiB",
        ]);

        let printed = print(&loaded);

        let parsed: Config = toml::from_str(&printed).unwrap();
        assert_eq!(parsed, loaded.config, "{printed}");
    }

    /// A name with a new line in it, of a sink or of the file.
    #[test]
    fn names_of_any_characters_stay_on_their_line() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("a\nb.toml");
        let text =
            "[sinks.\"x\\ny\"]\nkind = \"stdout\"\n[[routes]]\nheaders = { \"a\\nb\" = \"\\n\" }";
        std::fs::write(&file, text).unwrap();
        let loaded = load(&Inputs { file: Some(file), ..Inputs::default() }).unwrap();

        let printed = print(&loaded);

        let parsed: Config = toml::from_str(&printed).unwrap_or_else(|_| panic!("{printed}"));
        assert_eq!(parsed, loaded.config, "{printed}");
    }

    #[test]
    fn text_like_a_variable_reads_back_as_it_is() {
        let loaded = loaded(&[
            "events.context=a ${HOME} $${B} ${",
            "sinks.f.kind=file",
            "sinks.f.path=/${x}",
            "routes=[{headers = {a = \"${type}\", \"${b}\" = \"\"}}]",
        ]);
        let file = tempfile::NamedTempFile::new().unwrap();

        std::fs::write(file.path(), print(&loaded)).unwrap();

        let inputs = Inputs { file: Some(file.path().to_owned()), ..Inputs::default() };
        assert_eq!(load(&inputs).unwrap().config, loaded.config);
    }

    #[test]
    fn each_value_says_where_it_came_from() {
        let printed = print(&loaded(&["relay.batch_size=7"]));

        assert!(printed.contains("batch_size = 7 # --set"), "{printed}");
        assert!(printed.contains("max_attempts = 10 # default"), "{printed}");
    }

    #[test]
    fn no_secret_is_printed() {
        let printed = print(&loaded(&[
            "mongo.uri=mongodb://u:hidden@h/db",
            "sinks.r.kind=rabbitmq",
            "sinks.r.uri=amqp://u:hidden@h",
            "sinks.k.kind=kafka",
            "sinks.k.brokers=[\"one:1\", \"kafka://u:hidden@h:1\"]",
            "mongo.database=mongodb://u:hidden@h/db",
            "routes=[{headers = {a = \"https://u:hidden@h\", Authorization = \"Bearer hidden\", key_file = \"shown three\"}}]",
            "sinks.k.properties={\"sasl.password\" = \"hidden\", \"sasl.username\" = \"shown\"}",
            "api.tokens=[\"hidden\", { name = \"shown too\", token = \"hidden\", types = [\"shown*\"] }]",
            "events.context=u%3Ahidden%40h",
        ]));

        assert!(!printed.contains("hidden"), "{printed}");
        assert!(printed.contains("shown\""), "{printed}");
        assert!(printed.contains("shown too"), "{printed}");
        assert!(printed.contains("shown*"), "{printed}");
        assert!(printed.contains("shown three"), "{printed}");
        assert!(toml::from_str::<Config>(&printed).is_ok(), "{printed}");
    }
}
