//! Conditions on a field, as its methods.

use bson::Bson;

use super::condition::{Comparison, Condition, Test, TextTest};
use super::date::{DateForm, DateTest};
use super::field::FieldName;

impl FieldName {
    fn is(self, test: Test) -> Condition {
        Condition::Field(self, test)
    }

    fn compare(self, comparison: Comparison, value: impl Into<Bson>) -> Condition {
        self.is(Test::Compare(comparison, value.into()))
    }

    /// It equals the value, or is an array that contains it.
    pub fn eq(self, value: impl Into<Bson>) -> Condition {
        self.compare(Comparison::Eq, value)
    }

    /// The opposite of [`eq`](Self::eq): true also where the field is absent.
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
