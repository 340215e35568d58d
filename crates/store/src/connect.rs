//! Opens clients, with the settings that a URI must not decide.

use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

use bson::{Document, doc};
use futures_util::future::join_all;
use mongodb::error::ErrorKind;
use mongodb::options::{
    Acknowledgment, ClientOptions, CollectionOptions, ReadConcern, ReadPreference,
    SelectionCriteria, ServerAddress, Tls, TlsOptions, WriteConcern,
};
use mongodb::{Client, Collection, Database};
use parking_lot::Mutex;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use postrider_settings::TlsConfig;
use postrider_settings::secret::{SecretText, SecretUri};

use crate::driver_text::{is_of_another_set, unresolved_member};
use crate::error::{StoreError, within};
use crate::pools::Pool;
use crate::{limits, metrics, uri};

/// Timeout of the server selection, unless the URI sets `serverSelectionTimeoutMS`. Below every
/// limit in [`limits`](crate::limits), so that the driver's message reaches the log.
const SERVER_SELECTION_TIMEOUT: Duration = Duration::from_secs(5);

/// Timeout of a connection attempt, unless the URI sets one. The driver's monitor drops a server
/// that does not answer for this long plus a [`HEARTBEAT_INTERVAL`]: a primary that hangs delays
/// the relay by less than a lease.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Interval of the driver's monitor, unless the URI sets one.
///
/// After an error such as ShutdownInProgress (91), the driver selects the same server again only at
/// the next heartbeat. Below [`SERVER_SELECTION_TIMEOUT`], so that the next operation is late and
/// does not fail.
const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(2);

/// A MongoDB deployment and how to log in to it. `Display` and `Debug` show no password.
#[derive(Clone, Debug)]
pub struct MongoEndpoint {
    /// The URI.
    pub uri: SecretUri,
    /// The user, if the URI names none.
    pub username: Option<String>,
    /// The user's password.
    pub password: Option<SecretText>,
    /// TLS; replaces the URI's options.
    pub tls: Option<TlsConfig>,
}

impl MongoEndpoint {
    /// Returns the URI with the login in it, as the driver reads it: so `authSource`, and the database
    /// of the URI in its place, mean the same as with a user in the URI.
    pub fn uri_with_login(&self) -> Cow<'_, str> {
        let uri = self.uri.expose();
        let (Some(username), Some((scheme, rest))) = (&self.username, uri.split_once("://")) else {
            return uri.into();
        };
        let escaped = |text| utf8_percent_encode(text, NON_ALPHANUMERIC);
        let mut login = escaped(username).to_string();
        if let Some(password) = &self.password {
            login = format!("{login}:{}", escaped(password.expose()));
        }
        format!("{scheme}://{login}@{rest}").into()
    }

    fn tls_options(&self) -> Option<Tls> {
        let tls = self.tls.as_ref()?;
        let mut options = TlsOptions::default();
        options.ca_file_path.clone_from(&tls.ca_file);
        options.cert_key_file_path.clone_from(&tls.cert_file);
        Some(Tls::Enabled(options))
    }
}

impl From<&SecretUri> for MongoEndpoint {
    fn from(uri: &SecretUri) -> Self {
        Self { uri: uri.clone(), username: None, password: None, tls: None }
    }
}

impl From<&str> for MongoEndpoint {
    fn from(uri: &str) -> Self {
        Self::from(&SecretUri::from(uri))
    }
}

impl From<&String> for MongoEndpoint {
    fn from(uri: &String) -> Self {
        Self::from(uri.as_str())
    }
}

impl From<&MongoEndpoint> for MongoEndpoint {
    fn from(endpoint: &MongoEndpoint) -> Self {
        endpoint.clone()
    }
}

impl fmt::Display for MongoEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.uri.fmt(f)
    }
}

/// Opens a client. No server is contacted before the first operation.
///
/// Ignores read preference, read concern and write concern of the URI: a relay that reads from a
/// secondary, or writes without acknowledgement, could lose or reorder messages. Operations also
/// set their own.
///
/// # Errors
///
/// The driver cannot parse the URI. The error does not quote it.
pub async fn client(endpoint: impl Into<MongoEndpoint>) -> Result<Client, StoreError> {
    open(options(&endpoint.into()).await?, None).inspect(shut_down_at_the_end)
}

