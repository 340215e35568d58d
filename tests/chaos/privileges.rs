//! The privileges of the relays' user in MongoDB, and when it lacked some.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use bson::Document;
use postrider::context::ContextSettings;
use postrider::schema::roles::{APPEND, Configured, FEED, RELAY, SCHEMA};

use crate::plan::Lost;
use crate::support::process::Ended;
use crate::support::roles;

/// A part of the last log line of a process that MongoDB refused at its start. (One that has started logs a
/// refusal, and does not end.)
const REFUSED: &str =
    "\"message\":\"ended with a failure\",\"error\":\"MongoDB rejects this instance";

/// When privileges were withdrawn.
#[derive(Default)]
pub struct Withdrawals {
    periods: Mutex<Vec<Period>>,
}

struct Period {
    begin: Instant,
    end: Option<Instant>,
}

impl Withdrawals {
    /// Notes that privileges are withdrawn from now on.
    pub fn begin(&self, now: Instant) {
        self.periods.lock().unwrap().push(Period { begin: now, end: None });
    }

    /// Notes that they are granted again.
    pub fn end(&self, now: Instant) {
        if let Some(period) = self.periods.lock().unwrap().last_mut() {
            period.end = Some(now);
        }
    }

    /// Whether they explain the end of a process that ran from `since` to `until`: MongoDB refused
    /// it while privileges were withdrawn, and its exit code is 1, so that a supervisor starts
    /// another one.
    pub fn explain(&self, ended: &Ended, since: Instant, until: Instant) -> bool {
        let periods = self.periods.lock().unwrap();
        let were_withdrawn = periods
            .iter()
            .any(|period| period.begin <= until && period.end.is_none_or(|end| end >= since));
        let is_refused = ended.stderr.contains(REFUSED);
        ended.code == Some(1) && is_refused && were_withdrawn
    }
}

/// The least privileges of a relay with the append path, without those that it has lost.
pub fn privileges(database: &str, lost: Option<Lost>) -> Vec<Document> {
    let configured = Configured {
        retention: Duration::MAX,
        change_stream: true,
        append: true,
        names: true,
        erasures: true,
    };
    let context = ContextSettings::new(database);
    let of = |role| roles::privileges_for(role, &context, database, "", configured);
    let mut all = [of(&RELAY), of(&APPEND), of(&FEED), of(&SCHEMA)].concat();
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
