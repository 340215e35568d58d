//! Defines the least privileges of each user of an outbox, as MongoDB roles.
//!
//! `postrider check` compares a user's privileges with these, and the script of `postrider
//! schema print --roles` creates them. The last print at the defaults is
//! `schema/mongodb-roles.js`.

use std::time::Duration;

use bson::Bson;
use postrider_settings::units;

use crate::config::Config;
use crate::context::{CollectionKind, ContextSettings, guard};
use crate::events::ending;
use crate::events::feed;
use crate::outbox::collections::names::{ALL, ASSIGNMENTS, CONTROL, INSTANCES, RECORDS};
use crate::schema::literal::{fill, literal};

/// The script, with `{{…}}` in place of the roles.
const TEMPLATE: &str = include_str!("roles.template.js");

/// A role in the outbox's database, and in those of the context where it permits something there.
#[derive(Clone, Copy, Debug)]
pub struct Role {
    /// Its name.
    pub name: &'static str,
    /// The user that it is for.
    pub serves: &'static str,
    /// What it permits.
    pub privileges: &'static [Privilege],
}

/// Actions on one resource.
#[derive(Clone, Copy, Debug)]
pub struct Privilege {
    /// The resource.
    pub on: On,
    /// The actions, by MongoDB's names.
    pub actions: &'static [&'static str],
    /// When they are needed.
    pub when: When,
}

/// Resource of actions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum On {
    /// The outbox's database, with all that is in it.
    Database,
    /// A collection of it, by its name without the prefix.
    Collection(&'static str),
    /// The context's database of a kind, with all that is in it: its collections are called after
    /// aggregates, and MongoDB permits nothing by a pattern.
    Context(CollectionKind),
    /// The guard of that database.
    Guard(CollectionKind),
    /// The open erasures of event streams, in the database of the events.
    Erasures,
    /// A collection of the feed, in the context's database of the events.
    Feed(&'static str),
}

impl On {
    /// Returns the MongoDB resource: the database, and the collection, or "" for all of them.
    pub fn resource(self, places: &Places<'_>) -> (String, String) {
        let outbox = || places.outbox.to_owned();
        let context = |kind| places.context.database(kind).to_owned();
        match self {
            Self::Database => (outbox(), String::new()),
            Self::Collection(base) => (outbox(), format!("{}{base}", places.prefix)),
            Self::Context(kind) => (context(kind), String::new()),
            Self::Guard(kind) => (context(kind), guard::COLLECTION.into()),
            Self::Erasures => (context(CollectionKind::Events), ending::COLLECTION.into()),
            Self::Feed(name) => (context(CollectionKind::Events), name.into()),
        }
    }
}

/// Databases and prefix.
#[derive(Clone, Copy, Debug)]
pub struct Places<'a> {
    /// The outbox's database.
    pub outbox: &'a str,
    /// Prefix of its collections.
    pub prefix: &'a str,
    /// The other databases.
    pub context: &'a ContextSettings,
}

/// When a privilege is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// In any configuration.
    Always,
    /// Where delivered records are deleted at once (`outbox.retention = "0s"`).
    DeletingDelivered,
    /// Where a change stream wakes the relay (`relay.change_stream = true`).
    UsingChangeStream,
    /// Where there is an append path (`events.enabled = true`).
    Appending,
    /// If an instance has a name; it works without one.
    Naming,
    /// If event streams are erased; appends work without it.
    Erasing,
}

/// Settings that decide whether a privilege is needed.
#[derive(Clone, Copy, Debug)]
pub struct Configured {
    /// How long a delivered record stays.
    pub retention: Duration,
    /// Whether a change stream wakes the relay.
    pub change_stream: bool,
    /// Whether there is an append path.
    pub append: bool,
    /// Whether instances have names.
    pub names: bool,
    /// Whether event streams are erased.
    pub erasures: bool,
}