tokio::task_local! {
    /// The clients that [`with_shutdown`] shuts down.
    static CLIENTS: Mutex<Vec<Client>>;
}

/// How long the shutdown of the clients may take: MongoDB may not answer.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_millis(500);

/// Does the work, and shuts down the clients that its task has opened meanwhile.
///
/// A process calls this before its runtime ends: that drops the driver's tasks in any order, and one that requests a
/// connection from a pool that was dropped before it panics.
pub async fn with_shutdown<T>(work: impl Future<Output = T>) -> T {
    let work = async {
        let done = work.await;
        let clients = CLIENTS.with(|clients| std::mem::take(&mut *clients.lock()));
        let ending =
            clients.into_iter().map(|client| client.shutdown().immediate(true).into_future());
        let _ = tokio::time::timeout(SHUTDOWN_TIMEOUT, join_all(ending)).await;
        done
    };
    CLIENTS.scope(Mutex::default(), work).await
}

fn shut_down_at_the_end(client: &Client) {
    // Nothing happens outside of `with_shutdown`.
    let _ = CLIENTS.try_with(|clients| clients.lock().push(client.clone()));
}

/// Application name in MongoDB's log and `currentOp`, unless the URI sets one.
const APP_NAME: &str = "postrider";

/// Maximum connections of the relay: twice its concurrent operations (reads, leases, settlements,
/// renewals, heartbeats, the change stream).
const MAX_RELAY_CONNECTIONS: u32 = 32;

/// The connections of [`client`], unless the URI sets `maxPoolSize`: the driver's own default.
const DEFAULT_POOL_SIZE: u64 = 10;

/// The members of a replica set that the driver watches, at most in a set that all may vote in.
const MAX_MEMBERS: u64 = 7;

/// Returns how many connections the clients of a process may have at a time: [`client`], [`relay_client`]
/// and [`reading_client`], each with two more to every member, to watch it.
pub fn max_connections(endpoint: &MongoEndpoint) -> u64 {
    let uri = uri::read(&endpoint.uri_with_login()).ok();
    let pool = uri.as_ref().and_then(|uri| uri.parsed.max_pool_size).map(u64::from);
    let members = uri.map_or(0, |uri| uri.hosts().len() as u64).max(MAX_MEMBERS);
    let own = [MAX_RELAY_CONNECTIONS, MAX_READING_CONNECTIONS].map(u64::from);
    let pools = std::iter::once(pool.unwrap_or(DEFAULT_POOL_SIZE)).chain(own);
    pools.map(|connections| connections + 2 * members).sum()
}

/// Opens a client for the relay's heartbeats, leases and settlements. Slow reads and appends of the
/// API cannot use up its connections.
///
/// Pool sizes in the URI apply to [`client`] only.
///
/// # Errors
///
/// Those of [`client`].
pub async fn relay_client(endpoint: impl Into<MongoEndpoint>) -> Result<Client, StoreError> {
    own_pool(&endpoint.into(), Pool::Relay, MAX_RELAY_CONNECTIONS, None).await
}

/// Maximum connections for reads of the API: what may run at a time.
const MAX_READING_CONNECTIONS: u32 =
    READ_PARTS * COMMANDS_OF_A_PART + READ_QUERIES + READ_REPORTS + POLLS;

/// Parts of lists and pages of the feed that are read at a time, and the commands of each page.
const READ_PARTS: u32 = 4;
const COMMANDS_OF_A_PART: u32 = 4;

/// Queries, by default.
const READ_QUERIES: u32 = 8;

/// Reports: counts, and lists that may have to search.
const READ_REPORTS: u32 = 2;

/// Reads of the head of the feed for those that wait.
const POLLS: u32 = 1;

/// How long a connection of [`reading_client`] stays open without use.
const READING_IDLE_TIME: Duration = Duration::from_secs(60);

