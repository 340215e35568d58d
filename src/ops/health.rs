//! The health of this process, by part.

use std::collections::BTreeMap;
use std::sync::{Arc, RwLock};

use serde::Serialize;

/// The status of a part, or of the whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum HealthStatus {
    /// Healthy.
    Ok,
    /// Impaired but ready: neither a restart nor another instance would help.
    Degraded,
    /// Not ready.
    Down,
}

/// The health of a part.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct HealthPart {
    /// The status.
    pub status: HealthStatus,
    /// The reason, unless it is `ok`; never a secret.
    pub detail: String,
}

impl HealthPart {
    /// A healthy part.
    pub fn ok() -> Self {
        Self { status: HealthStatus::Ok, detail: String::new() }
    }

    /// An impaired part that is ready.
    pub fn degraded(detail: impl Into<String>) -> Self {
        Self { status: HealthStatus::Degraded, detail: detail.into() }
    }

    /// A part that is not ready.
    pub fn down(detail: impl Into<String>) -> Self {
        Self { status: HealthStatus::Down, detail: detail.into() }
    }
}

/// The body of `/readyz`; its details are for this host only.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct HealthReport {
    /// The worst of the parts.
    pub status: HealthStatus,
    /// The parts by name.
    pub parts: BTreeMap<String, HealthPart>,
}

impl HealthReport {
    /// The same report without its texts, which have names of brokers, users and collections.
    pub fn without_details(mut self) -> Self {
        self.parts.values_mut().for_each(|part| part.detail.clear());
        self
    }
}

type Check = Arc<dyn Fn() -> HealthPart + Send + Sync>;

/// The checks of the parts, each run for every report.
#[derive(Clone, Default)]
pub struct Health {
    checks: Arc<RwLock<BTreeMap<String, Check>>>,
}

impl Health {
    /// Adds or replaces a part. `check` must not block.
    pub fn watch(&self, name: &str, check: impl Fn() -> HealthPart + Send + Sync + 'static) {
        let mut checks = self.checks.write().unwrap_or_else(|poisoned| poisoned.into_inner());
        checks.insert(name.to_owned(), Arc::new(check));
    }

    /// Sets a part with a constant state.
    pub fn set(&self, name: &str, part: HealthPart) {
        self.watch(name, move || part.clone());
    }

    /// Runs all checks.
    pub fn report(&self) -> HealthReport {
        let checks = self.checks.read().unwrap_or_else(|poisoned| poisoned.into_inner());
        let parts: BTreeMap<String, HealthPart> =
            checks.iter().map(|(name, check)| (name.clone(), check())).collect();
        let status = parts.values().map(|part| part.status).max().unwrap_or(HealthStatus::Ok);
        HealthReport { status, parts }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_is_that_of_the_worst_part() {
        let health = Health::default();
        health.set("a", HealthPart::ok());
        health.set("b", HealthPart::degraded("slow"));

        assert_eq!(health.report().status, HealthStatus::Degraded);
        health.set("a", HealthPart::down("gone"));
        assert_eq!(health.report().status, HealthStatus::Down);
        health.set("a", HealthPart::ok());
        assert_eq!(health.report().status, HealthStatus::Degraded);
    }
}
