//! Configuration: its layers, the problems in it, and how it is shown.
//!
//! ```text
//! defaults < file < POSTRIDER__… < --set        load: merge, report unknown keys, keep the origins
//!     → sections::Config                        deserialised, each section the type of its part
//!     → resolve::Resolved                       rules of more than one section; what the parts are built from
//! ```
//!
//! A part owns its section, with defaults, texts and rules; everything here follows from the types.
//!
//! | module | contents |
//! |---|---|
//! | [`sections`] | the sections |
//! | [`keys`] | the keys, from the JSON Schema of the sections |
//! | [mod@load], [mod@file], `substitute`, [`variable`] | the layers, merged |
//! | [mod@resolve] | the rules of more than one section, and the result |
//! | [`problem`] | a problem, and where the value was written |
//! | `redacted` | one value as text, without secrets |
//! | [mod@print] | `postrider config print` |
//! | `generated` | the reference page, the sample, the JSON Schemas (made by a test) |

pub mod file;
pub mod keys;
pub mod load;
pub mod print;
pub mod problem;
mod redacted;
pub mod resolve;
pub mod sections;
mod substitute;
pub mod variable;

pub use load::{ConfigLoadError, Inputs, LoadedConfig, load};
pub use problem::{ConfigProblem, Origin};
pub use resolve::{Resolved, resolve};
pub use sections::Config;

#[cfg(test)]
mod generated;

#[cfg(test)]
mod tests {
    use super::*;

    const FULL: &str = include_str!("../../config/postrider.toml");
    const MINIMAL: &str = include_str!("../../config/minimal.toml");

    fn leaves(table: &toml::Table, path: &mut Vec<String>, found: &mut Vec<Vec<String>>) {
        for (name, value) in table {
            path.push(name.clone());
            match value {
                toml::Value::Table(below) => leaves(below, path, found),
                _ => found.push(path.clone()),
            }
            path.pop();
        }
    }

    #[test]
    fn the_sample_file_holds_the_defaults() {
        assert_eq!(toml::from_str::<Config>(FULL).unwrap(), Config::default());
    }

    #[test]
    fn the_sample_file_shows_every_key_that_has_a_default() {
        let (mut wanted, mut shown) = (Vec::new(), Vec::new());
        let defaults = toml::Table::try_from(Config::default()).unwrap();
        leaves(&defaults, &mut Vec::new(), &mut wanted);
        leaves(&FULL.parse().unwrap(), &mut Vec::new(), &mut shown);

        for key in wanted.iter().filter(|key| *key != &["routes"]) {
            assert!(shown.contains(key), "{key:?} is not in config/postrider.toml");
        }
    }

    #[test]
    fn the_sample_file_with_its_examples_is_right_too() {
        // `#key = …` and `#[section]` are examples; `# words` are not.
        let with_examples: String = FULL
            .lines()
            .map(|line| match line.strip_prefix('#') {
                Some(example) if !example.starts_with([' ', '#']) => format!("{example}\n"),
                _ => format!("{line}\n"),
            })
            .collect();

        let config: Config = toml::from_str(&with_examples).unwrap();

        // Some examples are alternatives of each other, and the files that they name are not here.
        let problems = resolve(&LoadedConfig { config, ..LoadedConfig::default() }).unwrap_err();
        let is_expected = |problem: &ConfigProblem| {
            problem.detail.starts_with("cannot read the file")
                || problem.detail.ends_with("remove one of the two")
                || problem.detail.starts_with("must be the same file as mongo.tls.cert_file")
                || problem.detail.ends_with("create the topics by other means")
        };
        let others: Vec<&ConfigProblem> =
            problems.iter().filter(|problem| !is_expected(problem)).collect();
        assert!(others.is_empty(), "{others:?}");
    }

    #[test]
    fn the_smallest_file_runs() {
        let config: Config = toml::from_str(MINIMAL).unwrap();
        resolve(&LoadedConfig { config, ..LoadedConfig::default() }).unwrap();
    }

    #[test]
    fn every_key_of_the_tree_is_a_known_key() {
        let defaults = toml::Table::try_from(Config::default()).unwrap();
        let mut found = Vec::new();
        leaves(&defaults, &mut Vec::new(), &mut found);

        for key in found {
            assert!(keys::form(&key).is_some(), "{key:?}");
        }
    }
}
