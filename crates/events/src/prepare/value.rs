//! Values as BSON, and back.
//!
//! One that is BSON already is left alone: on its way through serde a document such as
//! `{"$oid": …}` would become what it means in extended JSON.

use std::any::Any;

use bson::{Bson, Document, doc};
use postrider_store::limits::LARGEST_DOCUMENT;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::PrepareError;
use super::document::VALUE;

pub(super) fn encoded<V: Serialize + 'static>(value: &V) -> Result<Bson, PrepareError> {
    let any: &dyn Any = value;
    let value = if let Some(value) = any.downcast_ref::<Bson>() {
        value.clone()
    } else if let Some(document) = any.downcast_ref::<Document>() {
        document.clone().into()
    } else {
        bson::serialize_to_bson(value).map_err(PrepareError::Encode)?
    };
    // The server tells of larger ones in many ways, or ends the connection.
    let size = doc! { VALUE: &value }.to_vec().map_err(PrepareError::Encode)?.len();
    if size > LARGEST_DOCUMENT { Err(PrepareError::TooLarge) } else { Ok(value) }
}

pub(super) fn decoded<V: DeserializeOwned + 'static>(value: Bson) -> Result<V, PrepareError> {
    let mut value = Some(value);
    if let Some(value) = itself(&mut value) {
        return Ok(value);
    }
    if let Some(Bson::Document(document)) = value {
        let mut document = Some(document);
        if let Some(document) = itself(&mut document) {
            return Ok(document);
        }
        value = document.map(Bson::Document);
    }
    bson::deserialize_from_bson(value.into()).map_err(PrepareError::Decode)
}

/// What an `Option<V>` holds; `None` where it is another type's.
fn itself<V: 'static>(value: &mut dyn Any) -> Option<V> {
    value.downcast_mut::<Option<V>>()?.take()
}
