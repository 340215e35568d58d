//! Prints the schema of aggregates and prepare keys as a mongosh script.

use bson::Bson;

use crate::config::Config;
use crate::context::{CollectionKind, RequestIds};
use crate::events::schema::{POSITION, indexes};
use crate::schema::index::Index;
use crate::schema::literal::{COMMON, fill, index_entry, literal};

/// The script, with `{{…}}` in place of the schema.
const TEMPLATE: &str = include_str!("aggregate.template.js");

/// Returns a `mongosh` script that creates the schema of these aggregates and prepare keys.
///
/// They and the settings are its defaults; its environment overrides them. For the aggregate
/// `order` at the defaults it is the file `schema/mongodb-aggregate.js`.
pub fn aggregate_script(config: &Config, aggregates: &[String], prepare_keys: &[String]) -> String {
    let entry = |index: &Index| match index.rival {
        Some(_) => "  ofRequests[requestIds],".to_owned(),
        None => index_entry("", index),
    };
    let entries = |kind| lines(indexes(kind, RequestIds::default(), false).into_iter().map(entry));
    let requests = [RequestIds::Aggregate, RequestIds::Global].into_iter().flat_map(|mode| {
        let of_requests = indexes(CollectionKind::Events, mode, false).into_iter();
        let of_requests = of_requests.filter(|index| index.rival.is_some());
        of_requests.map(move |index| index_entry(&format!("{}: ", word(mode)), index))
    });
    let text = |text: &str| literal(&Bson::from(text), 0);
    // Without a name of its own, the database of the connection, as for the outbox.
    let database = |name: &Option<String>| text(name.as_deref().unwrap_or_default());
    fill(
        TEMPLATE,
        [
            ("common", COMMON.trim_end().to_owned()),
            ("requests", lines(requests)),
            ("events", entries(CollectionKind::Events)),
            ("positions", index_entry("", &POSITION)),
            ("snapshots", entries(CollectionKind::Snapshots)),
            ("prepare", entries(CollectionKind::Prepare)),
            ("aggregates", text(&aggregates.join(" "))),
            ("prepare_keys", text(&prepare_keys.join(" "))),
            ("request_ids", text(word(config.events.request_id_unique))),
            ("feed", text(&config.feed.enabled.to_string())),
            ("events_database", database(&config.events.database)),
            ("snapshots_database", database(&config.snapshots.database)),
            ("prepare_database", database(&config.prepare.database)),
            ("context", text(&config.events.context)),
        ],
    )
}

/// Returns the value as in the configuration.
fn word(mode: RequestIds) -> &'static str {
    match mode {
        RequestIds::Aggregate => "aggregate",
        RequestIds::Global => "global",
    }
}

fn lines(entries: impl Iterator<Item = String>) -> String {
    entries.collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::blessed::compare;

    #[test]
    fn the_file_in_the_repository_is_the_script_for_order_at_the_defaults() {
        let script = aggregate_script(&Config::default(), &["order".to_owned()], &[]);

        compare("schema/mongodb-aggregate.js", &script);
        assert!(!script.contains("{{"), "{script}");
    }
}
