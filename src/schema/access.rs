//! Compares the privileges of a user, as the server reports them, with the roles.
//!
//! Runs before anything starts: a missing privilege would otherwise appear at the first record, as
//! an outage.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use bson::{Bson, Document, doc};
use mongodb::Database;

use crate::config::Resolved;
use crate::context::CollectionKind;
use crate::outbox::collections::names;
use crate::schema::roles::{APPEND, Configured, FEED, On, Places, RELAY, Role, SCHEMA};
use crate::store::StoreError;
use crate::store::connect::ask;

/// Operations to check, and where.
#[derive(Clone, Copy, Debug)]
pub struct Wanted<'a> {
    /// The databases.
    pub places: Places<'a>,
    /// Retention of delivered records.
    pub retention: Duration,
    /// The operations.
    pub part: Part<'a>,
}

impl<'a> Wanted<'a> {
    /// The privileges that the user of `mongo.uri` must have for a part of the work.
    pub fn by(plan: &'a Resolved, part: Part<'a>) -> Self {
        let places =
            Places { outbox: &plan.database, prefix: &plan.prefix, context: &plan.context };
        Self { places, retention: plan.schema.retention, part }
    }
}

/// Operations of a process that require privileges.
#[derive(Clone, Copy, Debug)]
pub enum Part<'a> {
    /// Operations that `run` always requires.
    Relay {
        /// Whether records are relayed; if not, only this instance's entry is written.
        records: bool,
        /// Whether a change stream wakes the relay.
        change_stream: bool,
        /// Whether the instance has a name.
        names: bool,
        /// Actions that create the schema: those of [`Difference::made_by`](super::Difference).
        making: &'a [&'static str],
    },
    /// The append path; the relay works without it.
    Append,
    /// The feed; the append path works without it.
    Feed {
        /// Whether a change stream brings the appends of other processes.
        change_stream: bool,
    },
}

/// Result of the check.
#[derive(Clone, Debug)]
pub enum Access {
    /// The server has no access control.
    Open,
    /// The user of this name has all privileges.
    Enough(String),
    /// Privileges are missing.
    Lacking(Box<Lacking>),
}

/// Missing privileges of a user. `Display` names every action; with [`remedy`](Self::remedy) it is
/// all that an administrator requires.
#[derive(Clone, Debug)]
pub struct Lacking {
    user: String,
    of: String,
    /// Where to run the script.
    database: String,
    /// The actions by resource.
    missing: BTreeMap<String, Vec<&'static str>>,
    /// The roles that permit them, and their databases.
    roles: Vec<(&'static str, String)>,
    /// Alternatives.
    or_else: Option<&'static str>,
}

impl Lacking {
    /// Returns the command that grants the missing privileges.
    pub fn remedy(&self) -> String {
        let Self { user, of, database, roles, or_else, .. } = self;
        let grants: Vec<String> = roles
            .iter()
            .map(|(role, database)| format!("{{ role: {role:?}, db: {database:?} }}"))
            .collect();
        let grants = grants.join(", ");
        let or_else = or_else.map(|words| format!("; or {words}")).unwrap_or_default();
        format!(
            "run the script of `postrider schema print --roles` in database {database} as an \
             administrator, and then db.getSiblingDB({of:?}).grantRolesToUser({user:?}, \
             [{grants}]){or_else}"
        )
    }
}

impl fmt::Display for Lacking {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let missing = self.missing.iter();
        let missing: Vec<String> =
            missing.map(|(on, actions)| format!("{} on {on}", actions.join(", "))).collect();
        write!(f, "{}@{} lacks {}", self.user, self.of, missing.join("; "))
    }
}

/// Reads the user's own privileges, which any user may do.
///
/// # Errors
///
/// Those of the store.
pub async fn access(admin: &Database, wanted: &Wanted<'_>) -> Result<Access, StoreError> {
    let question = doc! { "connectionStatus": 1, "showPrivileges": true };
    let status = ask(admin, "read the privileges of the user", question).await?;
    Ok(judge(wanted, &status))
}

