//! Unique user names, by prepare keys: `MONGODB_URI=… cargo run --example prepare`.
//!
//! A name is reserved for a while, the account is made, and the name is then kept for ever. A
//! second client is refused at once, and a reservation that is not used expires.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use mongodb::Client;
use postrider::context::{Context, ContextSettings};
use postrider::prepare::{PrepareKey, PrepareName, Ttl};
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Holder {
    account: String,
}

#[tokio::main]
async fn main() -> Result<()> {
    let uri = std::env::var("MONGODB_URI").context("MONGODB_URI is not set")?;
    run(Client::with_uri_str(&uri).await?, "postrider_example").await
}

/// Runs the example in this database.
pub async fn run(client: Client, database: &str) -> Result<()> {
    let context = Context::new(client, ContextSettings::new(database));
    let names = PrepareKey::<Holder>::new(context, PrepareName::new("username")?);
    let (ada, bob) = (holder("account-1"), holder("account-2"));
    // Left by an earlier run.
    for name in ["lovelace", "countess"] {
        names.rollback(name).await?;
    }

    // Ten minutes to fill in the form; no other client gets the name meanwhile.
    let reserved = Ttl::For(Duration::from_secs(600));
    ensure!(names.prepare("lovelace", &ada, reserved).await?);
    ensure!(!names.prepare("lovelace", &bob, reserved).await?);
    let holder = names.get("lovelace").await?.context("the name is held")?;
    println!("lovelace is reserved for {} until {:?}", holder.value.account, holder.ttl_at);

    // The account is made: the name is kept, if it still belongs to this client.
    ensure!(names.reprepare("lovelace", Some(&ada), &ada, Ttl::Forever).await?);

    // Another name for the same account: both change, or neither.
    ensure!(names.move_key("lovelace", &ada, "countess", &ada, Ttl::Forever).await?);
    println!("lovelace is free again: {:?}", names.get_value("lovelace").await?);

    // Work that fails releases its key.
    let work = async { Err::<(), _>("the mail server is down") };
    let failed = names.using_prepared("lovelace", &bob, reserved, work).await;
    ensure!(failed.is_err());
    ensure!(names.get("lovelace").await?.is_none());
    println!("lovelace was given back: the mail server is down");

    ensure!(names.rollback_value("countess", &ada).await?);
    Ok(())
}

fn holder(account: &str) -> Holder {
    Holder { account: account.to_owned() }
}
