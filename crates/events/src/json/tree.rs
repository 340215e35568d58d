//! Parses JSON to BSON as written ([`json_text`]), and reads such values by serde.

use std::fmt;

use bson::{Bson, Decimal128, Document};
use postrider_outbox::json_text::{self, TextFlaw};
use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};

use crate::Flaw;
use crate::integer::smallest;

/// Parses a JSON text. Flaws are what MongoDB cannot store as written.
///
/// # Errors
///
/// Invalid JSON. The error names the position and quotes nothing.
pub fn parse(text: &str) -> Result<(Bson, Vec<Flaw>), serde_json::Error> {
    let (value, flaws) = json_text::parse(text)?;
    let flaw = |TextFlaw { path, detail }| Flaw { field: path, detail };
    Ok((value, flaws.into_iter().map(flaw).collect()))
}

/// The visitor from JSON to BSON.
#[derive(Clone, Copy)]
pub(super) struct AsWritten;

impl<'de> DeserializeSeed<'de> for AsWritten {
    type Value = Bson;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Bson, D::Error> {
        from.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for AsWritten {
    type Value = Bson;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<Bson, E> {
        Ok(Bson::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Bson, E> {
        Ok(Bson::Boolean(value))
    }

    fn visit_i64<E>(self, integer: i64) -> Result<Bson, E> {
        Ok(smallest(integer))
    }

    fn visit_u64<E: Error>(self, integer: u64) -> Result<Bson, E> {
        match i64::try_from(integer) {
            Ok(integer) => self.visit_i64(integer),
            Err(_) => self.visit_f64(integer as f64),
        }
    }

    fn visit_f64<E>(self, float: f64) -> Result<Bson, E> {
        Ok(Bson::Double(float))
    }

    /// A decimal of the reader, which serde has no type for; JSON has no bytes.
    fn visit_bytes<E: Error>(self, decimal: &[u8]) -> Result<Bson, E> {
        match decimal.try_into() {
            Ok(bytes) => Ok(Bson::Decimal128(Decimal128::from_bytes(bytes))),
            Err(_) => Err(E::custom("must be JSON")),
        }
    }

    fn visit_str<E>(self, text: &str) -> Result<Bson, E> {
        Ok(Bson::String(text.to_owned()))
    }

    fn visit_string<E>(self, text: String) -> Result<Bson, E> {
        Ok(Bson::String(text))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut from: A) -> Result<Bson, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = from.next_element_seed(self)? {
            items.push(item);
        }
        Ok(Bson::Array(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut from: A) -> Result<Bson, A::Error> {
        let mut document = Document::new();
        while let Some(name) = from.next_key::<String>()? {
            document.insert(name, from.next_value_seed(self)?);
        }
        Ok(Bson::Document(document))
    }
}
