//! The commands that the relays sent to MongoDB, read on their proxies: which record each settling
//! write named, and with which lease.

use std::collections::HashMap;
use std::sync::Mutex;

use bson::{Bson, DateTime, Document, Uuid};

/// The writes that end a lease, by record and lease, with the time of the first.
#[derive(Default)]
pub struct Settles {
    sent: Mutex<HashMap<(String, Uuid), DateTime>>,
}

impl Settles {
    /// Reads a message of MongoDB's protocol on its way to the server.
    pub fn observe(&self, message: &[u8]) {
        let Some(command) = command(message) else { return };
        let Some(Bson::Array(statements)) = command.get("updates") else { return };
        let now = DateTime::now();
        let statements = statements.iter().filter_map(Bson::as_document);
        for statement in statements.filter(|statement| ends_lease(statement)) {
            let Ok(q) = statement.get_document("q") else { continue };
            let Some(lease) = uuid(q.get("leaseId")) else { continue };
            for id in ids(q) {
                self.note(&id, lease, now);
            }
        }
    }

    /// Notes that such a write was sent.
    pub fn note(&self, id: &str, lease: Uuid, at: DateTime) {
        self.sent.lock().unwrap().entry((id.to_owned(), lease)).or_insert(at);
    }

    /// Whether a write that names this record and this lease was sent by then.
    pub fn has(&self, id: &str, lease: Uuid, by: DateTime) -> bool {
        let sent = self.sent.lock().unwrap();
        sent.get(&(id.to_owned(), lease)).is_some_and(|at| *at <= by)
    }
}

/// The UUID in this value.
pub fn uuid(value: Option<&Bson>) -> Option<Uuid> {
    let Some(Bson::Binary(binary)) = value else { return None };
    Some(Uuid::from_bytes(binary.bytes.as_slice().try_into().ok()?))
}

/// A record's id as brokers have it: a text unchanged, a UUID in its usual form.
pub fn id_of(id: &Bson) -> Option<String> {
    match id {
        Bson::String(id) => Some(id.clone()),
        id => uuid(Some(id)).map(|id| id.to_string()),
    }
}

/// The command of an OP_MSG whose body comes first, as the relay's do.
fn command(message: &[u8]) -> Option<Document> {
    const OP_MSG: [u8; 4] = 2013_i32.to_le_bytes();
    let is_body_first = message.get(12..16)? == OP_MSG && *message.get(20)? == 0;
    let body = message.get(21..).filter(|_| is_body_first)?;
    let length = u32::from_le_bytes(*body.first_chunk()?);
    let body = body.get(..usize::try_from(length).ok()?)?;
    // Most commands are not relevant: their first field shows that.
    let is_update = body.get(4..12)? == b"\x02update\0";
    is_update.then(|| Document::from_reader(body).ok()).flatten()
}

fn ends_lease(statement: &Document) -> bool {
    match statement.get("u") {
        Some(Bson::Document(change)) => {
            change.get_document("$unset").is_ok_and(|unset| unset.contains_key("leaseId"))
        }
        Some(Bson::Array(stages)) => stages.iter().filter_map(Bson::as_document).any(|stage| {
            let unset = stage.get_array("$unset");
            unset.is_ok_and(|unset| unset.contains(&Bson::from("leaseId")))
        }),
        _ => false,
    }
}

fn ids(q: &Document) -> Vec<String> {
    let texts = |all: &[Bson]| all.iter().filter_map(id_of).collect();
    match q.get("_id") {
        Some(Bson::Document(among)) => among.get_array("$in").map_or(Vec::new(), |all| texts(all)),
        Some(one) => texts(std::slice::from_ref(one)),
        None => Vec::new(),
    }
}
