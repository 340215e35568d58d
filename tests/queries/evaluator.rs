//! Conditions evaluated in Rust, by what MongoDB's manual says of its query operators. Nothing here knows
//! how conditions are compiled.
//!
//! - "Comparison/SortKey Order": the order of types, within which values are compared; numbers by value.
//! - "Type bracketing": `$gt` and the like only find values of the operand's type.
//! - "Query an Array": a test of a field passes if an element or the array as a whole passes; a path
//!   leads into the documents of arrays, and by a number to one element.
//! - "Query for Null or Missing Fields": equality with null also finds an absent field.

use std::cmp::Ordering;

use bson::{Bson, Document};
use postrider::events::query::{Comparison, Condition, DeletionState, Target, Test, TextTest};

/// Whether a stored document meets a condition.
pub fn matches(condition: &Condition, document: &Document, target: Target) -> bool {
    let decides = |condition: &Condition| matches!(condition, Condition::Deleted(_));
    let means_deleted = match condition {
        Condition::And(children) => children.iter().any(decides),
        other => decides(other),
    };
    let is_meant = target == Target::Events || means_deleted || is_false(document.get("deleted"));
    is_meant && Evaluator { target, is_element: false }.meets(condition, document)
}

fn is_false(value: Option<&Bson>) -> bool {
    any(value, |value| value == Some(&Bson::Boolean(false)))
}

#[derive(Clone, Copy)]
struct Evaluator {
    target: Target,
    /// Within an element of an array, whose names are its own.
    is_element: bool,
}

impl Evaluator {
    fn meets(self, condition: &Condition, document: &Document) -> bool {
        let equals =
            |field: &str, id: &str| at(document, field, &mut |value| equal(value, &Bson::from(id)));
        let aggregate_id = match self.target {
            Target::Events => "aggregateId",
            Target::Snapshots => "_id",
        };
        match condition {
            Condition::All | Condition::Deleted(DeletionState::All) => true,
            Condition::And(all) => all.iter().all(|child| self.meets(child, document)),
            Condition::Or(any) => any.iter().any(|child| self.meets(child, document)),
            Condition::Nor(none) => !none.iter().any(|child| self.meets(child, document)),
            Condition::Id(id) => equals("_id", id),
            Condition::Ids(ids) => ids.iter().any(|id| equals("_id", id)),
            Condition::AggregateId(id) => equals(aggregate_id, id),
            Condition::AggregateIds(ids) => ids.iter().any(|id| equals(aggregate_id, id)),
            Condition::TenantId(id) => equals("tenantId", id),
            Condition::OwnerId(id) => equals("ownerId", id),
            Condition::SpaceId(id) => equals("spaceId", id),
            Condition::Deleted(state) => {
                let flag = Bson::Boolean(*state == DeletionState::Deleted);
                at(document, "deleted", &mut |value| equal(value, &flag))
            }
            Condition::Field(field, test) => {
                let is_id = !self.is_element && field.as_str() == self.target.id_field();
                let name = if is_id { "_id" } else { field.as_str() };
                self.passes(test, document, name)
            }
            Condition::Match(_) | Condition::Raw(_) => panic!("MongoDB decides: {condition:?}"),
        }
    }

    fn passes(self, test: &Test, document: &Document, name: &str) -> bool {
        let some =
            |test: &dyn Fn(Option<&Bson>) -> bool| at(document, name, &mut |value| test(value));
        let equals = |operand: &Bson| some(&|value| equal(value, operand));
        match test {
            Test::Compare(Comparison::Eq, operand) => equals(operand),
            Test::Compare(Comparison::Ne, operand) => !equals(operand),
            Test::Compare(comparison, operand) => {
                some(&|value| compares(*comparison, value, operand))
            }
            Test::Between(first, last) => {
                some(&|value| compares(Comparison::Gte, value, first))
                    && some(&|value| compares(Comparison::Lte, value, last))
            }
            Test::In(values) => values.iter().any(equals),
            Test::NotIn(values) => !values.iter().any(equals),
            Test::AllIn(values) => !values.is_empty() && values.iter().all(equals),
            Test::Text(test, text, ignores_case) => {
                some(&|value| has_text(*test, text, *ignores_case, value))
            }
            Test::ElemMatch(child) => {
                let within = Self { is_element: true, ..self };
                whole(document, name, &mut |end| match end.value {
                    Some(Bson::Array(items)) => items.iter().any(|item| match item {
                        Bson::Document(element) => within.meets(child, element),
                        // An array is a document of its indexes.
                        Bson::Array(items) => within.meets(child, &indexed(items)),
                        _ => false,
                    }),
                    _ => false,
                })
            }
            Test::Null => equals(&Bson::Null),
            Test::NotNull => !equals(&Bson::Null),
            Test::True => equals(&Bson::Boolean(true)),
            Test::False => equals(&Bson::Boolean(false)),
            Test::Exists(exists) => {
                *exists == whole(document, name, &mut |end| end.value.is_some())
            }
            Test::Date(..) => panic!("it depends on the time: {test:?}"),
        }
    }
}

