//! A problem of the configuration, with the place where the value was written.

use std::fmt;
use std::path::PathBuf;

use postrider_settings::secret::shown_name;
use postrider_settings::{Violation, did_you_mean};

/// Where one value came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// No layer sets it.
    Default,
    /// A line of the file, from 1.
    File(PathBuf, usize),
    /// An environment variable.
    Environment(String),
    /// The command line.
    Set,
}

impl From<Violation> for ConfigProblem {
    fn from(violation: Violation) -> Self {
        Self::new(violation.key, violation.detail)
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File(path, line) => write!(f, "{}:{line}", path.display()),
            Self::Environment(name) => f.write_str(name),
            Self::Set => f.write_str("--set"),
        }
    }
}

/// One thing that is wrong: an unknown key, a value of the wrong type, a broken rule.
///
/// `Display` is one line: `postrider.toml:6: relay.max_attempts = 0: must be between 1 and 1000000`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigProblem {
    /// Where it was written; the default where no layer sets the key.
    pub origin: Origin,
    /// The key to change.
    pub key: String,
    /// Its value as TOML; never a secret, and none of a list or a table.
    pub value: Option<String>,
    /// What is wrong, and what to do.
    pub detail: String,
}

impl ConfigProblem {
    /// A problem whose place and value are not known yet.
    pub fn new(key: impl Into<String>, detail: impl Into<String>) -> Self {
        Self { origin: Origin::Default, key: key.into(), value: None, detail: detail.into() }
    }
}

impl fmt::Display for ConfigProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.origin != Origin::Default {
            write!(f, "{}: ", self.origin)?;
        }
        f.write_str(&shown_key(&self.key))?;
        if let Some(value) = &self.value {
            write!(f, " = {value}")?;
        }
        write!(f, ": {}", self.detail)
    }
}

/// The key without a name in it that may be a secret in the wrong place.
pub(super) fn shown_key(key: &str) -> String {
    let parts = key.split('"').enumerate().map(|(at, part)| {
        if at % 2 == 1 {
            return match shown_name(part) {
                shown if shown == part => format!("\"{part}\""),
                hidden => hidden.to_owned(),
            };
        }
        part.split('.').map(shown_name).collect::<Vec<_>>().join(".")
    });
    parts.collect()
}

/// The end of the deserializer's message about a value that is not text, where an enum is expected.
pub const NO_NAME: &str = "expected string only";

/// What is wrong with a value that does not fit its type, from the words of the deserializer: what
/// they say of the value itself is left out, since it may be a secret.
///
/// `field` is the key that is missing, where one is.
pub fn of_type(message: &str, value: Option<&str>) -> (Option<String>, String) {
    let message = message.trim_end();
    let quoted = |text: &str| text.split('`').nth(1).unwrap_or_default().to_owned();
    if message.starts_with("missing field ") {
        return (Some(quoted(message)), "is not set; set it".to_owned());
    }
    if message.starts_with("unknown field ") {
        let known = message.split_once(", expected ").map_or("none", |(_, known)| known);
        return (Some(quoted(message)), format!("unknown key; must be {known}"));
    }
    if message.starts_with("data did not match any variant") {
        return (None, "must be text or a list of texts".to_owned());
    }
    let Some((_, wanted)) = message.split_once(", expected ") else {
        return (None, message.to_owned());
    };
    let wanted = match wanted {
        "a boolean" => "true or false",
        "usize" | "u32" | "u64" => "an integer of 0 or above",
        "i32" => "an integer between 1 and 2147483647",
        "f64" => "a number",
        "a string" | "path string" => "text",
        "a sequence" => "a list",
        "a map" => "a table",
        wanted if wanted.starts_with("struct ") => "a table",
        wanted => wanted,
    };
    let names = wanted.split('`').skip(1).step_by(2);
    let given = value.unwrap_or_default().trim_matches('"');
    (None, format!("must be {wanted}{}", did_you_mean(given, names)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_problem_is_one_line_of_place_key_value_and_what_is_wrong() {
        let mut problem = ConfigProblem::new("relay.max_attempts", "must be between 1 and 1000000");
        assert_eq!(problem.to_string(), "relay.max_attempts: must be between 1 and 1000000");

        problem.origin = Origin::File("a.toml".into(), 6);
        problem.value = Some("0".to_owned());

        let line = "a.toml:6: relay.max_attempts = 0: must be between 1 and 1000000";
        assert_eq!(problem.to_string(), line);
    }

    #[test]
    fn name_that_may_be_a_secret_is_not_shown() {
        for (key, shown) in [
            ("sinks.\"u:p@h.example\".uri", "sinks.***.uri"),
            ("sinks.Xk29vLqTz7RmB4wYd8Nc.uri", "sinks.***.uri"),
            (
                "sinks.\"a b\".properties.\"sasl.password\"",
                "sinks.\"a b\".properties.\"sasl.password\"",
            ),
        ] {
            assert_eq!(ConfigProblem::new(key, "x").to_string(), format!("{shown}: x"));
        }
    }

    #[test]
    fn a_wrong_type_says_what_is_right_and_not_what_was_there() {
        for (message, detail) in [
            ("invalid type: string \"hush\", expected a boolean", "must be true or false"),
            ("invalid value: integer `-1`, expected usize", "must be an integer of 0 or above"),
            ("invalid type: integer `1`, expected a string", "must be text"),
        ] {
            assert_eq!(of_type(message, None), (None, detail.to_owned()));
        }
        let variant = "unknown variant `rabbit`, expected one of `rabbitmq`, `kafka`, `stdout`";
        let detail = "must be one of `rabbitmq`, `kafka`, `stdout`; did you mean rabbitmq?";
        assert_eq!(of_type(variant, Some("\"rabbit\"")).1, detail);
        let missing = of_type("missing field `kind`", None);
        assert_eq!(missing, (Some("kind".to_owned()), "is not set; set it".to_owned()));
    }
}
