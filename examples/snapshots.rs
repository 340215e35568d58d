//! An account from its events and snapshots: `MONGODB_URI=… cargo run --example snapshots`.
//!
//! Every third version is saved. What is loaded is the latest snapshot and the few events after
//! it, which is the same as all events.

use std::error::Error;

use anyhow::{Context as _, Result, ensure};
use bson::doc;
use mongodb::Client;
use postrider::context::{Context, ContextSettings};
use postrider::events::{Append, Event, EventStore, Expected, NewEvent};
use postrider::names::{AggregateId, AggregateName};
use postrider::outbox::collections::Collections;
use postrider::schema::{self, SchemaOptions};
use postrider::snapshot::{Aggregate, Repository, Snapshot, SnapshotStore, Strategy};
use serde::{Deserialize, Serialize};

#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
struct Account {
    balance: i64,
    closed: bool,
}

impl Aggregate for Account {
    fn apply(&mut self, event: &Event) -> Result<(), Box<dyn Error + Send + Sync>> {
        match event.name.as_str() {
            "Deposited" => self.balance += event.body.get_i64("amount")?,
            "Withdrawn" => self.balance -= event.body.get_i64("amount")?,
            "Closed" => self.closed = true,
            // An event of a newer version of the program.
            _ => {}
        }
        Ok(())
    }

    fn is_deleted(&self) -> bool {
        self.closed
    }
}

#[tokio::main]
async fn main() -> Result<()> {
    let uri = std::env::var("MONGODB_URI").context("MONGODB_URI is not set")?;
    run(Client::with_uri_str(&uri).await?, "postrider_example").await
}

/// Runs the example in this database.
pub async fn run(client: Client, database: &str) -> Result<()> {
    let outbox = Collections::new(client.clone(), database, "");
    schema::apply(&outbox, &SchemaOptions::default()).await?;
    let context = Context::new(client, ContextSettings::new(database));
    let (events, snapshots) =
        (EventStore::new(context.clone(), outbox), SnapshotStore::new(context));
    let name = AggregateName::new("account")?;
    let accounts = Repository::<Account>::new(
        events.clone(),
        snapshots.clone(),
        name.clone(),
        Strategy::EveryVersions(3),
    );

    let id = AggregateId::new(&format!("account-{}", uuid::Uuid::new_v4()))?;
    for (version, (kind, amount)) in
        (0..).zip([("Deposited", 100), ("Withdrawn", 30), ("Deposited", 5), ("Withdrawn", 75)])
    {
        let event = NewEvent::new(kind, doc! { "amount": amount as i64 });
        let append =
            Append::new(name.clone(), id.clone(), format!("request-{version}"), vec![event])
                .expecting(Expected::Exact(version));
        let stored = accounts.append(append).await?;
        println!("version {}, snapshot: {:?}", stored.appended.version, stored.snapshot?);
    }

    let now = accounts.load(&id, None).await?.context("it has events")?;
    println!("{:?} at version {}, from snapshot {}", now.state, now.version, now.snapshot_version);
    ensure!(now.state.balance == 0 && now.version == 4 && now.snapshot_version == 3);
    let before = accounts.load_version(&id, 2, None).await?.context("it has events")?;
    ensure!(before.state.balance == 70);

    // A client that saves an older state changes nothing.
    let late = Snapshot::new(id.clone(), 2, doc! { "balance": 70_i64, "closed": false });
    let saved = snapshots.save(&name, late).await?;
    ensure!(!saved.written && saved.version == 3);
    events.close().await;
    Ok(())
}
