//! Found documents as JSON.

use bson::{Bson, Document};
use serde::ser::{Serialize, Serializer};
use serde_json::value::RawValue;

use crate::events::query::Target;
use crate::json_view;

/// A document as it is stored; its `_id` has the name that queries use.
#[derive(Debug)]
pub(super) struct StoredAnswer {
    document: Document,
    id_field: &'static str,
}

impl StoredAnswer {
    pub(super) fn new(document: Document, target: Target) -> Self {
        Self { document, id_field: target.id_field() }
    }

    /// Its members; one that has the name of the id's is left out.
    fn members(&self) -> impl Iterator<Item = (&str, &Bson)> {
        let members = self.document.iter().filter(|(name, _)| *name != self.id_field);
        members.map(|(name, value)| (if name == "_id" { self.id_field } else { name }, value))
    }
}

impl Serialize for StoredAnswer {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_map(self.members().map(|(name, value)| (name, json_view::value(value))))
    }
}

/// The same as Wow answers it: decimal numbers are plain numbers.
#[derive(Debug)]
pub(super) struct WowAnswer(pub(super) StoredAnswer);

impl Serialize for WowAnswer {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_map(self.0.members().map(|(name, value)| (name, WowValue(value))))
    }
}

/// A value in Wow's form.
#[derive(Debug)]
pub(super) struct WowValue<'v>(pub(super) &'v Bson);

impl Serialize for WowValue<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            Bson::Document(document) => {
                to.collect_map(document.iter().map(|(name, value)| (name, WowValue(value))))
            }
            Bson::Array(items) => to.collect_seq(items.iter().map(WowValue)),
            Bson::Decimal128(decimal) => {
                let digits = decimal.to_string();
                // Infinity and NaN are no JSON.
                match RawValue::from_string(digits.clone()) {
                    Ok(number) => number.serialize(to),
                    Err(_) => to.serialize_str(&digits),
                }
            }
            other => json_view::value(other).serialize(to),
        }
    }
}

#[cfg(test)]
mod tests {
    use bson::{Decimal128, doc};

    use super::*;

    #[test]
    fn wow_answers_decimals_as_numbers() {
        let decimal = |digits: &str| digits.parse::<Decimal128>().unwrap();
        let document = doc! {
            "aggregateId": "other", "_id": "o-1", "state": { "_id": 1, "total": decimal("13.50"), "all": [decimal("1E+3"), decimal("NaN")] }
        };
        let answer = StoredAnswer::new(document, Target::Snapshots);
        let ours = serde_json::to_string(&answer).unwrap();
        let wows = serde_json::to_string(&WowAnswer(answer)).unwrap();

        assert!(ours.contains(r#""total":{"$numberDecimal":"13.50"}"#), "{ours}");
        assert_eq!(
            wows,
            r#"{"aggregateId":"o-1","state":{"_id":1,"total":13.50,"all":[1E+3,"NaN"]}}"#
        );
    }
}