fn judge(wanted: &Wanted<'_>, status: &Document) -> Access {
    let info = status.get_document("authInfo").cloned().unwrap_or_default();
    let users = documents(&info, "authenticatedUsers");
    // With access control, an unauthenticated client cannot read the database.
    let Some(user) = users.first() else { return Access::Open };
    let text = |field| user.get_str(field).unwrap_or_default().to_owned();
    let granted = documents(&info, "authenticatedUserPrivileges");
    let mut lacking = Lacking {
        user: text("user"),
        of: text("db"),
        database: wanted.places.outbox.to_owned(),
        missing: BTreeMap::new(),
        roles: Vec::new(),
        or_else: None,
    };
    for need in wanted.needs() {
        if granted.iter().any(|granted| permits(granted, &need)) {
            continue;
        }
        let role = (need.role, need.database.clone());
        if !lacking.roles.contains(&role) {
            lacking.roles.push(role);
        }
        let actions = lacking.missing.entry(need.resource()).or_default();
        if !actions.contains(&need.action) {
            actions.push(need.action);
        }
    }
    lacking.or_else = match wanted.part {
        Part::Append => Some("set events.enabled = false if this instance appends no events"),
        Part::Feed { .. } => Some("set feed.enabled = false if no feed is needed"),
        Part::Relay { .. } if lacking.roles.iter().all(|(role, _)| *role == SCHEMA.name) => {
            Some("create the schema by other means and set outbox.auto_init_schema = false")
        }
        Part::Relay { .. } => None,
    };
    if lacking.missing.is_empty() {
        Access::Enough(format!("{}@{}", lacking.user, lacking.of))
    } else {
        Access::Lacking(Box::new(lacking))
    }
}

/// One action on one resource.
struct Need {
    role: &'static str,
    action: &'static str,
    database: String,
    /// With its prefix; empty for the database.
    collection: String,
}

impl Need {
    fn resource(&self) -> String {
        match self.collection.as_str() {
            "" => format!("database {}", self.database),
            collection => format!("{}.{collection}", self.database),
        }
    }
}

impl Wanted<'_> {
    fn needs(&self) -> Vec<Need> {
        match self.part {
            Part::Relay { records, change_stream, names, making } => {
                let retention = self.retention;
                let configured =
                    Configured { retention, change_stream, append: false, names, erasures: false };
                let relay = self.of(&RELAY, configured, |on, action| {
                    // Without a relay, records are neither read nor written.
                    let works = ["find", "update", "remove", "changeStream"].contains(&action);
                    records || on != On::Collection(names::RECORDS) || !works
                });
                let schema = self.of(&SCHEMA, configured, |_, action| making.contains(&action));
                relay.into_iter().chain(schema).collect()
            }
            Part::Append => {
                let retention = self.retention;
                let configured = Configured {
                    retention,
                    change_stream: false,
                    append: true,
                    names: false,
                    // Without these an erasure says so.
                    erasures: false,
                };
                let append = self.of(&APPEND, configured, |_, _| true);
                // Future aggregates are unknown: their schema may have to be created.
                let makes = self.places.context.auto_init_schema;
                let of_context = |on| matches!(on, On::Context(_) | On::Guard(_));
                let schema = self.of(&SCHEMA, configured, |on, _| makes && of_context(on));
                append.into_iter().chain(schema).collect()
            }
            Part::Feed { change_stream } => {
                let retention = self.retention;
                let configured = Configured {
                    retention,
                    change_stream: false,
                    append: true,
                    names: false,
                    erasures: false,
                };
                let feed = self.of(&FEED, configured, |_, action| {
                    // Without it the feed scans.
                    change_stream || action != "changeStream"
                });
                // The index of positions.
                let makes = self.places.context.auto_init_schema;
                let schema = self.of(&SCHEMA, configured, |on, action| {
                    makes && on == On::Context(CollectionKind::Events) && action == "createIndex"
                });
                feed.into_iter().chain(schema).collect()
            }
        }
    }

    /// Returns the needs of a role.
    fn of(
        &self,
        role: &Role,
        configured: Configured,
        is_needed: impl Fn(On, &'static str) -> bool,
    ) -> Vec<Need> {
        let mut needs = Vec::new();
        for privilege in role.privileges.iter().filter(|one| one.when.applies(&configured)) {
            let (database, collection) = privilege.on.resource(&self.places);
            let actions = privilege.actions.iter().copied();
            needs.extend(actions.filter(|action| is_needed(privilege.on, action)).map(|action| {
                let (database, collection) = (database.clone(), collection.clone());
                Need { role: role.name, action, database, collection }
            }));
        }
        needs
    }
}

/// Returns whether one of the user's privileges covers a need.
fn permits(granted: &Document, need: &Need) -> bool {
    let Ok(resource) = granted.get_document("resource") else { return false };
    let covers = if resource.get_bool("anyResource").unwrap_or(false) {
        true
    } else {
        // An empty name means all of them.
        let fits = |field, wanted: &str| {
            resource.get_str(field).is_ok_and(|name| name.is_empty() || name == wanted)
        };
        fits("db", &need.database) && fits("collection", &need.collection)
    };
    let actions = granted.get_array("actions").into_iter().flatten().filter_map(Bson::as_str);
    covers && actions.into_iter().any(|action| action == need.action || action == "anyAction")
}

fn documents(parent: &Document, field: &str) -> Vec<Document> {
    let items = parent.get_array(field).into_iter().flatten();
    items.filter_map(|item| item.as_document().cloned()).collect()
}
