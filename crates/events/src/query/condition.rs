//! Conditions.

use bson::{Bson, Document};

use super::date::{DateForm, DateTest};
use super::field::FieldName;

/// What a document must be. Conditions on a field are made by the methods of [`FieldName`].
///
/// The compiler of filters never lets a value become an operator, and refuses what exceeds the limits
/// ([`MAX_NODES`](super::MAX_NODES) and those next to it).
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Condition {
    /// Any document. (Of snapshots: any that is not deleted.)
    #[default]
    All,
    /// All of these: at least one.
    And(Vec<Condition>),
    /// At least one of these.
    Or(Vec<Condition>),
    /// None of these: at least one.
    Nor(Vec<Condition>),
    /// The id of the document: of the append, or the aggregate's of a snapshot.
    Id(String),
    /// One of these ids.
    Ids(Vec<String>),
    /// The aggregate.
    AggregateId(String),
    /// One of these aggregates.
    AggregateIds(Vec<String>),
    /// The tenant.
    TenantId(String),
    /// The owner.
    OwnerId(String),
    /// The space: a field of documents that the Wow framework has written.
    SpaceId(String),
    /// Whether a snapshot's aggregate is deleted. Without such a condition at the root, or directly in
    /// an [`And`](Self::And) there, only snapshots that are not deleted are found.
    Deleted(DeletionState),
    /// A full-text search in the collection's text index.
    Match(String),
    /// A filter of MongoDB, of operators that only test fields.
    Raw(Document),
    /// A test of a field.
    Field(FieldName, Test),
}

/// Which snapshots, by their flag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeletionState {
    /// Those that are not deleted.
    Active,
    /// Those that are deleted.
    Deleted,
    /// Both.
    All,
}

/// A test of a field. Of an array any element may pass it, as everywhere in MongoDB.
#[derive(Clone, Debug, PartialEq)]
pub enum Test {
    /// A comparison with a value.
    Compare(Comparison, Bson),
    /// From the first value to the second, both included.
    Between(Bson, Bson),
    /// One of these values.
    In(Vec<Bson>),
    /// None of these values.
    NotIn(Vec<Bson>),
    /// Each of these values.
    AllIn(Vec<Bson>),
    /// A text; `true` ignores upper and lower case.
    Text(TextTest, String, bool),
    /// An element of the array meets all of the condition.
    ElemMatch(Box<Condition>),
    /// Null or absent.
    Null,
    /// Neither null nor absent.
    NotNull,
    /// The boolean.
    True,
    /// The boolean.
    False,
    /// Whether it exists; a null exists.
    Exists(bool),
    /// A time.
    Date(DateTest, DateForm),
}

/// A comparison. Values of different kinds are unequal, and neither is less.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Comparison {
    /// Equal.
    Eq,
    /// Not equal.
    Ne,
    /// Greater.
    Gt,
    /// Less.
    Lt,
    /// Greater or equal.
    Gte,
    /// Less or equal.
    Lte,
}

/// What a text has in common with another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TextTest {
    /// It contains it.
    Contains,
    /// It begins with it.
    StartsWith,
    /// It ends with it.
    EndsWith,
}

impl Condition {
    /// The conditions within it.
    pub(super) fn children(&self) -> &[Condition] {
        match self {
            Self::And(children) | Self::Or(children) | Self::Nor(children) => children,
            Self::Field(_, Test::ElemMatch(child)) => std::slice::from_ref(child),
            _ => &[],
        }
    }
}
