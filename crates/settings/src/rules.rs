//! The violations that a part finds in its section of the configuration.

/// One broken rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The full key to change, such as `sinks.orders.uri`.
    pub key: String,
    /// What is wrong and what to do; without the value, which may be a secret.
    pub detail: String,
}

/// Collects violations, so that all of them are reported at once.
#[derive(Debug, Default)]
pub struct Rules {
    prefix: String,
    violations: Vec<Violation>,
}

impl Rules {
    /// Records a violation of a key below the current section.
    pub fn wrong(&mut self, key: impl AsRef<str>, detail: impl Into<String>) {
        let key = format!("{}{}", self.prefix, key.as_ref());
        self.violations.push(Violation { key, detail: detail.into() });
    }

    /// Records a violation where a condition does not hold.
    pub fn require(&mut self, holds: bool, key: impl AsRef<str>, detail: impl Into<String>) {
        if !holds {
            self.wrong(key, detail);
        }
    }

    /// Checks a section: the keys that `check` names are below `section`.
    pub fn within<T>(&mut self, section: &str, check: impl FnOnce(&mut Self) -> T) -> T {
        let outer = self.prefix.len();
        self.prefix.push_str(section);
        self.prefix.push('.');
        let checked = check(self);
        self.prefix.truncate(outer);
        checked
    }

    /// Every violation so far, in the order of the checks.
    pub fn violations(&self) -> &[Violation] {
        &self.violations
    }
}

impl From<Rules> for Vec<Violation> {
    fn from(rules: Rules) -> Self {
        rules.violations
    }
}

/// The likeness below which a name is not a misspelling of another one.
const MIN_LIKENESS: f64 = 0.8;

/// `; did you mean NAME?` for the name most like a wrong one; empty if none is like it.
pub fn did_you_mean<'n>(wrong: &str, names: impl IntoIterator<Item = &'n str>) -> String {
    let names = names.into_iter();
    let nearest = names
        .map(|name| (strsim::jaro_winkler(name, wrong), name))
        .filter(|(likeness, _)| *likeness > MIN_LIKENESS)
        .max_by(|one, other| one.0.total_cmp(&other.0));
    nearest.map(|(_, name)| format!("; did you mean {name}?")).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_section_prefixes_the_keys_within_it() {
        let mut rules = Rules::default();

        rules.within("relay", |rules| {
            rules.within("backoff", |rules| rules.wrong("max", "is below initial"));
            rules.require(true, "lease", "unused");
        });
        rules.wrong("sinks", "there is no sink");

        let keys: Vec<&str> = rules.violations().iter().map(|it| it.key.as_str()).collect();
        assert_eq!(keys, ["relay.backoff.max", "sinks"]);
    }

    #[test]
    fn only_a_similar_name_is_suggested() {
        assert_eq!(did_you_mean("rabbit", ["kafka", "rabbitmq"]), "; did you mean rabbitmq?");
        assert_eq!(did_you_mean("nats", ["kafka", "rabbitmq"]), "");
    }
}
