//! The `_id` of a document as a key of a map.

use bson::raw::RawDocumentBuf;
use bson::{Bson, doc};

/// An `_id`, compared as MongoDB compares those of documents that can exist at the same time: by type and value, and
/// integers of 32 and 64 bits by value.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct IdKey(Vec<u8>);

impl IdKey {
    /// The key of this `_id`.
    pub(crate) fn of(id: &Bson) -> Self {
        let id = match id {
            Bson::Int32(number) => Bson::Int64((*number).into()),
            other => other.clone(),
        };
        // (Only a name with a NUL cannot be serialized, and no document has one.)
        Self(bson::serialize_to_vec(&doc! { "": id }).unwrap_or_default())
    }

    /// The key of a document's `_id`.
    pub(crate) fn of_document(document: &RawDocumentBuf) -> Self {
        let id = document.get("_id").ok().flatten().and_then(|id| Bson::try_from(id).ok());
        Self::of(&id.unwrap_or(Bson::Null))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_equal_as_in_mongodb() {
        let id = bson::oid::ObjectId::new();
        assert_eq!(IdKey::of(&Bson::Int32(1)), IdKey::of(&Bson::Int64(1)));
        assert_ne!(IdKey::of(&Bson::Int32(1)), IdKey::of(&"1".into()));
        assert_ne!(IdKey::of(&id.into()), IdKey::of(&id.to_hex().into()));
        let quoted = doc! { "a": r#"1", "b": "2"# };
        assert_ne!(IdKey::of(&quoted.into()), IdKey::of(&doc! { "a": "1", "b": "2" }.into()));
    }
}
