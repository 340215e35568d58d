//! The configuration of a file sink.

use std::path::PathBuf;

use postrider_relay::routing::Template;
use postrider_settings::Rules;
use postrider_settings::units::HumanSize;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::{ConnectionHelp, DefaultAddress, SinkConfig, SinkSettings};
use crate::file::File;
use crate::file::storage::RotatedFile;

/// One sink of kind `file`, as it is configured.
pub type FileSettings = SinkSettings<FileConfig>;

/// The keys of a `file` sink. It appends one JSON object per line to a file, and syncs it before a record
/// counts as delivered.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct FileConfig {
    /// The file. It is created where it is absent, its folder is not. One process writes to it at a time.
    /// Required.
    #[schemars(required, example = &"/var/lib/postrider/orders.ndjson")]
    pub path: Option<PathBuf>,
    /// The size at which the file is rotated: it gets the suffix `.1`, the next one `.2`, and a new file
    /// begins. No file is ever deleted.
    #[serde(with = "HumanSize")]
    #[schemars(extend("x-at-least" = "1KiB"))]
    pub max_size: usize,
}

impl Default for FileConfig {
    fn default() -> Self {
        Self { path: None, max_size: 100 << 20 }
    }
}

impl SinkConfig for FileConfig {
    type Sink = File;

    const DESTINATION: Option<&'static str> = None;

    const CONNECTION_HELP: ConnectionHelp = ConnectionHelp {
        keys: "path",
        remedy: "create the folder, permit this user to write there, or free space",
    };

    fn validate(settings: &SinkSettings<Self>, rules: &mut Rules) {
        let Some(path) = &settings.own.path else {
            rules.wrong("path", "is not set; write it as /folder/name.ndjson");
            return;
        };
        let is_file = path.file_name().is_some() && !path.is_dir();
        rules.require(is_file, "path", "must be a file; add a name such as orders.ndjson");
    }

    fn address(&self) -> DefaultAddress {
        DefaultAddress { destination: Template::fixed(""), key: None, source: None }
    }

    fn build(settings: SinkSettings<Self>) -> Result<File, String> {
        let path = settings.own.path.ok_or("path is not set")?;
        let storage = RotatedFile { path, max_size: settings.own.max_size as u64 };
        Ok(File::new(storage, settings.delivery.timeout))
    }
}
