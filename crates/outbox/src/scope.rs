//! The records that a caller may reach.

use bson::{Bson, Document, doc};

use crate::fields::{DESTINATION, TENANT_ID, TYPE};

/// The records that a caller may reach; by default all. To it no others exist.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RecordScope {
    conditions: Document,
}

impl RecordScope {
    /// Only records of these types: texts and regular expressions.
    #[must_use]
    pub fn of_types(self, types: Vec<Bson>) -> Self {
        self.with(TYPE, types)
    }

    /// Only records that name one of these destinations, or none.
    #[must_use]
    pub fn to_destinations(self, mut destinations: Vec<Bson>) -> Self {
        destinations.push(Bson::Null);
        self.with(DESTINATION, destinations)
    }

    /// Only records of these tenants.
    #[must_use]
    pub fn of_tenants(self, tenants: Vec<Bson>) -> Self {
        self.with(TENANT_ID, tenants)
    }

    /// An array is none of its elements.
    fn with(mut self, field: &str, values: Vec<Bson>) -> Self {
        let among = doc! { "$in": values, "$not": { "$type": "array" } };
        self.conditions.insert(field, among);
        self
    }

    /// The condition, as a field to be added to a filter; none if all records may be reached.
    pub(crate) fn condition(&self) -> Document {
        if self.conditions.is_empty() {
            return Document::new();
        }
        // In addition to other conditions on the same fields.
        doc! { "$and": [&self.conditions] }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scope_of_all_records_has_no_condition() {
        assert_eq!(RecordScope::default().condition(), doc! {});
        let none = RecordScope::default().to_destinations(vec![]).condition();
        let unnamed = doc! { "$in": [Bson::Null], "$not": { "$type": "array" } };
        assert_eq!(none, doc! { "$and": [{ "destination": unnamed }] });
    }
}
