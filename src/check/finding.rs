//! The result of a check.

use std::time::Duration;

use serde::Serialize;

/// How long one request to a server may take. A part with all its requests takes at most twice that.
pub(super) const PROBE_TIMEOUT: Duration = Duration::from_secs(5);

/// The result of one check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The check: its name does not change between versions.
    pub name: String,
    /// Whether it is as `run` needs it; `false` if it was skipped.
    pub ok: bool,
    /// Whether it was not checked, since another check failed; `detail` says which.
    pub skipped: bool,
    /// The state; never a secret.
    pub detail: String,
    /// What to do; empty if nothing is wrong, or `detail` says it.
    pub remedy: String,
}

impl Finding {
    /// A check that passed.
    pub fn good(name: impl Into<String>, detail: impl Into<String>) -> Self {
        let (detail, remedy) = (detail.into(), String::new());
        Self { name: name.into(), ok: true, skipped: false, detail, remedy }
    }

    /// A check that failed.
    pub fn bad(
        name: impl Into<String>,
        detail: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        let (detail, remedy) = (detail.into(), remedy.into());
        Self { name: name.into(), ok: false, skipped: false, detail, remedy }
    }

    /// A check that was not made; `why` begins with `since`.
    pub fn skipped(name: impl Into<String>, why: impl Into<String>) -> Self {
        Self { skipped: true, ..Self::bad(name, why, "") }
    }
}
