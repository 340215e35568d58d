//! The least that each user of an outbox needs to be allowed, as MongoDB's roles.
//!
//! `postrider check` compares a user's privileges with these, and the script of `postrider
//! schema print --roles` creates them. The last print at the defaults is
//! `schema/mongodb-roles.js`.

use std::time::Duration;

use bson::Bson;

use crate::outbox::collections::names::{ALL, ASSIGNMENTS, CONTROL, INSTANCES, RECORDS};
use crate::schema::literal::{fill, literal};

/// What the script does, with `{{…}}` where the roles go.
const TEMPLATE: &str = include_str!("roles.template.js");

/// A role in the outbox's database.
#[derive(Clone, Copy, Debug)]
pub struct Role {
    /// Its name.
    pub name: &'static str,
    /// Whom it is for, in words.
    pub serves: &'static str,
    /// What it permits.
    pub privileges: &'static [Privilege],
}

/// Actions on one thing.
#[derive(Clone, Copy, Debug)]
pub struct Privilege {
    /// The thing.
    pub on: On,
    /// The actions, by MongoDB's names.
    pub actions: &'static [&'static str],
    /// When they are needed.
    pub when: When,
}

/// What actions are permitted on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum On {
    /// The database, with all that is in it.
    Database,
    /// A collection, by its name without the prefix.
    Collection(&'static str),
}

/// When a privilege is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// In any configuration.
    Always,
    /// Where delivered records are deleted at once (`outbox.retention = "0s"`).
    DeletingDelivered,
    /// Where a change stream wakes the relay (`relay.follow = true`).
    Following,
}

impl When {
    /// Whether that is so with this retention, and with or without a change stream.
    pub fn applies(self, retention: Duration, follow: bool) -> bool {
        match self {
            Self::Always => true,
            Self::DeletingDelivered => retention.is_zero(),
            Self::Following => follow,
        }
    }
}

const fn on(base: &'static str, actions: &'static [&'static str]) -> Privilege {
    Privilege { on: On::Collection(base), actions, when: When::Always }
}

/// To see which collections there are, and their options.
const LIST: Privilege =
    Privilege { on: On::Database, actions: &["listCollections"], when: When::Always };

/// `postrider run`, where it makes no schema: verify, read, lease, settle, beat, count.
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
            when: When::Following,
        },
        // A heartbeat is an upsert; signing off removes it, as peers do once it is stale.
        on(INSTANCES, &["find", "insert", "update", "remove"]),
        on(ASSIGNMENTS, &["find", "insert", "update"]),
        on(CONTROL, &["find"]),
    ],
};

/// Whoever makes the schema, by command or at the start.
pub const SCHEMA: Role = Role {
    name: "postrider_schema",
    serves: "postrider schema apply and verify; beside postrider_relay: run with outbox.auto_init_schema = true",
    privileges: &[
        LIST,
        on(RECORDS, &["createCollection", "createIndex", "collMod", "listIndexes"]),
        on(INSTANCES, &["createCollection"]),
        on(ASSIGNMENTS, &["createCollection"]),
        on(CONTROL, &["createCollection"]),
    ],
};

/// A person who looks after the outbox.
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

/// An application that writes records beside its own changes.
pub const PRODUCER: Role = Role {
    name: "postrider_producer",
    serves: "applications: insert records, and nothing else of the outbox",
    privileges: &[on(RECORDS, &["insert"])],
};

/// All of them.
pub const ROLES: [Role; 4] = [RELAY, SCHEMA, OPERATOR, PRODUCER];

/// A script for `mongosh` that creates the roles, or brings them up to date.
///
/// `prefix`, `retention` and `follow` are what it goes by where its environment (`OUTBOX_PREFIX`,
/// `OUTBOX_RETENTION`, `OUTBOX_FOLLOW`) says nothing. At the defaults it is the file
/// `schema/mongodb-roles.js`.
pub fn roles_script(prefix: &str, retention: Duration, follow: bool) -> String {
    let retention = humantime::format_duration(retention).to_string().replace(' ', "");
    let roles: Vec<String> = ROLES.iter().map(role_entry).collect();
    let all = ALL.iter().map(|name| Bson::from(*name)).collect();
    fill(
        TEMPLATE,
        [
            ("roles", roles.join("\n")),
            ("collections", literal(&Bson::Array(all), 0)),
            ("retention", literal(&retention.into(), 0)),
            ("follow", literal(&follow.to_string().into(), 0)),
            ("prefix", literal(&prefix.into(), 0)),
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
        };
        let actions = privilege.actions.iter().map(|action| Bson::from(*action)).collect();
        let entry = format!("{{ resource: {on}, actions: {} }}", literal(&Bson::Array(actions), 6));
        match privilege.when {
            When::Always => format!("      {entry},"),
            When::DeletingDelivered => format!("      ...(deletesDelivered ? [{entry}] : []),"),
            When::Following => format!("      ...(follows ? [{entry}] : []),"),
        }
    }));
    lines.extend(["    ],".into(), "  },".into()]);
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::tree::{Outbox, Relay};

    const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/schema/mongodb-roles.js");

    /// With `POSTRIDER_BLESS=1` the file is written anew.
    #[test]
    fn the_file_in_the_repository_is_the_script_at_the_defaults() {
        let expected = roles_script("", Outbox::default().retention, Relay::default().follow);
        if std::env::var_os("POSTRIDER_BLESS").is_some() {
            std::fs::write(FILE, &expected).unwrap();
        }

        let file = std::fs::read_to_string(FILE).unwrap();

        assert!(file == expected, "{FILE} is out of date: POSTRIDER_BLESS=1 writes it anew");
    }

    #[test]
    fn every_place_in_the_template_is_filled() {
        let script = roles_script("app_", Duration::ZERO, false);

        assert!(!script.contains("{{"), "{script}");
        assert!(script.contains(r#"process.env.OUTBOX_PREFIX ?? "app_";"#));
        assert!(script.contains(r#"process.env.OUTBOX_RETENTION || "0s";"#));
        assert!(script.contains(r#"process.env.OUTBOX_FOLLOW || "false";"#));
    }
}