/// Tests the value at the end of a path, `None` where the path ends early.
type Visit<'v> = &'v mut dyn FnMut(End<'_>) -> bool;

#[derive(Clone, Copy)]
struct End<'e> {
    value: Option<&'e Bson>,
    /// Whether it was chosen by its number in an array: then its own elements are not tested.
    is_by_number: bool,
}

/// Whether a value of a field passes; an array passes by itself or by an element.
fn at(document: &Document, name: &str, test: &mut dyn FnMut(Option<&Bson>) -> bool) -> bool {
    whole(document, name, &mut |end: End<'_>| match end {
        End { value, is_by_number: true } => test(value),
        End { value, .. } => any(value, &mut *test),
    })
}

fn any(value: Option<&Bson>, mut test: impl FnMut(Option<&Bson>) -> bool) -> bool {
    let has_element = match value {
        Some(Bson::Array(items)) => items.iter().any(|item| test(Some(item))),
        _ => false,
    };
    has_element || test(value)
}

/// Whether a value at the end of a path passes.
fn whole(document: &Document, path: &str, test: Visit<'_>) -> bool {
    let end = |value| End { value, is_by_number: false };
    let Some((name, rest)) = path.split_once('.') else { return test(end(document.get(path))) };
    within(document.get(name), rest, test)
}

/// The same from a value on.
fn within(value: Option<&Bson>, path: &str, test: Visit<'_>) -> bool {
    match value {
        Some(Bson::Document(inner)) => whole(inner, path, test),
        Some(Bson::Array(items)) => {
            let (name, rest) = match path.split_once('.') {
                Some((name, rest)) => (name, Some(rest)),
                None => (path, None),
            };
            let by_number = name.parse::<usize>().ok().and_then(|at| items.get(at));
            items.iter().any(|item| match item {
                Bson::Document(inner) => whole(inner, path, test),
                _ => false,
            }) || by_number.is_some_and(|item| match rest {
                None => test(End { value: Some(item), is_by_number: true }),
                Some(rest) if matches!(item, Bson::Document(_) | Bson::Array(_)) => {
                    within(Some(item), rest, test)
                }
                Some(_) => false,
            })
        }
        _ => test(End { value: None, is_by_number: false }),
    }
}

fn indexed(items: &[Bson]) -> Document {
    items.iter().enumerate().map(|(at, item)| (at.to_string(), item.clone())).collect()
}

fn equal(value: Option<&Bson>, operand: &Bson) -> bool {
    match value {
        None => operand == &Bson::Null,
        Some(value) => order(value, operand) == Ordering::Equal,
    }
}

/// A comparison within one type. NaN is not less or greater than any number.
fn compares(comparison: Comparison, value: Option<&Bson>, operand: &Bson) -> bool {
    let Some(value) = value else {
        let includes = matches!(comparison, Comparison::Gte | Comparison::Lte);
        return includes && operand == &Bson::Null;
    };
    if rank(value) != rank(operand) {
        return false;
    }
    let is_nan = |value: &Bson| number(value) == Some(Number::Nan);
    let order = order(value, operand);
    if is_nan(value) != is_nan(operand) {
        return false;
    }
    match comparison {
        Comparison::Gt => order == Ordering::Greater,
        Comparison::Gte => order != Ordering::Less,
        Comparison::Lt => order == Ordering::Less,
        Comparison::Lte => order != Ordering::Greater,
        Comparison::Eq | Comparison::Ne => panic!("handled elsewhere"),
    }
}

