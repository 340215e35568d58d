//! Whether this process can do its work, part by part.

use std::collections::BTreeMap;
use std::sync::{Arc, RwLock};

use serde::Serialize;

/// How a part, or the whole, is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// As it should be.
    Ok,
    /// Something is amiss, and a restart or another instance would not help: still ready.
    Degraded,
    /// Not ready.
    Down,
}

/// One part's state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Part {
    /// How it is doing.
    pub status: Status,
    /// Why, where it is not `ok`; never a secret.
    pub detail: String,
}

impl Part {
    /// As it should be.
    pub fn ok() -> Self {
        Self { status: Status::Ok, detail: String::new() }
    }

    /// Amiss, but ready.
    pub fn degraded(detail: impl Into<String>) -> Self {
        Self { status: Status::Degraded, detail: detail.into() }
    }

    /// Not ready.
    pub fn down(detail: impl Into<String>) -> Self {
        Self { status: Status::Down, detail: detail.into() }
    }
}

/// The body of `/readyz`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Report {
    /// The worst of the parts.
    pub status: Status,
    /// Each by its name.
    pub parts: BTreeMap<String, Part>,
}

type Check = Arc<dyn Fn() -> Part + Send + Sync>;

/// The parts, each asked anew at every report.
#[derive(Clone, Default)]
pub struct Health {
    checks: Arc<RwLock<BTreeMap<String, Check>>>,
}

impl Health {
    /// Adds a part, or replaces it: `check` must answer at once.
    pub fn watch(&self, name: &str, check: impl Fn() -> Part + Send + Sync + 'static) {
        let mut checks = self.checks.write().unwrap_or_else(|poisoned| poisoned.into_inner());
        checks.insert(name.to_owned(), Arc::new(check));
    }

    /// Sets a part that does not change by itself.
    pub fn set(&self, name: &str, part: Part) {
        self.watch(name, move || part.clone());
    }

    /// Asks every part.
    pub fn report(&self) -> Report {
        let checks = self.checks.read().unwrap_or_else(|poisoned| poisoned.into_inner());
        let parts: BTreeMap<String, Part> =
            checks.iter().map(|(name, check)| (name.clone(), check())).collect();
        let status = parts.values().map(|part| part.status).max().unwrap_or(Status::Ok);
        Report { status, parts }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_whole_is_as_well_as_its_worst_part() {
        let health = Health::default();
        health.set("a", Part::ok());
        health.set("b", Part::degraded("slow"));

        assert_eq!(health.report().status, Status::Degraded);
        health.set("a", Part::down("gone"));
        assert_eq!(health.report().status, Status::Down);
        health.set("a", Part::ok());
        assert_eq!(health.report().status, Status::Degraded);
    }
}
