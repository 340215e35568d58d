//! The limits of a token, as they are configured.

use postrider_settings::Glob;

/// The limits of a token; by default none.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Limits {
    /// Aggregate names.
    pub aggregates: Option<Vec<Glob>>,
    /// Types of records, and names of events that are appended.
    pub types: Option<Vec<Glob>>,
    /// The destinations that records name.
    pub destinations: Option<Vec<Glob>>,
    /// Tenants of events, snapshots and records.
    pub tenants: Option<Vec<String>>,
    /// Names of subscriptions.
    pub subscriptions: Option<Vec<Glob>>,
}

impl Limits {
    /// The names of the limits in the configuration.
    pub const NAMES: [&str; 5] =
        ["aggregates", "types", "destinations", "tenants", "subscriptions"];

    /// The names of those that are set.
    pub(super) fn set(&self) -> Vec<&'static str> {
        let is_set = [
            self.aggregates.is_some(),
            self.types.is_some(),
            self.destinations.is_some(),
            self.tenants.is_some(),
            self.subscriptions.is_some(),
        ];
        let named = Self::NAMES.into_iter().zip(is_set);
        named.filter_map(|(name, is_set)| is_set.then_some(name)).collect()
    }

    /// Whether a part of the API is covered: by one of its own limits, if there is any limit. Tenants alone
    /// cover events and records.
    pub(super) fn covers(&self, own: &[&str], has_tenants: bool) -> bool {
        let set = self.set();
        let is_own = set.iter().any(|name| own.contains(name));
        set.is_empty() || is_own || (has_tenants && set == ["tenants"])
    }
}
