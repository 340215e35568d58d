//! Which events a reader wants.

use bson::{Bson, Document, doc};
use postrider_outbox::fields::exactly;
use serde::{Deserialize, Serialize};

use crate::error::Flaw;
use crate::names::AggregateName;
use crate::stream::fields::TENANT_ID;

/// The most names in a filter.
const MAX_NAMES: usize = 100;

/// Which events a reader wants; by default all.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct FeedFilter {
    /// Of these aggregate names; of all if empty.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub aggregates: Vec<String>,
    /// With these event names; all if empty.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub events: Vec<String>,
    /// Of this tenant.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant_id: Option<String>,
}

impl FeedFilter {
    /// Whether it lets all events pass.
    pub fn is_all(&self) -> bool {
        *self == Self::default()
    }

    /// What is wrong with it.
    pub fn flaws(&self) -> Vec<Flaw> {
        let mut flaws = Vec::new();
        for (field, names) in [("aggregates", &self.aggregates), ("events", &self.events)] {
            if names.len() > MAX_NAMES {
                flaws.push(Flaw::new(
                    field,
                    format!("has {} names; at most {MAX_NAMES} are allowed", names.len()),
                ));
            }
            if names.iter().any(String::is_empty) {
                flaws.push(Flaw::new(field, "contains an empty name"));
            }
        }
        for name in &self.aggregates {
            if let Err(error) = AggregateName::new(name)
                && !name.is_empty()
            {
                flaws.push(Flaw::new("aggregates", format!("{name:?} {error}")));
            }
        }
        flaws
    }

    /// Whether it wants events of this aggregate name.
    pub(super) fn has_name(&self, name: &AggregateName) -> bool {
        self.aggregates.is_empty() || self.aggregates.iter().any(|wanted| wanted == name.as_str())
    }

    /// Whether it wants events of this name, in a stream that matches.
    pub(super) fn has_event_named(&self, name: &String) -> bool {
        self.events.is_empty() || self.events.contains(name)
    }

    /// The conditions on stream documents.
    pub(super) fn conditions(&self) -> Document {
        let mut conditions = Document::new();
        if let Some(tenant) = &self.tenant_id {
            conditions.insert(TENANT_ID, exactly(tenant));
        }
        if !self.events.is_empty() {
            let names: Vec<Bson> = self.events.iter().map(Bson::from).collect();
            conditions.insert("body.name", doc! { "$in": names });
        }
        conditions
    }
}
