//! The client, with everything decided here that a URI must not decide.

use std::time::Duration;

use mongodb::options::{
    Acknowledgment, ClientOptions, ReadConcern, ReadPreference, SelectionCriteria, WriteConcern,
};
use mongodb::{Client, Database};

use crate::store::error::StoreError;

/// How long the driver looks for a primary before an operation fails, unless the
/// URI's `serverSelectionTimeoutMS` says otherwise. Below every limit in
/// [`limits`](crate::store::limits), so that the driver's own words reach the log.
const SERVER_SELECTION: Duration = Duration::from_secs(5);

/// Opens a client. No server is contacted before the first operation.
///
/// Read preference, read concern and write concern of the URI are set aside: a relay
/// that reads from a secondary, or writes without acknowledgement, could lose or
/// invert messages. Operations name their own all the same.
///
/// # Errors
///
/// A URI that the driver can't read. The error's text does not repeat the URI.
pub async fn client(uri: &str) -> Result<Client, StoreError> {
    let parsed = ClientOptions::parse(uri).await;
    let mut options = parsed.map_err(|source| StoreError::Driver {
        action: "read the MongoDB URI",
        source: Box::new(source),
    })?;
    options.selection_criteria = Some(primary());
    options.read_concern = Some(ReadConcern::majority());
    options.write_concern = Some(majority());
    options.server_selection_timeout.get_or_insert(SERVER_SELECTION);
    options.app_name.get_or_insert_with(|| "postrider".to_owned());
    Client::with_options(options).map_err(|source| StoreError::Driver {
        action: "open a MongoDB client",
        source: Box::new(source),
    })
}

/// A database of the client's, on the primary.
pub fn database(client: &Client, name: &str) -> Database {
    client.database(name)
}

/// Reads go where the writes are.
pub fn primary() -> SelectionCriteria {
    SelectionCriteria::ReadPreference(ReadPreference::Primary)
}

/// Acknowledged by a majority: what a failover can't take back.
pub fn majority() -> WriteConcern {
    WriteConcern::builder().w(Acknowledgment::Majority).build()
}
