//! Found documents as JSON.

use bson::{Bson, Document};
use serde::ser::{Serialize, Serializer};

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
        to.collect_map(self.members().map(|(name, value)| (name, json_view::StoredValue(value))))
    }
}

#[cfg(test)]
mod tests {
    use bson::{Decimal128, doc};

    use super::*;

    #[test]
    fn decimals_are_numbers() {
        let decimal = |digits: &str| digits.parse::<Decimal128>().unwrap();
        let document = doc! {
            "aggregateId": "other", "_id": "o-1", "state": { "_id": 1, "total": decimal("13.50"), "all": [decimal("1E+3"), decimal("NaN")] }
        };

        let answer = serde_json::to_string(&StoredAnswer::new(document, Target::Snapshots));

        let all = r#"[1E+3,{"$numberDecimal":"NaN"}]"#;
        let state = format!(r#"{{"_id":1,"total":13.50,"all":{all}}}"#);
        assert_eq!(answer.unwrap(), format!(r#"{{"aggregateId":"o-1","state":{state}}}"#));
    }
}