/// Opens a client for the reads of the API that may be many or slow: lists of events, the feed, queries, reports. They
/// cannot use up the connections of appends.
///
/// Pool sizes in the URI apply to [`client`] only.
///
/// # Errors
///
/// Those of [`client`].
pub async fn reading_client(endpoint: impl Into<MongoEndpoint>) -> Result<Client, StoreError> {
    let idle = Some(READING_IDLE_TIME);
    own_pool(&endpoint.into(), Pool::Reading, MAX_READING_CONNECTIONS, idle).await
}

/// Opens a client with a pool of its own: of this size, whatever the URI says, and with its name in `appName`.
async fn own_pool(
    endpoint: &MongoEndpoint,
    pool: Pool,
    connections: u32,
    idle: Option<Duration>,
) -> Result<Client, StoreError> {
    let mut options = options(endpoint).await?;
    if options.app_name.as_deref() == Some(APP_NAME) {
        options.app_name = Some(format!("{APP_NAME}-{}", pool.name()));
    }
    options.max_pool_size = Some(connections);
    options.min_pool_size = None;
    options.max_idle_time = idle.or(options.max_idle_time);
    open(options, Some(pool)).inspect(shut_down_at_the_end)
}

/// Opens a client of a single member in any state, with the login and TLS of `uri`. Operations time
/// out after `patience`.
///
/// # Errors
///
/// Those of [`client`], or an invalid host.
pub async fn member(
    endpoint: impl Into<MongoEndpoint>,
    host: &str,
    patience: Duration,
) -> Result<Client, StoreError> {
    let mut options = options(&endpoint.into()).await?;
    let address = ServerAddress::parse(host).map_err(|source| StoreError::Driver {
        action: "read the address of a member",
        source: Box::new(source),
    })?;
    options.hosts = vec![address];
    options.direct_connection = Some(true);
    options.repl_set_name = None;
    options.selection_criteria = Some(ReadPreference::Nearest { options: None }.into());
    options.server_selection_timeout = Some(patience);
    options.connect_timeout = Some(patience);
    open(options, None).inspect(shut_down_at_the_end)
}

async fn options(endpoint: &MongoEndpoint) -> Result<ClientOptions, StoreError> {
    let invalid = |source: mongodb::error::Error| StoreError::Driver {
        action: "read the MongoDB URI",
        source: Box::new(source),
    };
    let uri = uri::read(&endpoint.uri_with_login());
    let uri = uri.map_err(|detail| StoreError::Uri { detail })?;
    let mut options = ClientOptions::parse(&uri.text).await.map_err(invalid)?;
    options.tls = endpoint.tls_options().or(options.tls);
    options.selection_criteria = Some(primary());
    options.read_concern = Some(ReadConcern::majority());
    options.write_concern = Some(majority());
    options.server_selection_timeout.get_or_insert(SERVER_SELECTION_TIMEOUT);
    options.connect_timeout.get_or_insert(CONNECT_TIMEOUT);
    options.heartbeat_freq.get_or_insert(HEARTBEAT_INTERVAL);
    options.app_name.get_or_insert_with(|| APP_NAME.to_owned());
    Ok(options)
}

fn open(mut options: ClientOptions, pool: Option<Pool>) -> Result<Client, StoreError> {
    options.cmap_event_handler = Some(metrics::of_pool(pool));
    Client::with_options(options).map_err(|source| StoreError::Driver {
        action: "open a MongoDB client",
        source: Box::new(source),
    })
}

/// Kind of the deployment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Topology {
    /// A single server without replication: no snapshot reads, no transactions.
    Standalone,
    /// A replica set, of this name.
    ReplicaSet(String),
    /// A sharded cluster, through mongos.
    Sharded,
}

/// Opens a client, detects the topology, and checks the names of the databases, of which at least
/// one is given.
///
/// # Errors
///
/// Those of [`client`] and [`topology`]; [`StoreError::Deployment`] if the URI describes another
/// deployment; [`StoreError::DatabaseCase`] if the name of a database differs in case from an
/// existing one.
pub async fn reach(
    endpoint: &MongoEndpoint,
    databases: &[&str],
) -> Result<(Client, Topology), StoreError> {
    let client = open(options(endpoint).await?, Some(Pool::Api))?;
    let first = databases.first().copied().unwrap_or("admin");
    let topology = match topology(&client.database(first)).await {
        Ok(topology) => topology,
        Err(error) => return Err(explain(endpoint, error).await),
    };
    shut_down_at_the_end(&client);
    check_case(&client, databases).await?;
    Ok((client, topology))
}

