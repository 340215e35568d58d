//! The privileges of the relays' user in MongoDB.

use std::time::Duration;

use bson::Document;
use postrider::context::ContextSettings;
use postrider::schema::roles::{APPEND, Configured, RELAY, SCHEMA};

use crate::plan::Lost;
use crate::support::roles;

/// Those that a relay with the append path needs at least, without those that it has lost.
pub fn privileges(database: &str, lost: Option<Lost>) -> Vec<Document> {
    let configured = Configured { retention: Duration::MAX, follow: true, append: true };
    let context = ContextSettings::new(database);
    let of = |role| roles::privileges_for(role, &context, database, "", configured);
    let mut all = [of(&RELAY), of(&APPEND), of(&SCHEMA)].concat();
    let lost: &[&str] = match lost {
        None => return all,
        Some(Lost::All) => return Vec::new(),
        Some(Lost::Update) => &["update"],
        Some(Lost::Find) => &["find"],
        Some(Lost::Write) => &["insert", "update", "remove"],
    };
    for privilege in &mut all {
        let actions = privilege.get_array_mut("actions").unwrap();
        actions.retain(|action| !lost.contains(&action.as_str().unwrap()));
    }
    all.retain(|privilege| !privilege.get_array("actions").unwrap().is_empty());
    all
}
