//! Environment variables that were meant as settings and are not read.

use crate::config::keys::KEYS;

/// What the name of each variable that is read begins with, two underscores and all.
pub const PREFIX: &str = "POSTRIDER__";

/// Names a secret's file in place of its value.
pub const FILE_SUFFIX: &str = "_FILE";

/// How alike the rest of a name must be to that of a key.
const ALIKE: f64 = 0.9;

/// A warning for a variable whose name has single underscores where two belong, such as
/// `POSTRIDER_RELAY_BATCH_SIZE`.
///
/// Only where the name is nearly that of a key: other programs have variables with this prefix, and
/// Kubernetes makes some for a Service called `postrider-api` (`POSTRIDER_API_SERVICE_HOST`).
pub fn slip(name: &str) -> Option<String> {
    let rest = name.strip_prefix("POSTRIDER_")?;
    let of_file = rest.strip_suffix(FILE_SUFFIX).and_then(|rest| nearest(rest, FILE_SUFFIX));
    let (_, right) = [nearest(rest, ""), of_file]
        .into_iter()
        .flatten()
        .filter(|(likeness, _)| *likeness >= ALIKE)
        .max_by(|one, other| one.0.total_cmp(&other.0))?;
    Some(format!("{name} is not read; did you mean {right}?"))
}

/// The right name that is most like this one, and how alike they are.
fn nearest(rest: &str, suffix: &str) -> Option<(f64, String)> {
    let wanted = rest.to_lowercase();
    // A single key of a route has no variable.
    let keys = KEYS.iter().map(|(key, _)| *key).filter(|key| !key.starts_with("routes."));
    let candidates = keys.filter_map(|key| {
        let (written, key) = with_names(key, &wanted)?;
        Some((strsim::jaro(&written, &wanted), key))
    });
    let (likeness, key) = candidates.max_by(|one, other| one.0.total_cmp(&other.0))?;
    Some((likeness, format!("{PREFIX}{}{suffix}", key.to_uppercase().replace('.', "__"))))
}

/// A key with single underscores, and with its dots; of the same section, with the user's own name
/// where it has one.
fn with_names(key: &str, wanted: &str) -> Option<(String, String)> {
    let section = format!("{}_", key.split('.').next()?);
    let rest = wanted.strip_prefix(&section)?;
    let key = match key.split_once(".*") {
        None => key.to_owned(),
        Some((before, "")) => format!("{before}.{rest}"),
        Some((before, after)) => {
            let name = rest.strip_suffix(&after.replace('.', "_"))?;
            format!("{before}.{name}{after}")
        }
    };
    Some((key.replace('.', "_"), key))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_single_underscores_is_answered_with_the_right_one() {
        for (wrong, right) in [
            ("POSTRIDER_RELAY_BATCH_SIZE", "POSTRIDER__RELAY__BATCH_SIZE"),
            ("POSTRIDER_RELAY__BATCH_SIZE", "POSTRIDER__RELAY__BATCH_SIZE"),
            ("POSTRIDER_RELAY_BACTH_SIZE", "POSTRIDER__RELAY__BATCH_SIZE"),
            ("POSTRIDER_MONGO_URI_FILE", "POSTRIDER__MONGO__URI_FILE"),
            ("POSTRIDER_SINKS_ORDERS_URI", "POSTRIDER__SINKS__ORDERS__URI"),
            ("POSTRIDER_API_TLS_CERT_FILE", "POSTRIDER__API__TLS__CERT_FILE"),
            ("POSTRIDER_OUTBOX_RETENTION_FILE", "POSTRIDER__OUTBOX__RETENTION_FILE"),
            ("POSTRIDER_LOG_LEVEL", "POSTRIDER__LOG__LEVEL"),
        ] {
            let warning = slip(wrong).unwrap_or_else(|| panic!("{wrong}"));
            assert!(warning.ends_with(&format!("did you mean {right}?")), "{warning}");
        }
    }

    #[test]
    fn a_name_that_is_not_meant_as_a_setting_is_nothing() {
        for name in [
            "POSTRIDER_CONFIG",
            "POSTRIDER_SERVICES_DIR",
            "POSTRIDER_TEST_MONGODB_URI",
            "POSTRIDER_BLESS",
            "POSTRIDER_DEMO_OPS_PORT",
            "POSTRIDER_API_SERVICE_HOST",
            "POSTRIDER_API_SERVICE_PORT_HTTP",
            "POSTRIDER_API_PORT",
            "POSTRIDER_API_PORT_8080_TCP_ADDR",
            "POSTRIDER_METRICS_PORT",
            "POSTRIDER_SERVICE_HOST",
            "PATH",
        ] {
            assert_eq!(slip(name), None, "{name}");
        }
    }
}
