//! Encodes and decodes values.
//!
//! `Bson` and `Document` bypass serde, which would take a document such as `{"$oid": …}` for extended
//! JSON.

use std::any::Any;

use bson::{Bson, Document, doc};
use postrider_outbox::nesting::is_too_deep;
use postrider_store::limits::MAX_DOCUMENT_BYTES;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::PrepareError;
use super::document::VALUE;

pub(super) fn encode<V: Serialize + 'static>(value: &V) -> Result<Bson, PrepareError> {
    let any: &dyn Any = value;
    let value = if let Some(value) = any.downcast_ref::<Bson>() {
        value.clone()
    } else if let Some(document) = any.downcast_ref::<Document>() {
        document.clone().into()
    } else {
        bson::serialize_to_bson(value).map_err(PrepareError::Encode)?
    };
    if is_too_deep(&value) {
        return Err(PrepareError::TooDeep);
    }
    // For larger ones the server has several errors, or ends the connection.
    let size = doc! { VALUE: &value }.to_vec().map_err(PrepareError::Encode)?.len();
    if size > MAX_DOCUMENT_BYTES { Err(PrepareError::TooLarge) } else { Ok(value) }
}

pub(super) fn decode<V: DeserializeOwned + 'static>(value: Bson) -> Result<V, PrepareError> {
    let mut value = Some(value);
    if let Some(value) = downcast(&mut value) {
        return Ok(value);
    }
    if let Some(Bson::Document(document)) = value {
        let mut document = Some(document);
        if let Some(document) = downcast(&mut document) {
            return Ok(document);
        }
        value = document.map(Bson::Document);
    }
    bson::deserialize_from_bson(value.into()).map_err(PrepareError::Decode)
}

/// The value of an `Option<V>`; `None` for another type.
fn downcast<V: 'static>(value: &mut dyn Any) -> Option<V> {
    value.downcast_mut::<Option<V>>()?.take()
}
