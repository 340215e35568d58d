//! The configuration of a file sink.

use std::path::PathBuf;

use postrider_settings::units::HumanSize;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The keys of a `file` sink. It appends one JSON object per line to a file, and syncs it before a record
/// counts as delivered.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct FileConfig {
    /// The file. Postrider creates it, but not its folder. One process writes to it at a time. Required.
    #[schemars(required, example = &"/var/lib/postrider/orders.ndjson")]
    pub path: Option<PathBuf>,
    /// The size at which the file is rotated: it gets the time in milliseconds as suffix, and a new file
    /// begins. Postrider deletes no file.
    #[serde(with = "HumanSize")]
    #[schemars(extend("x-at-least" = "1KiB"))]
    pub max_size: usize,
}

impl FileConfig {
    /// Returns the path in the form in which it is compared with another one: absolute, and behind the links
    /// of a folder that exists.
    pub fn comparable_path(&self) -> Option<PathBuf> {
        let path = std::path::absolute(self.path.as_ref()?).ok()?;
        let (folder, name) = (path.parent()?, path.file_name()?);
        Some(std::fs::canonicalize(folder).ok().as_deref().unwrap_or(folder).join(name))
    }
}

impl Default for FileConfig {
    fn default() -> Self {
        Self { path: None, max_size: 100 << 20 }
    }
}