impl When {
    /// Returns whether it is needed in this configuration.
    pub fn applies(self, configured: &Configured) -> bool {
        match self {
            Self::Always => true,
            Self::DeletingDelivered => configured.retention.is_zero(),
            Self::UsingChangeStream => configured.change_stream,
            Self::Appending => configured.append,
            Self::Naming => configured.names,
            Self::Erasing => configured.erasures,
        }
    }
}

const fn on(base: &'static str, actions: &'static [&'static str]) -> Privilege {
    Privilege { on: On::Collection(base), actions, when: When::Always }
}

/// Lists the collections and their options.
const LIST: Privilege =
    Privilege { on: On::Database, actions: &["listCollections"], when: When::Always };

/// `postrider run` without creating the schema: verify, read, lease, settle, heartbeat, count.
pub const RELAY: Role = Role {
    name: "postrider_relay",
    serves: "postrider run with outbox.auto_init_schema = false",
    privileges: &[
        LIST,
        on(RECORDS, &["find", "update", "listIndexes"]),
        Privilege {
            on: On::Collection(RECORDS),
            actions: &["remove"],
            when: When::DeletingDelivered,
        },
        Privilege {
            on: On::Collection(RECORDS),
            actions: &["changeStream"],
            when: When::UsingChangeStream,
        },
        // A heartbeat is an upsert; signing off removes it, as other instances do once it is stale.
        on(INSTANCES, &["find", "insert", "update", "remove"]),
        on(ASSIGNMENTS, &["find", "insert", "update"]),
        on(CONTROL, &["find"]),
        // The names of instances.
        Privilege {
            on: On::Collection(CONTROL),
            actions: &["insert", "update", "remove"],
            when: When::Naming,
        },
    ],
};

const fn of(on: On, actions: &'static [&'static str]) -> Privilege {
    Privilege { on, actions, when: When::Always }
}

/// Lists collections and indexes, to verify them.
const LIST_ACTIONS: [&str; 2] = ["listCollections", "listIndexes"];

const fn appending(on: On, actions: &'static [&'static str]) -> Privilege {
    Privilege { on, actions, when: When::Appending }
}

const fn erasing(on: On, actions: &'static [&'static str]) -> Privilege {
    Privilege { on, actions, when: When::Erasing }
}

/// The append path without creating the schema: events with their records in one transaction,
/// snapshots, prepare keys, and the erasure of events.
pub const APPEND: Role = Role {
    name: "postrider_append",
    serves: "the append path (events.enabled = true), beside postrider_relay: events, snapshots, prepare keys",
    privileges: &[
        of(On::Context(CollectionKind::Events), &LIST_ACTIONS),
        of(On::Context(CollectionKind::Events), &["find", "insert"]),
        of(On::Context(CollectionKind::Snapshots), &LIST_ACTIONS),
        of(On::Context(CollectionKind::Snapshots), &["find", "insert", "update"]),
        of(On::Context(CollectionKind::Prepare), &LIST_ACTIONS),
        of(On::Context(CollectionKind::Prepare), &["find", "insert", "update", "remove"]),
        on(RECORDS, &["insert"]),
        erasing(On::Context(CollectionKind::Events), &["update"]),
        erasing(On::Erasures, &["remove"]),
        erasing(On::Collection(RECORDS), &["find", "update", "remove"]),
    ],
};

/// The subscriptions of the feed, and what they have parked.
const SUBSCRIPTIONS: [&str; 2] = ["postrider_subscriptions", "postrider_parked"];

/// The collections of the feed.
const FEED_COLLECTIONS: [&str; 3] = [feed::COLLECTION, SUBSCRIPTIONS[0], SUBSCRIPTIONS[1]];

