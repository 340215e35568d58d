//! Patterns over names, message types and destinations: `*` any run, `?` one character.

use bson::raw::cstr;
use bson::{Bson, Regex};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A pattern that must match the whole text, case-sensitively.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(from = "String", into = "String")]
pub struct Glob {
    pattern: Vec<char>,
}

impl From<String> for Glob {
    fn from(pattern: String) -> Self {
        Self::new(&pattern)
    }
}

impl From<Glob> for String {
    fn from(glob: Glob) -> Self {
        glob.pattern.into_iter().collect()
    }
}

impl Glob {
    /// Any text is a pattern.
    pub fn new(pattern: &str) -> Self {
        Self { pattern: pattern.chars().collect() }
    }

    /// Whether every text matches.
    pub fn matches_all(&self) -> bool {
        !self.pattern.is_empty() && self.pattern.iter().all(|c| *c == '*')
    }

    /// The only text that matches, if there is one.
    pub fn literal(&self) -> Option<String> {
        let is_literal = !self.pattern.iter().any(|c| matches!(c, '*' | '?'));
        is_literal.then(|| self.pattern.iter().collect())
    }

    /// What matches the same texts in a filter of MongoDB: the text, or a regular expression.
    pub fn filter(&self) -> Bson {
        if let Some(text) = self.literal() {
            return text.into();
        }
        let mut pattern = String::from("^");
        for char in &self.pattern {
            match char {
                '*' => pattern.push_str(".*"),
                '?' => pattern.push('.'),
                // The bytes of an expression end at a NUL.
                '\0' => pattern.push_str("\\x00"),
                literal => {
                    if !literal.is_alphanumeric() && literal.is_ascii() {
                        pattern.push('\\');
                    }
                    pattern.push(*literal);
                }
            }
        }
        // Not `$`, which also matches before a newline at the end.
        pattern.push_str("\\z");
        match pattern.try_into() {
            Ok(pattern) => Bson::RegularExpression(Regex { pattern, options: cstr!("s").into() }),
            // (It contains no NUL.)
            Err(_) => String::from(self.clone()).into(),
        }
    }

    /// Whether the whole of `text` matches.
    ///
    /// Greedy with one point of return (the last `*`), so that it takes time proportional
    /// to pattern × text at worst, whatever a user writes.
    pub fn matches(&self, text: &str) -> bool {
        let text: Vec<char> = text.chars().collect();
        let (mut at, mut in_text) = (0, 0);
        let mut last_star: Option<(usize, usize)> = None;
        while in_text < text.len() {
            match self.pattern.get(at) {
                Some('*') => {
                    last_star = Some((at, in_text));
                    at += 1;
                }
                Some(wanted) if *wanted == '?' || *wanted == text[in_text] => {
                    at += 1;
                    in_text += 1;
                }
                _ => {
                    // Let the last star swallow one character more.
                    let Some((star, swallowed)) = last_star else { return false };
                    last_star = Some((star, swallowed + 1));
                    at = star + 1;
                    in_text = swallowed + 1;
                }
            }
        }
        self.pattern[at..].iter().all(|rest| *rest == '*')
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filter_of_a_pattern_is_a_text_or_an_expression() {
        assert_eq!(Glob::new("Order.Placed").filter(), Bson::from("Order.Placed"));
        for (pattern, expected) in [
            ("Order.*", "^Order\\..*\\z"),
            ("a?[b]\\", "^a.\\[b\\]\\\\\\z"),
            ("ä\0*", "^ä\\x00.*\\z"),
        ] {
            let Bson::RegularExpression(expression) = Glob::new(pattern).filter() else {
                panic!("{pattern}")
            };
            assert_eq!(expression.pattern.as_str(), expected);
            assert_eq!(expression.options.as_str(), "s");
        }
    }

    #[test]
    fn a_pattern_matches_the_whole_text_case_sensitively() {
        for (pattern, text, matches) in [
            ("*", "", true),
            ("Order*", "OrderCreated", true),
            ("Order*", "orderCreated", false),
            ("*Created", "OrderCreated", true),
            ("*Cr*d", "OrderCreated", true),
            ("Order", "OrderCreated", false),
            ("Order?", "Orders", true),
            ("Order?", "Order", false),
            ("?", "ß", true),
            ("a*b*c", "a-b-b-c", true),
            ("a*b*c", "a-b-b", false),
            ("", "", true),
            ("", "x", false),
        ] {
            assert_eq!(Glob::new(pattern).matches(text), matches, "{pattern:?} on {text:?}");
        }
    }
}
