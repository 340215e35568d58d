//! Whether a user may do all that the roles permit, by what the server says that he may.
//!
//! Asked before anything begins: a privilege that is missing would otherwise show at the first
//! record, and as an outage.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use bson::{Bson, Document, doc};
use mongodb::Database;

use crate::outbox::collections::names;
use crate::schema::roles::{On, RELAY, Role, SCHEMA};
use crate::store::StoreError;
use crate::store::connect::ask;

/// What is to be done, and where.
#[derive(Clone, Copy, Debug)]
pub struct Wanted<'a> {
    /// The outbox's database.
    pub database: &'a str,
    /// In front of its collections' names.
    pub prefix: &'a str,
    /// How long a delivered record stays.
    pub retention: Duration,
    /// Whether records are relayed; else nothing but this instance's entry is written.
    pub relay: bool,
    /// Whether a change stream wakes the relay.
    pub follow: bool,
    /// Actions by which the schema is made: those of [`Difference::made_by`](super::Difference).
    pub making: &'a [&'static str],
}

/// What the server said of the user.
#[derive(Clone, Debug)]
pub enum Access {
    /// There is no access control.
    Open,
    /// The user of this name may do all that is wanted.
    Enough(String),
    /// He may not.
    Lacking(Lacking),
}

/// What a user may not do, and should. `Display` names every action; with
/// [`remedy`](Self::remedy) it is all that an administrator needs.
#[derive(Clone, Debug)]
pub struct Lacking {
    user: String,
    of: String,
    database: String,
    /// The actions by what they are on.
    missing: BTreeMap<String, Vec<&'static str>>,
    roles: Vec<&'static str>,
}

impl Lacking {
    /// What gives the user what he lacks.
    pub fn remedy(&self) -> String {
        let Self { user, of, database, roles, .. } = self;
        let grants: Vec<String> =
            roles.iter().map(|role| format!("{{ role: {role:?}, db: {database:?} }}")).collect();
        let grants = grants.join(", ");
        let mut remedy = format!(
            "have an administrator run the script of `postrider schema print --roles` in database \
             {database}, and then db.getSiblingDB({of:?}).grantRolesToUser({user:?}, [{grants}])"
        );
        if roles == &[SCHEMA.name] {
            remedy
                .push_str("; or make the schema otherwise and set outbox.auto_init_schema = false");
        }
        remedy
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

/// Asks who we are and what we may: anybody may ask that of himself.
///
/// # Errors
///
/// Those of the store.
pub async fn access(admin: &Database, wanted: &Wanted<'_>) -> Result<Access, StoreError> {
    let question = doc! { "connectionStatus": 1, "showPrivileges": true };
    let status = ask(admin, "ask for the user's privileges", question).await?;
    Ok(judge(wanted, &status))
}

fn judge(wanted: &Wanted<'_>, status: &Document) -> Access {
    let info = status.get_document("authInfo").cloned().unwrap_or_default();
    let users = documents(&info, "authenticatedUsers");
    // A server with access control does not let a stranger look into the database.
    let Some(user) = users.first() else { return Access::Open };
    let text = |field| user.get_str(field).unwrap_or_default().to_owned();
    let granted = documents(&info, "authenticatedUserPrivileges");
    let mut lacking = Lacking {
        user: text("user"),
        of: text("db"),
        database: wanted.database.to_owned(),
        missing: BTreeMap::new(),
        roles: Vec::new(),
    };
    for need in needs(wanted) {
        if granted.iter().any(|granted| permits(granted, wanted.database, &need)) {
            continue;
        }
        if !lacking.roles.contains(&need.role.name) {
            lacking.roles.push(need.role.name);
        }
        let actions = lacking.missing.entry(need.resource(wanted.database)).or_default();
        if !actions.contains(&need.action) {
            actions.push(need.action);
        }
    }
    match lacking.missing.is_empty() {
        true => Access::Enough(format!("{}@{}", lacking.user, lacking.of)),
        false => Access::Lacking(lacking),
    }
}

/// One action on one thing.
struct Need {
    role: &'static Role,
    action: &'static str,
    /// With its prefix; empty for the database.
    collection: String,
}

impl Need {
    fn resource(&self, database: &str) -> String {
        match self.collection.as_str() {
            "" => format!("database {database}"),
            collection => format!("{database}.{collection}"),
        }
    }
}

fn needs<'a>(wanted: &'a Wanted<'a>) -> impl Iterator<Item = Need> + 'a {
    let privileges = [&RELAY, &SCHEMA]
        .into_iter()
        .flat_map(|role| role.privileges.iter().map(move |privilege| (role, privilege)));
    let applying =
        privileges.filter(|(_, privilege)| privilege.when.applies(wanted.retention, wanted.follow));
    applying.flat_map(move |(role, privilege)| {
        let collection = match privilege.on {
            On::Database => String::new(),
            On::Collection(base) => format!("{}{base}", wanted.prefix),
        };
        // Without a relay records are neither read nor written.
        let idle = !wanted.relay && privilege.on == On::Collection(names::RECORDS);
        let actions = privilege.actions.iter().copied();
        let actions = actions.filter(move |action| match role.name == SCHEMA.name {
            true => wanted.making.contains(action),
            false => !(idle && ["find", "update", "remove", "changeStream"].contains(action)),
        });
        actions.map(move |action| Need { role, action, collection: collection.clone() })
    })
}

/// Whether one of the user's privileges covers a need.
fn permits(granted: &Document, database: &str, need: &Need) -> bool {
    let Ok(resource) = granted.get_document("resource") else { return false };
    let covers = if resource.get_bool("anyResource").unwrap_or(false) {
        true
    } else {
        // An empty name stands for all of them.
        let fits = |field, wanted: &str| {
            resource.get_str(field).is_ok_and(|name| name.is_empty() || name == wanted)
        };
        fits("db", database) && fits("collection", &need.collection)
    };
    let actions = granted.get_array("actions").into_iter().flatten().filter_map(Bson::as_str);
    covers && actions.into_iter().any(|action| action == need.action || action == "anyAction")
}

fn documents(parent: &Document, field: &str) -> Vec<Document> {
    let items = parent.get_array(field).into_iter().flatten();
    items.filter_map(|item| item.as_document().cloned()).collect()
}
