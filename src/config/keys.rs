//! The known keys as patterns: a misspelt one is told the nearest, and the environment's
//! texts are read by what the key holds.

use postrider_settings::quoted;

use Holds::{Properties, Text, Texts, Tree, Value};

/// What a key holds, as far as reading text for it goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holds {
    /// Text, taken as it is.
    Text,
    /// Anything else, read as a TOML value.
    Value,
    /// Whatever stands below it too.
    Tree,
    /// Text, or a TOML list of texts.
    Texts,
    /// Texts by names that may have dots.
    Properties,
}

/// Every key; `*` stands for a name of the user's.
pub const KEYS: [(&str, Holds); 75] = [
    ("mongo.uri", Text),
    ("mongo.source", Text),
    ("mongo.sources.*.uri", Text),
    ("mongo.database", Text),
    ("connection_strings.*", Text),
    ("instance.name", Text),
    ("outbox.database", Text),
    ("outbox.collection_prefix", Text),
    ("outbox.auto_init_schema", Value),
    ("outbox.validator", Text),
    ("outbox.retention", Text),
    ("relay.enabled", Value),
    ("relay.batch_size", Value),
    ("relay.batch_bytes", Text),
    ("relay.poll_interval", Text),
    ("relay.follow", Value),
    ("relay.lease", Text),
    ("relay.max_attempts", Value),
    ("relay.ordering", Text),
    ("relay.on_dead", Text),
    ("relay.backoff.kind", Text),
    ("relay.backoff.initial", Text),
    ("relay.backoff.factor", Value),
    ("relay.backoff.max", Text),
    ("relay.backoff.jitter", Value),
    ("relay.shutdown_timeout", Text),
    ("relay.probe_max", Text),
    ("relay.audit_interval", Text),
    ("relay.default_sink", Text),
    ("relay.dead_letter.sink", Text),
    ("relay.dead_letter.destination", Text),
    ("partitions.heartbeat", Text),
    ("partitions.stale_after", Text),
    ("partitions.rebalance", Text),
    ("partitions.static", Text),
    ("sinks.*.kind", Text),
    ("sinks.*.uri", Text),
    ("sinks.*.exchange", Text),
    ("sinks.*.routing_key", Text),
    ("sinks.*.mandatory", Value),
    ("sinks.*.declare", Tree),
    ("sinks.*.brokers", Texts),
    ("sinks.*.topic", Text),
    ("sinks.*.properties.*", Properties),
    ("sinks.*.cloudevents", Value),
    ("sinks.*.cloudevents_source", Text),
    ("sinks.*.cloudevents_prefix", Text),
    ("sinks.*.timeout", Text),
    ("sinks.*.key_window", Value),
    ("sinks.*.allow", Value),
    ("routes.*.type", Text),
    ("routes.*.sink", Text),
    ("routes.*.destination", Text),
    ("routes.*.key", Text),
    ("routes.*.headers.*", Text),
    ("ops.listen", Text),
    ("log.format", Text),
    ("log.level", Text),
    ("events.enabled", Value),
    ("events.context", Text),
    ("events.database", Text),
    ("events.request_id_unique", Text),
    ("snapshots.database", Text),
    ("prepare.database", Text),
    ("api.enabled", Value),
    ("api.listen", Text),
    ("api.tokens", Tree),
    ("api.tls.cert_file", Text),
    ("api.tls.key_file", Text),
    ("api.max_body", Text),
    ("api.max_connections", Value),
    ("api.max_concurrent", Value),
    ("api.timeout", Text),
    ("api.allow_unauthenticated", Value),
    ("routes", Value),
];

/// Keys that had another name, and the one that they have now.
const RENAMED: [(&str, &str); 1] = [("api.insecure", "api.allow_unauthenticated")];

/// A path as TOML writes it, on one line: names are quoted where they must be.
pub fn dotted(path: &[String]) -> String {
    path.iter().map(|name| quoted(name)).collect::<Vec<_>>().join(".")
}

/// The path that a dotted key names, quoted names and all; `None` where it is not a key of TOML.
pub fn path_of(key: &str) -> Option<Vec<String>> {
    // A table's header on a line before it would be another path.
    if key.contains(['\n', '\r']) {
        return None;
    }
    let mut value = toml::Value::Table(format!("{key} = 0").parse().ok()?);
    let mut path = Vec::new();
    while let toml::Value::Table(table) = value {
        let (name, below) = table.into_iter().next()?;
        path.push(name);
        value = below;
    }
    Some(path)
}

