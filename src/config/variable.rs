//! Environment variables that were meant as settings and are not read.

use crate::config::keys::{Key, keys};

/// What the name of each variable that is read begins with, two underscores and all.
pub const PREFIX: &str = "POSTRIDER__";

/// Names a secret's file in place of its value.
pub const FILE_SUFFIX: &str = "_FILE";

/// How alike the rest of a name must be to that of a key.
const ALIKE: f64 = 0.9;

/// What all variables of Postrider begin with, those of its tests and scripts too.
const OWN: &str = "POSTRIDER_";

/// Variables that are read elsewhere, and how the names of others begin: those of tests, benchmarks and
/// scripts.
const KNOWN: [&str; 6] = ["CONFIG", "BLESS", "CARGO_DENY", "IMAGE_STORE", "SERVICE", "SERVICE_OF"];
const KNOWN_PREFIXES: [&str; 4] = ["TEST_", "BENCH_", "SERVICES_", "DEMO_"];

/// A warning for a variable that begins like ours and that nothing reads, with the right name where it is
/// nearly that of a key: `POSTRIDER_RELAY_BATCH_SIZE` has one underscore where two belong.
///
/// None for variables that Kubernetes makes for a Service called `postrider-api`
/// (`POSTRIDER_API_SERVICE_HOST`).
pub fn unread(name: &str) -> Option<String> {
    let rest = name.strip_prefix(OWN).filter(|_| !name.starts_with(PREFIX))?;
    let is_known =
        KNOWN.contains(&rest) || KNOWN_PREFIXES.iter().any(|prefix| rest.starts_with(prefix));
    if is_known || is_of_service(rest) {
        return None;
    }
    let of_file = rest.strip_suffix(FILE_SUFFIX).and_then(|rest| nearest(rest, FILE_SUFFIX));
    let nearest = [nearest(rest, ""), of_file]
        .into_iter()
        .flatten()
        .filter(|(likeness, _)| *likeness >= ALIKE)
        .max_by(|one, other| one.0.total_cmp(&other.0));
    let name = name.replace(char::is_control, " ");
    Some(match nearest {
        Some((_, right)) => format!("{name} is not read; did you mean {right}?"),
        None => {
            format!(
                "{name} is not read, since variables of settings start with {PREFIX} (two \
                 underscores); unset it"
            )
        }
    })
}

/// Whether Kubernetes makes a variable of such a name for a Service.
fn is_of_service(rest: &str) -> bool {
    const PROTOCOLS: [&str; 3] = ["_TCP", "_UDP", "_SCTP"];
    let name = format!("_{rest}");
    let is_port = name.split("_PORT_").skip(1).any(|port| {
        let digits = port.trim_start_matches(|digit: char| digit.is_ascii_digit());
        digits.len() < port.len() && PROTOCOLS.iter().any(|of| digits.starts_with(of))
    });
    is_port
        || name.ends_with("_SERVICE_HOST")
        || name.ends_with("_PORT")
        || name.contains("_SERVICE_PORT_")
}

/// The right name that is most like this one, and how alike they are.
fn nearest(rest: &str, suffix: &str) -> Option<(f64, String)> {
    let wanted = rest.to_lowercase();
    // A single key of a list's table has no variable.
    let keys = keys().all.iter().filter(|key| !key.is_of_item).map(Key::name);
    let candidates = keys.filter_map(|key| {
        let (written, key) = with_names(&key, &wanted)?;
        Some((strsim::jaro(&written, &wanted), key))
    });
    let (likeness, key) = candidates.max_by(|one, other| one.0.total_cmp(&other.0))?;
    Some((likeness, format!("{PREFIX}{}{suffix}", key.to_uppercase().replace('.', "__"))))
}

/// A key with single underscores, and with its dots; of the same section, with the user's own names
/// where it has some.
fn with_names(key: &str, wanted: &str) -> Option<(String, String)> {
    if key == wanted {
        return Some((key.to_owned(), key.to_owned()));
    }
    let section = format!("{}_", key.split('.').next()?);
    let rest = wanted.strip_prefix(&section)?;
    let key = match key.split_once(".*") {
        None => key.to_owned(),
        Some((before, "")) => format!("{before}.{rest}"),
        Some((before, after)) => match after.strip_suffix(".*") {
            Some(middle) => {
                let (name, own) = rest.split_once(&format!("{}_", middle.replace('.', "_")))?;
                format!("{before}.{name}{middle}.{own}")
            }
            None => {
                let name = rest.strip_suffix(&after.replace('.', "_"))?;
                format!("{before}.{name}{after}")
            }
        },
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
            ("POSTRIDER_MONGO_URI", "POSTRIDER__MONGO__URI"),
            ("POSTRIDER_ROUTES", "POSTRIDER__ROUTES"),
            (
                "POSTRIDER_SINKS_OUT_PROPERTIES_LINGER_MS",
                "POSTRIDER__SINKS__OUT__PROPERTIES__LINGER_MS",
            ),
        ] {
            let warning = unread(wrong).unwrap_or_else(|| panic!("{wrong}"));
            assert!(warning.ends_with(&format!("did you mean {right}?")), "{warning}");
        }
    }

    #[test]
    fn a_name_that_nothing_reads_is_warned_of() {
        for name in ["POSTRIDER_URI", "POSTRIDER_SOMETHING", "POSTRIDER_API_PORTS", "POSTRIDER_"] {
            let warning = unread(name).unwrap_or_else(|| panic!("{name}"));
            assert!(warning.contains("settings start with POSTRIDER__"), "{warning}");
        }
    }

    #[test]
    fn a_name_that_is_not_meant_as_a_setting_is_nothing() {
        for name in [
            "POSTRIDER_CONFIG",
            "POSTRIDER_SERVICES_DIR",
            "POSTRIDER_TEST_MONGODB_URI",
            "POSTRIDER_BENCH_SECONDS",
            "POSTRIDER_BLESS",
            "POSTRIDER_DEMO_OPS_PORT",
            "POSTRIDER_API_SERVICE_HOST",
            "POSTRIDER_API_SERVICE_PORT_HTTP",
            "POSTRIDER_API_PORT",
            "POSTRIDER_API_PORT_8080_TCP_ADDR",
            "POSTRIDER_PORT_8080_TCP",
            "POSTRIDER_METRICS_PORT",
            "POSTRIDER_SERVICE_HOST",
            "PATH",
        ] {
            assert_eq!(unread(name), None, "{name}");
        }
    }
}
