//! Patterns over names, message types and destinations: `*` any run, `?` one character.

use std::fmt;

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

impl fmt::Display for Glob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.pattern.iter().try_for_each(|c| write!(f, "{c}"))
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

    /// The regular expression that matches the same texts, for PCRE with the option `s`.
    pub fn expression(&self) -> String {
        let mut expression = String::from("^");
        for char in &self.pattern {
            match char {
                '*' => expression.push_str(".*"),
                '?' => expression.push('.'),
                // The bytes of an expression end at a NUL.
                '\0' => expression.push_str("\\x00"),
                literal => {
                    if !literal.is_alphanumeric() && literal.is_ascii() {
                        expression.push('\\');
                    }
                    expression.push(*literal);
                }
            }
        }
        // Not `$`, which also matches before a newline at the end.
        expression.push_str("\\z");
        expression
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
    fn expression_matches_the_text_of_the_pattern() {
        for (pattern, expected) in [
            ("Order.*", "^Order\\..*\\z"),
            ("a?[b]\\", "^a.\\[b\\]\\\\\\z"),
            ("ä\0*", "^ä\\x00.*\\z"),
        ] {
            assert_eq!(Glob::new(pattern).expression(), expected);
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