/// The feed without creating the schema: it assigns positions in the event streams, and readers and
/// subscriptions read them.
pub const FEED: Role = Role {
    name: "postrider_feed",
    serves: "the feed (feed.enabled = true), beside postrider_append: positions, readers, subscriptions",
    privileges: &[
        of(On::Context(CollectionKind::Events), &LIST_ACTIONS),
        // A change stream over the database; without it scans find the appends of other processes.
        of(On::Context(CollectionKind::Events), &["find", "changeStream", "update"]),
        of(On::Feed(feed::COLLECTION), &["find", "insert", "update"]),
        of(On::Feed(SUBSCRIPTIONS[0]), &["find", "insert", "update", "remove"]),
        of(On::Feed(SUBSCRIPTIONS[1]), &["find", "insert", "update", "remove"]),
    ],
};

/// Creates the schema, by command or at the start.
pub const SCHEMA: Role = Role {
    name: "postrider_schema",
    serves: "postrider schema apply and verify; beside the two above: run with outbox.auto_init_schema = true",
    privileges: &[
        LIST,
        on(RECORDS, &["createCollection", "createIndex", "collMod", "listIndexes"]),
        on(INSTANCES, &["createCollection"]),
        on(ASSIGNMENTS, &["createCollection"]),
        on(CONTROL, &["createCollection"]),
        appending(On::Context(CollectionKind::Events), &LIST_ACTIONS),
        appending(On::Context(CollectionKind::Events), &["createCollection", "createIndex"]),
        // The first process claims the database for its context, by an upsert.
        appending(On::Guard(CollectionKind::Events), &["find", "insert", "update"]),
        appending(On::Context(CollectionKind::Snapshots), &LIST_ACTIONS),
        appending(On::Context(CollectionKind::Snapshots), &["createCollection", "createIndex"]),
        appending(On::Guard(CollectionKind::Snapshots), &["find", "insert", "update"]),
        appending(On::Context(CollectionKind::Prepare), &LIST_ACTIONS),
        appending(On::Context(CollectionKind::Prepare), &["createCollection", "createIndex"]),
        appending(On::Guard(CollectionKind::Prepare), &["find", "insert", "update"]),
    ],
};

/// An operator of the outbox.
pub const OPERATOR: Role = Role {
    name: "postrider_operator",
    serves: "postrider outbox stats, list, show, requeue, discard and prune; instances, partitions, relay",
    privileges: &[
        on(RECORDS, &["find", "update", "remove"]),
        on(INSTANCES, &["find"]),
        on(ASSIGNMENTS, &["find"]),
        on(CONTROL, &["find", "insert", "update"]),
    ],
};

/// An application that writes records with its own changes.
pub const PRODUCER: Role = Role {
    name: "postrider_producer",
    serves: "applications: insert records, and nothing else of the outbox",
    privileges: &[on(RECORDS, &["insert"])],
};

/// The bridge from the outbox of another system. The script adds [`SOURCE_ACTIONS`] on the source that
/// `ADOPT_COLLECTION` names.
pub const ADOPT: Role = Role {
    name: "postrider_adopt",
    serves: "postrider adopt with outbox.auto_init_schema = false; with ADOPT_COLLECTION also what it does to that collection",
    privileges: &[
        LIST,
        on(RECORDS, &["find", "insert", "listIndexes"]),
        on(CONTROL, &["find", "insert", "update"]),
    ],
};

/// What the bridge does to the collection that it copies from. (Documents without a status are not updated.)
pub const SOURCE_ACTIONS: [&str; 3] = ["find", "update", "changeStream"];

/// All roles.
pub const ROLES: [Role; 7] = [RELAY, APPEND, FEED, SCHEMA, OPERATOR, PRODUCER, ADOPT];

