//! The configuration of the ops server.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The section `[ops]`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct OpsConfig {
    /// The address of `/livez`, `/readyz`, `/metrics` and `/blocked-keys`. With port 0 the system chooses a free port; the log names the address.
    pub listen: String,
    /// Whether a crash may write a core file, and programs of the same user may attach as debuggers or read the process's environment. Each of them shows passwords, tokens and payloads.
    pub core_dumps: bool,
}

impl Default for OpsConfig {
    fn default() -> Self {
        Self { listen: "127.0.0.1:9464".into(), core_dumps: false }
    }
}

/// The host of an address to listen on, `host:port`.
///
/// # Errors
///
/// What is right.
pub fn listen_host(address: &str) -> Result<&str, &'static str> {
    match address.rsplit_once(':') {
        Some((host, port)) if !host.is_empty() && port.parse::<u16>().is_ok() => Ok(host),
        _ => Err("must be host:port, for example 127.0.0.1:8080"),
    }
}
