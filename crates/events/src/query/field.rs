//! Names of fields.

use std::fmt;

use bson::Bson;

use super::condition::{Comparison, Condition, Test, TextTest};
use super::date::{DateForm, DateTest};

/// The most bytes of a name.
const MAX_NAME_BYTES: usize = 1_024;

/// The name of a field of a document, with dots between the levels: `state.customer.id`.
///
/// Its methods are conditions on that field:
///
/// ```
/// use postrider_events::query::{Condition, FieldName};
///
/// # fn main() -> Result<(), postrider_events::query::InvalidField> {
/// let is_open = FieldName::new("state.status")?.eq("OPEN");
/// let is_large = FieldName::new("state.total")?.gte(1_000);
/// let condition = Condition::And(vec![is_open, is_large]);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct FieldName(String);

/// Why a text is not the name of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidField {
    /// It is empty.
    #[error("must name a field")]
    Empty,
    /// A level is empty.
    #[error("has an empty level: one dot stands between two names")]
    EmptyLevel,
    /// It has a `$`: a name that MongoDB could take for an operator.
    #[error("has a $, which no field of a query may have")]
    Dollar,
    /// It has a NUL.
    #[error("has a NUL")]
    Nul,
    /// It is too long.
    #[error("is too long: at most {MAX_NAME_BYTES} bytes")]
    Long,
}

impl FieldName {
    /// Checks a name.
    ///
    /// # Errors
    ///
    /// [`InvalidField`].
    pub fn new(name: impl Into<String>) -> Result<Self, InvalidField> {
        let name = name.into();
        if name.is_empty() {
            Err(InvalidField::Empty)
        } else if name.len() > MAX_NAME_BYTES {
            Err(InvalidField::Long)
        } else if name.contains('\0') {
            Err(InvalidField::Nul)
        } else if name.contains('$') {
            Err(InvalidField::Dollar)
        } else if name.split('.').any(str::is_empty) {
            Err(InvalidField::EmptyLevel)
        } else {
            Ok(Self(name))
        }
    }

