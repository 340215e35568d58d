//! Identifiers, each a type of its own.

use std::fmt;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bson::oid::ObjectId;
use bson::raw::{RawDocument, RawDocumentBuf};
use bson::spec::BinarySubtype;
use bson::{Bson, Document, doc};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// Id of one lease: one per acquired batch, kept by renewals.
///
/// Every settlement filters on it, so an instance that has lost a record matches nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LeaseId(Uuid);

impl LeaseId {
    /// Creates a new lease id.
    pub fn fresh() -> Self {
        Self(Uuid::new_v4())
    }
}

impl From<LeaseId> for Bson {
    fn from(id: LeaseId) -> Self {
        Bson::Binary(bson::Uuid::from_uuid_1(id.0).into())
    }
}

/// One process of Postrider, from start to end; `leaseOwner` in a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct InstanceId(Uuid);

impl InstanceId {
    /// Creates an id for this process.
    pub fn fresh() -> Self {
        Self(Uuid::new_v4())
    }

    /// Reads the id from a document; `None` if it is not a UUID.
    pub fn read(value: &Bson) -> Option<Self> {
        let Bson::Binary(binary) = value else { return None };
        let uuid = binary.to_uuid().ok()?;
        Some(Self(uuid.to_uuid_1()))
    }
}

impl fmt::Display for InstanceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl From<InstanceId> for Bson {
    fn from(id: InstanceId) -> Self {
        Bson::Binary(bson::Uuid::from_uuid_1(id.0).into())
    }
}

/// Prefix of an `_id` that only its bytes name; base64 follows.
pub const RAW: &str = "raw:";

/// Returns the text that names the `_id` of this document, of any type.
pub fn raw_text(id: &RawDocument) -> String {
    format!("{RAW}{}", URL_SAFE_NO_PAD.encode(id.as_bytes()))
}

/// The `_id` of an outbox record, and the message id that consumers see.
///
/// `Display` gives the text that is the same on every delivery, and by which commands know the
/// record. Kinds outside the contract are kept as they are ([`RecordId::Other`]), so that a
/// malformed record can still be addressed, to be made dead.
#[derive(Clone, Debug)]
pub enum RecordId {
    /// BinData 4; shown in lower case with hyphens.
    Uuid(Uuid),
    /// Shown as 24 hexadecimal digits.
    ObjectId(ObjectId),
    /// Shown as it is.
    String(String),
    /// int32 or int64, which MongoDB holds equal; shown in decimal.
    Int(i64),
    /// Any other kind: such a record is malformed. Shown as `raw:` and its bytes. (Boxed, since many
    /// ids are kept, and few are of this kind.)
    Other(Box<Bson>),
}

impl RecordId {
    /// Returns whether an `_id` of this kind is valid.
    pub fn is_well_formed(&self) -> bool {
        !matches!(self, Self::Other(_))
    }

    /// Returns the condition that an `_id` has this value, even if the value looks like an operator.
    pub fn condition(&self) -> Document {
        doc! { "$eq": Bson::from(self) }
    }

    /// The ids that a text can mean, likeliest first: UUID, ObjectId, integer, string. A prefix
    /// `uuid:`, `oid:`, `int:` or `str:` forces one; what it forces and is not gives none.
    pub fn parse_candidates(text: &str) -> Vec<Self> {
        let uuid = |text: &str| Uuid::try_parse(text).ok().map(Self::Uuid);
        let oid = |text: &str| ObjectId::parse_str(text).ok().map(Self::ObjectId);
        let int = |text: &str| text.parse().ok().map(Self::Int);
        let forced = match text.split_once(':') {
            Some(("uuid", rest)) => Some(uuid(rest)),
            Some(("oid", rest)) => Some(oid(rest)),
            Some(("int", rest)) => Some(int(rest)),
            Some(("str", rest)) => Some(Some(Self::String(rest.to_owned()))),
            _ => None,
        };
        match forced {
            Some(one) => one.into_iter().collect(),
            None => {
                let string = Some(Self::String(text.to_owned()));
                [uuid(text), oid(text), int(text), string].into_iter().flatten().collect()
            }
        }
    }
}

// As in the server, NaN equals itself.
impl PartialEq for RecordId {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Uuid(one), Self::Uuid(other)) => one == other,
            (Self::ObjectId(one), Self::ObjectId(other)) => one == other,
            (Self::String(one), Self::String(other)) => one == other,
            (Self::Int(one), Self::Int(other)) => one == other,
            (Self::Other(one), Self::Other(other)) => {
                one == other || format!("{one:?}") == format!("{other:?}")
            }
            _ => false,
        }
    }
}

impl Eq for RecordId {}

impl std::hash::Hash for RecordId {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        match self {
            Self::Uuid(id) => id.hash(state),
            Self::ObjectId(id) => id.hash(state),
            Self::String(text) => text.hash(state),
            Self::Int(number) => number.hash(state),
            Self::Other(other) => other.to_string().hash(state),
        }
    }
}

impl From<Bson> for RecordId {
    fn from(value: Bson) -> Self {
        match value {
            Bson::String(text) => Self::String(text),
            Bson::ObjectId(id) => Self::ObjectId(id),
            Bson::Int32(number) => Self::Int(number.into()),
            Bson::Int64(number) => Self::Int(number),
            Bson::Binary(binary) if binary.subtype == BinarySubtype::Uuid => {
                match Uuid::from_slice(&binary.bytes) {
                    Ok(id) => Self::Uuid(id),
                    Err(_) => Self::Other(Box::new(Bson::Binary(binary))),
                }
            }
            other => Self::Other(Box::new(other)),
        }
    }
}

impl From<RecordId> for Bson {
    fn from(id: RecordId) -> Self {
        match id {
            RecordId::Uuid(id) => Bson::Binary(bson::Uuid::from_uuid_1(id).into()),
            RecordId::ObjectId(id) => Bson::ObjectId(id),
            RecordId::String(text) => Bson::String(text),
            RecordId::Int(number) => Bson::Int64(number),
            RecordId::Other(other) => *other,
        }
    }
}

impl fmt::Display for RecordId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Uuid(id) => id.fmt(f),
            Self::ObjectId(id) => id.fmt(f),
            Self::String(text) => f.write_str(text),
            Self::Int(number) => number.fmt(f),
            Self::Other(other) => {
                let id = RawDocumentBuf::try_from(&doc! { "_id": &**other }).unwrap_or_default();
                f.write_str(&raw_text(&id))
            }
        }
    }
}

/// The name of a `[sinks.<name>]` table.
#[derive(
    Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(from = "String", into = "String")]
pub struct SinkName(Arc<str>);

impl SinkName {
    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<String> for SinkName {
    fn from(name: String) -> Self {
        Self(name.into())
    }
}

impl From<SinkName> for String {
    fn from(name: SinkName) -> Self {
        name.as_str().to_owned()
    }
}

impl From<&str> for SinkName {
    fn from(name: &str) -> Self {
        Self(name.into())
    }
}

impl fmt::Display for SinkName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
