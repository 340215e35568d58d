//! What was found.

use serde::Serialize;

/// One thing that was looked at (contract, section 6).
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// What was looked at; names stay as they are from version to version.
    pub name: String,
    /// Whether it is as `run` needs it.
    pub ok: bool,
    /// How it is; never a secret.
    pub detail: String,
    /// What to do about it; empty where nothing is wrong, or `detail` says it.
    pub remedy: String,
}

impl Finding {
    /// Nothing is to be mended.
    pub fn good(name: impl Into<String>, detail: impl Into<String>) -> Self {
        Self { name: name.into(), ok: true, detail: detail.into(), remedy: String::new() }
    }

    /// Something is.
    pub fn bad(
        name: impl Into<String>,
        detail: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self { name: name.into(), ok: false, detail: detail.into(), remedy: remedy.into() }
    }
}
