//! Configuration: where it comes from, what is wrong with it, how it is shown (contract, section 5).
//!
//! ```text
//! defaults < file < POSTRIDER__… < --set        load: merge, name the unknown, keep the origin
//!     → tree::Config                            deserialised, durations and sizes with units
//!     → resolve::Resolved                       cross-field rules; what the parts are built from
//! ```
//!
//! | module | what it holds |
//! |---|---|
//! | [`tree`] | every key, its type and its default |
//! | [`keys`] | the same keys as patterns: for suggestions, and for reading text from the environment |
//! | [mod@load], [mod@file], [`variable`] | the layers, merged |
//! | [mod@resolve] | the rules, and the result |
//! | [`problem`] | what is wrong, and where it was written |
//! | [mod@print] | `postrider config print` |
//! | [`token`], [`postrider_settings`] | kinds of values |

pub mod file;
pub mod keys;
pub mod load;
pub mod print;
pub mod problem;
pub mod resolve;
pub mod token;
pub mod tree;
pub mod variable;

pub use load::{Inputs, LoadError, Loaded, load};
pub use problem::{Origin, Problem};
pub use resolve::{Resolved, resolve};

#[cfg(test)]
mod reference;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::tree::Config;

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

        resolve(&Loaded { config, ..Loaded::default() }).unwrap();
    }

    #[test]
    fn the_smallest_file_runs() {
        let config: Config = toml::from_str(MINIMAL).unwrap();
        resolve(&Loaded { config, ..Loaded::default() }).unwrap();
    }

    #[test]
    fn every_key_of_the_tree_is_a_known_key() {
        let defaults = toml::Table::try_from(Config::default()).unwrap();
        let mut found = Vec::new();
        leaves(&defaults, &mut Vec::new(), &mut found);

        for key in found {
            assert!(keys::holds(&key).is_some(), "{key:?}");
        }
    }
}