/// What [`reach`] does, for errors.
const CONNECT: &str = "connect to MongoDB";

/// Refuses a name that differs in case from that of an existing database, before something is written
/// there. What the user may not list is not checked.
async fn check_case(client: &Client, databases: &[&str]) -> Result<(), StoreError> {
    let command = doc! { "listDatabases": 1, "nameOnly": true, "authorizedDatabases": true };
    let Ok(listed) = ask(&client.database("admin"), "list the databases", command).await else {
        return Ok(());
    };
    let listed = listed.get_array("databases").into_iter().flatten();
    for existing in listed.filter_map(|it| it.as_document()?.get_str("name").ok()) {
        let differs =
            |wanted: &&&str| **wanted != existing && wanted.eq_ignore_ascii_case(existing);
        if let Some(wanted) = databases.iter().find(differs) {
            let (wanted, existing) = ((*wanted).to_owned(), existing.to_owned());
            return Err(StoreError::DatabaseCase { action: CONNECT, wanted, existing });
        }
    }
    Ok(())
}

/// How long a host of the URI may take to say what it is, after the selection of a server has failed.
const SAY_TIMEOUT: Duration = Duration::from_millis(800);

/// Finds out why no server can be selected, if the URI describes another deployment.
async fn explain(endpoint: &MongoEndpoint, error: StoreError) -> StoreError {
    let StoreError::Driver { source, .. } = &error else { return error };
    let ErrorKind::ServerSelection { message, .. } = source.kind.as_ref() else { return error };
    let Ok(uri) = uri::read(&endpoint.uri_with_login()) else { return error };
    let hosts: Vec<String> = uri.hosts().iter().map(ToString::to_string).collect();
    if let Some((set, member)) = unresolved_member(message, &hosts)
        && let Some(host) = hosts.first()
    {
        return StoreError::Deployment {
            action: CONNECT,
            detail: format!(
                "the replica set {set} calls its member {member} (`rs.conf()`), which does not \
                 resolve here"
            ),
            remedy: format!(
                "make the name resolve on this host, or add directConnection=true to mongo.uri to \
                 use only {host}"
            ),
        };
    }
    if let Some(set) = uri.parsed.replica_set.as_deref().filter(|_| is_of_another_set(message)) {
        for host in &hosts {
            if let Some((detail, remedy)) = differs(endpoint, host, set).await {
                return StoreError::Deployment { action: CONNECT, detail, remedy };
            }
        }
    }
    error
}

/// Asks a host what it is. Returns how that differs from a member of this replica set, and the remedy.
async fn differs(endpoint: &MongoEndpoint, host: &str, set: &str) -> Option<(String, String)> {
    let asking = async {
        let admin = member(endpoint, host, SAY_TIMEOUT).await.ok()?.database("admin");
        admin.run_command(doc! { "hello": 1 }).await.ok()
    };
    let hello = tokio::time::timeout(SAY_TIMEOUT, asking).await.ok().flatten()?;
    Some(match kind(&hello) {
        Ok(Topology::Standalone) => (
            format!("{host} answers, but as a standalone server, not as a member of {set}"),
            "make it a replica set (mongod --replSet, then rs.initiate() in mongosh), or remove \
             replicaSet from mongo.uri"
                .to_owned(),
        ),
        Ok(Topology::ReplicaSet(other)) => (
            format!("{host} is a member of the replica set {other}, not of {set}"),
            format!("correct mongo.uri: replicaSet={other}"),
        ),
        Ok(Topology::Sharded) => (
            format!("{host} is a mongos, not a member of {set}"),
            "remove replicaSet from mongo.uri".to_owned(),
        ),
        Err(_) => return None,
    })
}

