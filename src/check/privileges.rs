//! Whether the user may do all that `run` does, by what the server says that he may.

use std::collections::BTreeMap;

use ::mongodb::Database;
use bson::{Bson, Document, doc};

use crate::check::Finding;
use crate::config::Resolved;
use crate::outbox::collections::names;
use crate::schema::roles::{On, RELAY, Role, SCHEMA};
use crate::store::StoreError;
use crate::store::connect::ask;

const NAME: &str = "privileges";

/// Asks who we are and what we may. Anybody may ask that of himself.
pub(super) async fn probe(plan: &Resolved, admin: &Database) -> Result<Finding, StoreError> {
    let question = doc! { "connectionStatus": 1, "showPrivileges": true };
    let status = ask(admin, "ask for the user's privileges", question).await?;
    Ok(judge(plan, &status))
}

fn judge(plan: &Resolved, status: &Document) -> Finding {
    let info = status.get_document("authInfo").cloned().unwrap_or_default();
    let users = documents(&info, "authenticatedUsers");
    let Some(user) = users.first() else {
        // A server with access control would not have let us look into the database.
        return Finding::good(NAME, "there is no access control: everybody may do everything");
    };
    let text = |field| user.get_str(field).unwrap_or_default();
    let who = format!("{}@{}", text("user"), text("db"));
    let granted = documents(&info, "authenticatedUserPrivileges");
    let mut roles: Vec<&str> = Vec::new();
    let mut missing: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for need in needs(plan) {
        if granted.iter().any(|granted| permits(granted, &plan.database, &need)) {
            continue;
        }
        if !roles.contains(&need.role.name) {
            roles.push(need.role.name);
        }
        let lacking = missing.entry(need.resource(&plan.database)).or_default();
        if !lacking.contains(&need.action) {
            lacking.push(need.action);
        }
    }
    if missing.is_empty() {
        return Finding::good(NAME, format!("{who} may do all that is needed"));
    }
    let missing: Vec<String> =
        missing.iter().map(|(on, actions)| format!("{} on {on}", actions.join(", "))).collect();
    let detail = format!("{who} lacks {}", missing.join("; "));
    let database = &plan.database;
    let grants: Vec<String> =
        roles.iter().map(|role| format!("{{ role: {role:?}, db: {database:?} }}")).collect();
    let mut remedy = format!(
        "have an administrator run the script of `postrider schema print --roles` in database \
         {database}, and then db.getSiblingDB({:?}).grantRolesToUser({:?}, [{}])",
        text("db"),
        text("user"),
        grants.join(", ")
    );
    if roles == [SCHEMA.name] {
        remedy.push_str("; or make the schema otherwise and set outbox.auto_init_schema = false");
    }
    Finding::bad(NAME, detail, remedy)
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

/// What `run` does under this configuration.
fn needs(plan: &Resolved) -> impl Iterator<Item = Need> {
    let roles = [Some(&RELAY), plan.auto_init_schema.then_some(&SCHEMA)];
    let privileges = roles
        .into_iter()
        .flatten()
        .flat_map(|role| role.privileges.iter().map(move |privilege| (role, privilege)));
    let applying = privileges.filter(|(_, privilege)| privilege.when.applies(plan.retention));
    applying.flat_map(|(role, privilege)| {
        let collection = match privilege.on {
            On::Database => String::new(),
            On::Collection(base) => format!("{}{base}", plan.prefix),
        };
        // Without a relay records are neither read nor written.
        let idle = !plan.relay_enabled && privilege.on == On::Collection(names::RECORDS);
        let actions = privilege.actions.iter().copied();
        let actions =
            actions.filter(move |action| !(idle && ["find", "update", "remove"].contains(action)));
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