/// What the key at `path` holds; `None` where there is no such key.
pub fn holds(path: &[String]) -> Option<Holds> {
    KEYS.iter().find(|(pattern, holds)| matches(pattern, *holds, path)).map(|(_, holds)| *holds)
}

/// Whether a text at `path` may have several lines, or other control characters: certificates, what
/// brokers know, and headers.
pub fn may_have_lines(path: &[String]) -> bool {
    let names: Vec<&str> = path.iter().map(String::as_str).collect();
    match names.as_slice() {
        ["sinks", _, "properties", ..] | ["routes", _, "headers", ..] => true,
        // They have a rule of their own, of all characters that a header can carry.
        ["api", "tokens", ..] => true,
        ["sinks", _, "declare", _, _, below, ..] => ["arguments", "properties"].contains(below),
        _ => false,
    }
}

/// Whether something of the user's may stand below `path`, as `sinks` or `relay.backoff`.
pub fn is_section(path: &[String]) -> bool {
    KEYS.iter().any(|(pattern, _)| {
        let parts: Vec<&str> = pattern.split('.').collect();
        parts.len() > path.len() && fits(&parts[..path.len()], path)
    })
}

/// The known key nearest to a path that is none, with the user's own names in it.
pub fn nearest(path: &[String]) -> Option<String> {
    let wanted = path.join(".");
    if let Some((_, now)) = RENAMED.iter().find(|(former, _)| *former == wanted) {
        return Some((*now).to_owned());
    }
    let candidates = KEYS.iter().map(|(pattern, _)| {
        let parts = pattern.split('.').enumerate();
        let parts: Vec<&str> = parts
            .map(|(at, part)| match (part, path.get(at)) {
                ("*", Some(own)) => own.as_str(),
                _ => part,
            })
            .collect();
        parts.join(".")
    });
    let last = path.last().map_or("", String::as_str);
    candidates
        .map(|candidate| {
            // `prefix` means `collection_prefix` more than anything that begins alike.
            let part_of = candidate.rsplit('.').next().is_some_and(|name| name.contains(last));
            let bonus = if part_of { 0.2 } else { 0.0 };
            (strsim::jaro_winkler(&wanted, &candidate) + bonus, candidate)
        })
        // Below this the two have little in common but their section.
        .filter(|(likeness, _)| *likeness > 0.8)
        .max_by(|one, other| one.0.total_cmp(&other.0))
        .map(|(_, candidate)| candidate)
}

fn matches(pattern: &str, holds: Holds, path: &[String]) -> bool {
    let parts: Vec<&str> = pattern.split('.').collect();
    let long_enough = match holds {
        Tree | Properties => path.len() >= parts.len(),
        Text | Texts | Value => path.len() == parts.len(),
    };
    long_enough && fits(&parts, &path[..parts.len()])
}

fn fits(parts: &[&str], path: &[String]) -> bool {
    parts.iter().zip(path).all(|(part, name)| *part == "*" || part == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &str) -> Vec<String> {
        text.split('.').map(str::to_owned).collect()
    }

    #[test]
    fn dotted_key_reads_back_to_its_path() {
        for (names, written) in [
            (&["relay", "lease"][..], "relay.lease"),
            (&["sinks", "a.b", "uri"], "sinks.\"a.b\".uri"),
            (&["sinks", "a\nb\"c", ""], r#"sinks."a\nb\"c"."""#),
        ] {
            let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();

            let key = dotted(&names);

            assert_eq!(path_of(&key), Some(names), "{key}");
            assert_eq!(key.replace('\'', "\""), written);
        }
        for wrong in ["", "a b", "a = 1, b", "[relay]\nlease"] {
            assert_eq!(path_of(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_misspelt_key_is_told_the_nearest() {
        for (wrong, right) in [
            ("relay.batchsize", "relay.batch_size"),
            ("relay.max_attemps", "relay.max_attempts"),
            ("sinks.orders.url", "sinks.orders.uri"),
            ("outbox.prefix", "outbox.collection_prefix"),
        ] {
            assert_eq!(holds(&path(wrong)), None);
            assert_eq!(nearest(&path(wrong)).as_deref(), Some(right));
        }
    }

    #[test]
    fn a_tree_takes_whatever_stands_below_it() {
        assert_eq!(holds(&path("sinks.k.declare.topics")), Some(Tree));
        assert_eq!(holds(&path("sinks.k.properties.ssl.key")), Some(Properties));
        assert_eq!(holds(&path("sinks.k.uri.x")), None);
    }
}