    /// Stands for an invalid name until the error is reported.
    #[cfg(feature = "json")]
    pub(super) fn placeholder() -> Self {
        Self("invalid".to_owned())
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether one of the two is the other one, or contains it: `a.b` contains `a.b.c`.
    pub(super) fn overlaps(&self, other: &Self) -> bool {
        let (short, long) =
            if self.0.len() <= other.0.len() { (self, other) } else { (other, self) };
        long.0.strip_prefix(&short.0).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    }

    fn is(self, test: Test) -> Condition {
        Condition::Field(self, test)
    }

    fn compare(self, comparison: Comparison, value: impl Into<Bson>) -> Condition {
        self.is(Test::Compare(comparison, value.into()))
    }

    /// It equals the value, or is an array that contains it.
    #[expect(
        clippy::should_implement_trait,
        reason = "the operator's name; it compares a stored field"
    )]
    pub fn eq(self, value: impl Into<Bson>) -> Condition {
        self.compare(Comparison::Eq, value)
    }

    /// The opposite of [`eq`](Self::eq): true also where the field is absent.
    #[expect(
        clippy::should_implement_trait,
        reason = "the operator's name; it compares a stored field"
    )]
    pub fn ne(self, value: impl Into<Bson>) -> Condition {
        self.compare(Comparison::Ne, value)
    }

    /// It is greater than the value, and of its kind.
    pub fn gt(self, value: impl Into<Bson>) -> Condition {
        self.compare(Comparison::Gt, value)
    }

    /// It is greater than the value or equals it.
    pub fn gte(self, value: impl Into<Bson>) -> Condition {
        self.compare(Comparison::Gte, value)
    }

    /// It is less than the value, and of its kind.
    pub fn lt(self, value: impl Into<Bson>) -> Condition {
        self.compare(Comparison::Lt, value)
    }

    /// It is less than the value or equals it.
    pub fn lte(self, value: impl Into<Bson>) -> Condition {
        self.compare(Comparison::Lte, value)
    }

    /// It is from the first value to the second, both included.
    pub fn between(self, first: impl Into<Bson>, last: impl Into<Bson>) -> Condition {
        self.is(Test::Between(first.into(), last.into()))
    }

    /// It equals one of the values.
    pub fn is_in<T: Into<Bson>>(self, values: impl IntoIterator<Item = T>) -> Condition {
        self.is(Test::In(values.into_iter().map(Into::into).collect()))
    }

    /// It equals none of the values.
    pub fn not_in<T: Into<Bson>>(self, values: impl IntoIterator<Item = T>) -> Condition {
        self.is(Test::NotIn(values.into_iter().map(Into::into).collect()))
    }

    /// It is an array that contains each of the values.
    pub fn all_in<T: Into<Bson>>(self, values: impl IntoIterator<Item = T>) -> Condition {
        self.is(Test::AllIn(values.into_iter().map(Into::into).collect()))
    }

    /// It is a text that contains this one.
    pub fn contains(self, text: impl Into<String>) -> Condition {
        self.is(Test::Text(TextTest::Contains, text.into(), false))
    }

    /// It is a text that begins with this one.
    pub fn starts_with(self, text: impl Into<String>) -> Condition {
        self.is(Test::Text(TextTest::StartsWith, text.into(), false))
    }

    /// It is a text that ends with this one.
    pub fn ends_with(self, text: impl Into<String>) -> Condition {
        self.is(Test::Text(TextTest::EndsWith, text.into(), false))
    }

    /// It is an array, one element of which meets the condition.
    pub fn elem_match(self, condition: Condition) -> Condition {
        self.is(Test::ElemMatch(Box::new(condition)))
    }

    /// It is null or absent.
    pub fn is_null(self) -> Condition {
        self.is(Test::Null)
    }

    /// It is neither null nor absent.
    pub fn not_null(self) -> Condition {
        self.is(Test::NotNull)
    }

    /// It is true.
    pub fn is_true(self) -> Condition {
        self.is(Test::True)
    }

    /// It is false.
    pub fn is_false(self) -> Condition {
        self.is(Test::False)
    }

    /// It exists, or is absent; a null exists.
    pub fn exists(self, exists: bool) -> Condition {
        self.is(Test::Exists(exists))
    }

    /// It is a time in this period, in UTC and in milliseconds since 1970.
    pub fn date(self, test: DateTest) -> Condition {
        self.date_in(test, DateForm::default())
    }

    /// It is a time in this period, of a time zone and in this form.
    pub fn date_in(self, test: DateTest, form: DateForm) -> Condition {
        self.is(Test::Date(test, form))
    }
}

impl fmt::Display for FieldName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_mongodb_could_take_for_something_else_are_refused() {
        for (name, error) in [
            ("", InvalidField::Empty),
            (".", InvalidField::EmptyLevel),
            ("a..b", InvalidField::EmptyLevel),
            ("a.", InvalidField::EmptyLevel),
            (".a", InvalidField::EmptyLevel),
            ("$where", InvalidField::Dollar),
            ("a.$b", InvalidField::Dollar),
            ("a$", InvalidField::Dollar),
            ("a\0", InvalidField::Nul),
        ] {
            assert_eq!(FieldName::new(name), Err(error), "{name:?}");
        }
        assert_eq!(FieldName::new("a".repeat(1_025)), Err(InvalidField::Long));
        for name in ["a", "state.x", "body.0.name", "Größe", "a b"] {
            assert!(FieldName::new(name).is_ok(), "{name:?}");
        }
    }

    #[test]
    fn a_field_overlaps_with_itself_and_what_it_contains() {
        let name = |name| FieldName::new(name).unwrap();
        for (one, other, overlaps) in [
            ("a", "a", true),
            ("a.b", "a", true),
            ("a", "a.b.c", true),
            ("a", "ab", false),
            ("a.b", "a.c", false),
        ] {
            assert_eq!(name(one).overlaps(&name(other)), overlaps, "{one} {other}");
        }
    }
}