fn has_text(test: TextTest, text: &str, ignores_case: bool, value: Option<&Bson>) -> bool {
    let Some(Bson::String(value)) = value else { return false };
    let fold = |text: &str| if ignores_case { text.to_lowercase() } else { text.to_owned() };
    let (value, text) = (fold(value), fold(text));
    match test {
        TextTest::Contains => value.contains(&text),
        TextTest::StartsWith => value.starts_with(&text),
        TextTest::EndsWith => value.ends_with(&text),
    }
}

/// The place of a type in the order of types.
fn rank(value: &Bson) -> u8 {
    match value {
        Bson::MinKey => 0,
        Bson::Null => 1,
        Bson::Int32(_) | Bson::Int64(_) | Bson::Double(_) | Bson::Decimal128(_) => 2,
        Bson::String(_) => 3,
        Bson::Document(_) => 4,
        Bson::Array(_) => 5,
        Bson::Binary(_) => 6,
        Bson::ObjectId(_) => 7,
        Bson::Boolean(_) => 8,
        Bson::DateTime(_) => 9,
        Bson::Timestamp(_) => 10,
        Bson::MaxKey => 11,
        other => panic!("no test has this: {other:?}"),
    }
}

/// A number with all of its digits; variants in their order.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
enum Number {
    Nan,
    MinusInfinity,
    /// The integer below it, the rest, and whether a decimal is below (-1) the double next to it.
    Finite(i128, f64, i8),
    Infinity,
}

fn number(value: &Bson) -> Option<Number> {
    let of_double = |double: f64, rest: i8| match double {
        _ if double.is_nan() => Number::Nan,
        f64::INFINITY => Number::Infinity,
        f64::NEG_INFINITY => Number::MinusInfinity,
        _ => Number::Finite(double.floor() as i128, double - double.floor(), rest),
    };
    Some(match value {
        Bson::Int32(integer) => Number::Finite((*integer).into(), 0.0, 0),
        Bson::Int64(integer) => Number::Finite((*integer).into(), 0.0, 0),
        Bson::Double(double) => of_double(*double, 0),
        Bson::Decimal128(decimal) => {
            let digits = decimal.to_string();
            match digits.parse::<i128>() {
                Ok(integer) => Number::Finite(integer, 0.0, 0),
                // The double 0.1 is a little more than a tenth.
                Err(_) => of_double(digits.parse().unwrap(), if digits == "0.1" { -1 } else { 0 }),
            }
        }
        _ => return None,
    })
}

/// The order of two values.
fn order(one: &Bson, other: &Bson) -> Ordering {
    let ranks = rank(one).cmp(&rank(other));
    if ranks.is_ne() {
        return ranks;
    }
    match (one, other) {
        (Bson::String(one), Bson::String(other)) => one.as_bytes().cmp(other.as_bytes()),
        (Bson::Document(one), Bson::Document(other)) => {
            // Field by field: type, name, value.
            let mut others = other.iter();
            for (name, value) in one {
                let Some((other_name, other_value)) = others.next() else {
                    return Ordering::Greater;
                };
                let order = rank(value)
                    .cmp(&rank(other_value))
                    .then_with(|| name.as_bytes().cmp(other_name.as_bytes()))
                    .then_with(|| order(value, other_value));
                if order.is_ne() {
                    return order;
                }
            }
            if others.next().is_some() { Ordering::Less } else { Ordering::Equal }
        }
        (Bson::Array(one), Bson::Array(other)) => {
            let pairs = one.iter().zip(other).map(|(one, other)| order(one, other));
            pairs.fold(Ordering::Equal, Ordering::then).then(one.len().cmp(&other.len()))
        }
        (Bson::Binary(one), Bson::Binary(other)) => {
            let key = |binary: &bson::Binary| (binary.bytes.len(), u8::from(binary.subtype));
            key(one).cmp(&key(other)).then_with(|| one.bytes.cmp(&other.bytes))
        }
        (Bson::ObjectId(one), Bson::ObjectId(other)) => one.bytes().cmp(&other.bytes()),
        (Bson::Boolean(one), Bson::Boolean(other)) => one.cmp(other),
        (Bson::DateTime(one), Bson::DateTime(other)) => one.cmp(other),
        (Bson::Timestamp(one), Bson::Timestamp(other)) => {
            (one.time, one.increment).cmp(&(other.time, other.increment))
        }
        _ => match (number(one), number(other)) {
            (Some(one), Some(other)) => one.partial_cmp(&other).unwrap(),
            // Of their types there is only one value.
            _ => Ordering::Equal,
        },
    }
}
