//! A consumer program, started again whenever it ends.

use bson::{Bson, Document, doc};
use mongodb::Client;

use crate::history::example::{start_consumer, uri_of};
use crate::support::outbox::mongodb_uri;
use crate::support::process::Process;
use crate::support::schema::BareDatabase;

/// A consumer with a database of its own.
pub struct Consumer {
    pub language: &'static str,
    program: &'static str,
    environment: Vec<(&'static str, String)>,
    database: BareDatabase,
    client: Client,
    running: Process,
}

impl Consumer {
    /// Starts the program of this language.
    pub async fn start(
        language: &'static str,
        program: &'static str,
        environment: Vec<(&'static str, String)>,
    ) -> Self {
        let database = BareDatabase::new("").await;
        let client = Client::with_uri_str(mongodb_uri()).await.unwrap();
        let running = start_consumer(language, program, &uri_of(&database.name), &environment);
        Self { language, program, environment, database, client, running }
    }

    /// Starts it again if it has ended, as a supervisor does: a lost connection ends some of them.
    pub fn keep(&mut self) {
        if self.running.has_ended() {
            self.kill();
        }
    }

    /// Kills it, and starts it again.
    pub fn kill(&mut self) {
        let uri = uri_of(&self.database.name);
        self.running = start_consumer(self.language, self.program, &uri, &self.environment);
    }

    /// What it has received for this key, in its order.
    pub async fn received(&self, key: &str) -> Vec<i64> {
        let received = self.client.database(&self.database.name).collection::<Document>("received");
        let Some(found) = received.find_one(doc! { "_id": key }).await.unwrap() else {
            return Vec::new();
        };
        let numbers = found.get_array("n").unwrap().iter();
        numbers.map(|number| integer(number).unwrap_or_else(|| panic!("{number:?}"))).collect()
    }

    /// What it has written to standard error.
    pub fn said(&self) -> String {
        self.running.stderr()
    }
}

/// JSON has one kind of number: consumers store what their language makes of it.
fn integer(number: &Bson) -> Option<i64> {
    match number {
        Bson::Int32(number) => Some(i64::from(*number)),
        Bson::Int64(number) => Some(*number),
        Bson::Double(number) if number.fract() == 0.0 => Some(*number as i64),
        _ => None,
    }
}
