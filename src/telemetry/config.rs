//! The configuration of the log.

use postrider_settings::{Rules, did_you_mean};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::telemetry::log::{LEVELS, check_level};

/// The section `[log]`: the log on standard error.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct LogConfig {
    /// `json`, `text`, or `auto`: text on a terminal, JSON otherwise. In JSON, panics and the error that ends the process are lines of the log too. Invalid arguments and configurations are reported before the log, as text.
    pub format: LogFormat,
    /// `error`, `warn`, `info`, `debug`, `trace`, or a filter such as `postrider=debug,info`.
    pub level: String,
}

impl Default for LogConfig {
    fn default() -> Self {
        Self { format: LogFormat::Auto, level: "info".into() }
    }
}

/// The form of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// Text on a terminal, JSON otherwise.
    Auto,
    /// One JSON object per line.
    Json,
    /// Text.
    Text,
}

impl LogFormat {
    /// `true` for JSON, `false` for text, `None` for what fits the output.
    pub fn as_json(self) -> Option<bool> {
        match self {
            Self::Auto => None,
            Self::Json => Some(true),
            Self::Text => Some(false),
        }
    }
}

impl LogConfig {
    /// Checks the filter.
    pub fn validate(&self, rules: &mut Rules) {
        if let Err(error) = check_level(&self.level) {
            let nearest = did_you_mean(&self.level, LEVELS);
            let detail = format!(
                "{error}; set error, warn, info, debug, trace, off, or a filter, for example \
                 postrider=debug,info{nearest}"
            );
            rules.wrong("level", detail);
        }
    }
}
