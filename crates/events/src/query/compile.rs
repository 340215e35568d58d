//! Compiles conditions to filters of MongoDB.

use bson::{Bson, Document, doc};
use jiff::Timestamp;

use super::condition::{Comparison, Condition, DeletionState, Test, TextTest};
use super::date::range;
use super::field::FieldName;
use crate::context::CollectionKind;

const ID: &str = "_id";
pub(super) const DELETED: &str = "deleted";

/// What is queried.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Target {
    /// The appends of all aggregates of a name; `id` is that of the append.
    Events,
    /// The snapshots of a name; `aggregateId` is their id.
    Snapshots,
}

impl Target {
    /// The field of queries and answers that is stored as `_id`.
    pub fn id_field(self) -> &'static str {
        match self {
            Self::Events => "id",
            Self::Snapshots => "aggregateId",
        }
    }

    /// The kind of its collection.
    pub(super) fn kind(self) -> CollectionKind {
        match self {
            Self::Events => CollectionKind::Events,
            Self::Snapshots => CollectionKind::Snapshots,
        }
    }

    /// The stored name of a field.
    pub(super) fn stored(self, field: &FieldName) -> &str {
        if field.as_str() == self.id_field() { ID } else { field.as_str() }
    }
}

/// The filter for a condition, at this time. It is valid: its size was checked with the condition.
pub(super) fn filter(condition: &Condition, target: Target, now: Timestamp) -> Document {
    let compiler = Compiler { now, renamed: Some(target) };
    let filter = compiler.condition(condition, target);
    if target == Target::Events || decides_deletion(condition) {
        return filter;
    }
    let active = doc! { DELETED: false };
    if filter.is_empty() {
        active
    } else {
        doc! { "$and": [active, filter] }
    }
}

/// Whether the condition itself says which snapshots it means, deleted or not.
fn decides_deletion(condition: &Condition) -> bool {
    let is_deletion = |condition: &Condition| matches!(condition, Condition::Deleted(_));
    match condition {
        Condition::And(children) => children.iter().any(is_deletion),
        other => is_deletion(other),
    }
}

struct Compiler {
    now: Timestamp,
    /// Whose id is renamed; not in the elements of an array.
    renamed: Option<Target>,
}

impl Compiler {
    fn condition(&self, condition: &Condition, target: Target) -> Document {
        let all = |children: &[Condition]| -> Vec<Document> {
            children.iter().map(|child| self.condition(child, target)).collect()
        };
        let aggregate_id = match target {
            Target::Events => "aggregateId",
            Target::Snapshots => ID,
        };
        match condition {
            Condition::All | Condition::Deleted(DeletionState::All) => doc! {},
            Condition::And(children) => doc! { "$and": all(children) },
            Condition::Or(children) => doc! { "$or": all(children) },
            Condition::Nor(children) => doc! { "$nor": all(children) },
            Condition::Id(id) => doc! { ID: id },
            Condition::Ids(ids) => doc! { ID: { "$in": ids } },
            Condition::AggregateId(id) => doc! { aggregate_id: id },
            Condition::AggregateIds(ids) => doc! { aggregate_id: { "$in": ids } },
            Condition::TenantId(id) => doc! { "tenantId": id },
            Condition::OwnerId(id) => doc! { "ownerId": id },
            Condition::SpaceId(id) => doc! { "spaceId": id },
            Condition::Deleted(DeletionState::Active) => doc! { DELETED: false },
            Condition::Deleted(DeletionState::Deleted) => doc! { DELETED: true },
            Condition::Match(text) => doc! { "$text": { "$search": text } },
            Condition::Raw(filter) => filter.clone(),
            Condition::Field(field, test) => {
                let name = self.renamed.map_or(field.as_str(), |target| target.stored(field));
                self.test(name, test, target)
            }
        }
    }

    fn test(&self, field: &str, test: &Test, target: Target) -> Document {
        let tested = match test {
            Test::Compare(comparison, value) => doc! { comparison.operator(): value },
            Test::Between(first, last) => doc! { "$gte": first, "$lte": last },
            Test::In(values) => return list(field, "$in", "$or", values),
            Test::NotIn(values) => return list(field, "$nin", "$nor", values),
            Test::AllIn(values) => return list(field, "$all", "$and", values),
            Test::Text(test, text, ignores_case) => regex(*test, text, *ignores_case),
            Test::ElemMatch(child) => {
                let element = Self { renamed: None, ..*self };
                doc! { "$elemMatch": element.condition(child, target) }
            }
            Test::Null => doc! { "$eq": Bson::Null },
            Test::NotNull => doc! { "$ne": Bson::Null },
            Test::True => doc! { "$eq": true },
            Test::False => doc! { "$eq": false },
            Test::Exists(exists) => doc! { "$exists": *exists },
            Test::Date(test, form) => range(*test, form, self.now),
        };
        doc! { field: tested }
    }
}

/// A test by a list. MongoDB takes documents in such a list for operators if they look like some, so
/// those are compared one by one.
fn list(field: &str, operator: &str, each: &str, values: &[Bson]) -> Document {
    let looks_like_operator = |value: &Bson| {
        let document = value.as_document();
        document
            .and_then(|document| document.keys().next())
            .is_some_and(|name| name.starts_with('$'))
    };
    if values.iter().any(looks_like_operator) {
        let each_alone = values.iter().map(|value| doc! { field: { "$eq": value } });
        doc! { each: each_alone.collect::<Vec<_>>() }
    } else {
        doc! { field: { operator: values } }
    }
}

fn regex(test: TextTest, text: &str, ignores_case: bool) -> Document {
    let text = escaped(text);
    let pattern = match test {
        TextTest::Contains => text,
        TextTest::StartsWith => format!("^{text}"),
        // Not `$`, which also matches before a newline at the end.
        TextTest::EndsWith => format!("{text}\\z"),
    };
    let mut tested = doc! { "$regex": pattern };
    if ignores_case {
        tested.insert("$options", "i");
    }
    tested
}

/// Escapes what is not literal in a regular expression.
pub(super) fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len() + 16);
    for literal in text.chars() {
        if "\\^$.|?*+()[]{}".contains(literal) {
            escaped.push('\\');
        }
        escaped.push(literal);
    }
    escaped
}

impl Comparison {
    fn operator(self) -> &'static str {
        match self {
            Self::Eq => "$eq",
            Self::Ne => "$ne",
            Self::Gt => "$gt",
            Self::Lt => "$lt",
            Self::Gte => "$gte",
            Self::Lte => "$lte",
        }
    }
}
