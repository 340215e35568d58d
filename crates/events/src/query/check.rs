//! The rules of conditions: limits, values that MongoDB would misread, operators that are not allowed.

use bson::Bson;

use super::condition::{Condition, Test};
use super::date::{DateTest, MAX_DAYS};
use super::{MAX_LEVELS, MAX_NODES, MAX_TEXT_BYTES, MAX_VALUES, raw};
use crate::Flaw;

/// The size of a condition so far.
#[derive(Default)]
struct Checker {
    allows_raw: bool,
    nodes: usize,
    values: usize,
    levels: usize,
    /// Whether there is a full-text search.
    searches: bool,
    flaws: Vec<Flaw>,
}

/// Where a condition stands.
#[derive(Clone, Copy)]
struct Place<'p> {
    path: &'p str,
    level: usize,
    /// Whether a full-text search may stand here.
    allows_match: bool,
}

/// Returns the flaws of a condition, whose JSON has this path: too large, a value that is an operator, an
/// operator that is not allowed.
pub(super) fn flaws(condition: &Condition, path: &str, allows_raw: bool) -> Vec<Flaw> {
    let mut checker = Checker { allows_raw, ..Checker::default() };
    checker.condition(condition, Place { path, level: 1, allows_match: true });
    let Checker { nodes, levels, values, mut flaws, .. } = checker;
    for (is_over, detail) in [
        (nodes > MAX_NODES, format!("has {nodes} conditions; at most {MAX_NODES} are allowed")),
        (levels > MAX_LEVELS, format!("has {levels} levels; at most {MAX_LEVELS} are allowed")),
        (
            values > MAX_VALUES,
            format!("has {values} values in lists; at most {MAX_VALUES} are allowed"),
        ),
    ] {
        if is_over {
            flaws.push(Flaw::new(path, detail));
        }
    }
    flaws
}

/// The path of a member; that of the whole is empty where the body is the condition.
pub(super) fn below(path: &str, member: &str) -> String {
    if path.is_empty() { member.to_owned() } else { format!("{path}.{member}") }
}

impl Checker {
    fn flaw(&mut self, place: Place<'_>, member: &str, detail: impl Into<String>) {
        self.flaws.push(Flaw::new(below(place.path, member), detail));
    }

    fn condition(&mut self, condition: &Condition, place: Place<'_>) {
        self.nodes += 1;
        self.levels = self.levels.max(place.level);
        // The tree was built by recursion already; this limits the work on a hostile one.
        if self.nodes > 10 * MAX_NODES || place.level > 10 * MAX_LEVELS {
            return;
        }
        match condition {
            Condition::And(children) | Condition::Or(children) | Condition::Nor(children)
                if children.is_empty() =>
            {
                self.flaw(place, "children", "is empty; at least one condition is required");
            }
            Condition::Ids(ids) | Condition::AggregateIds(ids) => self.values += ids.len(),
            Condition::Match(text) => {
                if !place.allows_match || std::mem::replace(&mut self.searches, true) {
                    let detail = "MATCH is allowed once, at the root or in AND and OR";
                    self.flaw(place, "operator", detail);
                }
                self.text(text, place);
            }
            Condition::Raw(_) if !self.allows_raw => {
                self.flaw(
                    place,
                    "operator",
                    "RAW is disabled; set queries.raw = true to enable it",
                );
            }
            Condition::Raw(filter) => match raw::check(filter) {
                Ok(size) => {
                    self.nodes += size.nodes - 1;
                    self.levels = self.levels.max(place.level + size.levels - 1);
                    self.values += size.values;
                }
                Err(detail) => self.flaw(place, "value", detail),
            },
            Condition::Field(_, test) => self.test(test, place),
            _ => {}
        }
        let allows_match = match condition {
            Condition::And(_) | Condition::Or(_) => place.allows_match,
            _ => false,
        };
        for (at, child) in condition.children().iter().enumerate() {
            let path = below(place.path, &format!("children[{at}]"));
            self.condition(child, Place { path: &path, level: place.level + 1, allows_match });
        }
    }

    fn test(&mut self, test: &Test, place: Place<'_>) {
        match test {
            Test::Compare(_, value) => self.value(value, "value", place),
            Test::Between(first, last) => {
                self.value(first, "value[0]", place);
                self.value(last, "value[1]", place);
            }
            Test::In(values) | Test::NotIn(values) | Test::AllIn(values) => {
                self.values += values.len();
                for (at, value) in values.iter().take(MAX_VALUES).enumerate() {
                    self.value(value, &format!("value[{at}]"), place);
                }
            }
            Test::Text(_, text, _) => {
                if text.contains('\0') {
                    self.flaw(
                        place,
                        "value",
                        "contains U+0000, which a text search cannot contain",
                    );
                }
                self.text(text, place);
            }
            Test::Date(DateTest::RecentDays(days) | DateTest::EarlierDays(days), _)
                if !(1..=MAX_DAYS).contains(days) =>
            {
                self.flaw(place, "value", format!("must be a number of days from 1 to {MAX_DAYS}"));
            }
            _ => {}
        }
    }

    fn text(&mut self, text: &str, place: Place<'_>) {
        if text.len() > MAX_TEXT_BYTES {
            let detail = format!("has {} bytes; at most {MAX_TEXT_BYTES} are allowed", text.len());
            self.flaw(place, "value", detail);
        }
    }

    /// Values that MongoDB would take for a search, or cannot read or compare.
    fn value(&mut self, value: &Bson, member: &str, place: Place<'_>) {
        let refused = match value {
            Bson::RegularExpression(_) => {
                "is a regular expression; use CONTAINS, STARTS_WITH or ENDS_WITH"
            }
            Bson::Undefined => "is undefined; use NULL to find null or absent fields",
            value if has_nul_name(value) => "contains U+0000 in a name, which BSON does not allow",
            _ => return,
        };
        self.flaw(place, member, refused);
    }
}

/// Whether a name in the documents of a value has a NUL.
fn has_nul_name(value: &Bson) -> bool {
    match value {
        Bson::Document(inner) => {
            inner.iter().any(|(name, value)| name.contains('\0') || has_nul_name(value))
        }
        Bson::Array(items) => items.iter().any(has_nul_name),
        _ => false,
    }
}