/// Returns a `mongosh` script that creates or updates the roles.
///
/// The configuration is its default; its environment (`OUTBOX_PREFIX`, `EVENTS_DATABASE` and so on)
/// overrides it. At the defaults it is the file `schema/mongodb-roles.js`.
pub fn roles_script(config: &Config) -> String {
    let retention = units::HumanDuration::format(config.outbox.retention);
    let roles: Vec<String> = ROLES.iter().map(role_entry).collect();
    let names = |names: &[&str]| Bson::Array(names.iter().map(|name| Bson::from(*name)).collect());
    let text = |text: &str| literal(&text.into(), 0);
    // Without a name of its own, the database of the connection.
    let database = |name: &Option<String>| text(name.as_deref().unwrap_or_default());
    fill(
        TEMPLATE,
        [
            ("roles", roles.join("\n")),
            ("collections", literal(&names(&ALL), 0)),
            ("feed_collections", literal(&names(&FEED_COLLECTIONS), 0)),
            ("guard", text(guard::COLLECTION)),
            ("erasures", text(ending::COLLECTION)),
            ("retention", text(&retention)),
            ("change_stream", text(&config.relay.change_stream.to_string())),
            ("append", text(&config.events.enabled.to_string())),
            ("events_database", database(&config.events.database)),
            ("snapshots_database", database(&config.snapshots.database)),
            ("prepare_database", database(&config.prepare.database)),
            ("prefix", text(&config.outbox.collection_prefix)),
            ("adopt", text(ADOPT.name)),
            ("source_actions", literal(&names(&SOURCE_ACTIONS), 4)),
            ("adopt_database", database(&config.adopt.database)),
            ("adopt_collection", database(&config.adopt.collection)),
        ],
    )
}

fn role_entry(role: &Role) -> String {
    let mut lines = vec![
        format!("  // {}.", role.serves),
        "  {".into(),
        format!("    name: {},", literal(&role.name.into(), 4)),
        "    privileges: [".into(),
    ];
    lines.extend(role.privileges.iter().map(|privilege| {
        let on = match privilege.on {
            On::Database => "database".to_owned(),
            On::Collection(base) => format!("collection({})", literal(&base.into(), 6)),
            On::Context(kind) => format!("all({})", in_script(kind)),
            On::Guard(kind) => format!("guard({})", in_script(kind)),
            On::Erasures => format!("erasures({})", in_script(CollectionKind::Events)),
            On::Feed(name) => format!("ofFeed({})", literal(&name.into(), 6)),
        };
        let actions = privilege.actions.iter().map(|action| Bson::from(*action)).collect();
        let entry = format!("{{ resource: {on}, actions: {} }}", literal(&Bson::Array(actions), 6));
        match privilege.when {
            When::Always | When::Naming | When::Erasing => format!("      {entry},"),
            When::DeletingDelivered => format!("      ...(deletesDelivered ? [{entry}] : []),"),
            When::UsingChangeStream => format!("      ...(usesChangeStream ? [{entry}] : []),"),
            When::Appending => format!("      ...(appends ? [{entry}] : []),"),
        }
    }));
    lines.extend(["    ],".into(), "  },".into()]);
    lines.join("\n")
}

/// Returns the variable of the script that names a database.
fn in_script(kind: CollectionKind) -> &'static str {
    match kind {
        CollectionKind::Events => "events",
        CollectionKind::Snapshots => "snapshots",
        CollectionKind::Prepare => "prepare",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::blessed::compare;

    #[test]
    fn the_file_in_the_repository_is_the_script_at_the_defaults() {
        compare("schema/mongodb-roles.js", &roles_script(&Config::default()));
    }

    #[test]
    fn every_place_in_the_template_is_filled() {
        let mut config = Config::default();
        config.outbox.collection_prefix = "app_".into();
        config.outbox.retention = Duration::ZERO;
        config.relay.change_stream = false;
        config.events.enabled = false;
        let script = roles_script(&config);

        assert!(!script.contains("{{"), "{script}");
        assert!(script.contains(r#"process.env.OUTBOX_PREFIX ?? "app_";"#));
        assert!(script.contains(r#"process.env.OUTBOX_RETENTION || "0s";"#));
        assert!(script.contains(r#"process.env.OUTBOX_CHANGE_STREAM || "false";"#));
        assert!(script.contains(r#"process.env.EVENTS_ENABLED || "false";"#));
    }
}