/// Detects the topology. It is the first proof that the server answers and accepts the login.
///
/// # Errors
///
/// No answer, or a refusal: invalid credentials, or no privilege to read.
pub async fn topology(database: &Database) -> Result<Topology, StoreError> {
    let hello = ask(database, CONNECT, doc! { "hello": 1 }).await?;
    let kind = kind(&hello)?;
    // `hello` does not require a login; this command does.
    let first = doc! { "listCollections": 1, "nameOnly": true, "authorizedCollections": true };
    ask(database, "read the database", first).await?;
    Ok(kind)
}

fn kind(hello: &Document) -> Result<Topology, StoreError> {
    match (hello.get_str("setName"), hello.get_str("msg"), hello.get_bool("isreplicaset")) {
        (Ok(name), ..) => Ok(Topology::ReplicaSet(name.to_owned())),
        (_, Ok("isdbgrid"), _) => Ok(Topology::Sharded),
        // It may become a primary soon: a client that took it for standalone would not use snapshot
        // reads.
        (.., Ok(true)) => Err(StoreError::Answer {
            action: "connect to MongoDB",
            detail: "the server is a member of a replica set that is not initiated; run \
                     rs.initiate() in mongosh"
                .to_owned(),
        }),
        _ => Ok(Topology::Standalone),
    }
}

/// Runs a command on the primary.
pub async fn ask(
    database: &Database,
    action: &'static str,
    command: Document,
) -> Result<Document, StoreError> {
    let asking = database.run_command(command).selection_criteria(primary());
    within(action, limits::BATCH_TIMEOUT, asking.into_future()).await
}

/// Returns a collection with majority read and write concern on the primary, whatever the URI says.
pub fn collection(database: &Database, name: &str) -> Collection<Document> {
    let options = CollectionOptions::builder()
        .selection_criteria(primary())
        .read_concern(ReadConcern::majority())
        .write_concern(majority())
        .build();
    database.collection_with_options(name, options)
}

/// Returns the selection of the primary.
pub fn primary() -> SelectionCriteria {
    SelectionCriteria::ReadPreference(ReadPreference::Primary)
}

/// Returns the majority write concern: a failover does not undo such writes.
pub fn majority() -> WriteConcern {
    WriteConcern::builder().w(Acknowledgment::Majority).build()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn login_next_to_the_uri_means_the_same_as_one_in_it() {
        for (uri, with_login, source) in [
            ("mongodb://h1,h2:2/app", "mongodb://u%40x:p%2F%3Aw%C3%A9@h1,h2:2/app", "app"),
            ("mongodb://h/", "mongodb://u%40x:p%2F%3Aw%C3%A9@h/", "admin"),
            (
                "mongodb://h/app?authSource=users",
                "mongodb://u%40x:p%2F%3Aw%C3%A9@h/app?authSource=users",
                "users",
            ),
        ] {
            let (username, password) = (Some("u@x".to_owned()), Some("p/:wé".into()));
            let endpoint = MongoEndpoint { username, password, ..MongoEndpoint::from(uri) };

            assert_eq!(endpoint.uri_with_login(), with_login);
            let credential = options(&endpoint).await.unwrap().credential.unwrap();
            assert_eq!(credential.username.as_deref(), Some("u@x"), "{uri}");
            assert_eq!(credential.password.as_deref(), Some("p/:wé"), "{uri}");
            assert_eq!(credential.source.as_deref(), Some(source), "{uri}");
        }
    }

    #[test]
    fn uninitiated_member_is_not_a_standalone_server() {
        let standalone = doc! { "isWritablePrimary": true };
        let member = doc! { "isWritablePrimary": false, "isreplicaset": true };
        let primary = doc! { "isWritablePrimary": true, "setName": "rs0" };

        assert_eq!(kind(&standalone).unwrap(), Topology::Standalone);
        assert_eq!(kind(&primary).unwrap(), Topology::ReplicaSet("rs0".into()));
        let error = kind(&member).unwrap_err();
        assert!(!error.is_permanent());
        assert!(error.to_string().contains("rs.initiate()"), "{error}");
    }
}
