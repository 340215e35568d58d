//! A read model: its name, its source, and the processes that run it.

use bson::{Document, doc};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use mongodb::error::Error as DriverError;
use mongodb::{ClientSession, Database};
use postrider_events::feed::{Feed, FeedFilter};
use postrider_store::text::chain;
use postrider_store::{StoreError, limits, transaction, within};
use tracing::warn;

use crate::checkpoint::fields::{LIVE, NEWEST};
use crate::checkpoint::{
    CHECKPOINTS, Checkpoint, Generations, MadeWith, READ_MODELS, checkpoints, id, read_models,
};
use crate::error::ProjectionError;
use crate::name::{Generation, GenerationCollections, ReadModelName};
use crate::retry::RetryPolicy;

/// What may be chosen about a read model.
#[derive(Clone, Debug, PartialEq)]
pub struct ReadModelSettings {
    /// The events that it applies; by default all. Part of what a generation is built with.
    pub filter: FeedFilter,
    /// The revision of the projector. Raise it when the projector makes something else of the same
    /// events: generations of another revision are then left alone, and a rebuild makes a new one.
    pub revision: i64,
    /// About the most events of one transaction. One append is always whole.
    pub batch_events: usize,
    /// How often an event with which the projector fails is tried again.
    pub retry: RetryPolicy,
}

impl Default for ReadModelSettings {
    fn default() -> Self {
        Self {
            filter: FeedFilter::default(),
            revision: 1,
            // Some hundred writes: a transaction of well below a second.
            batch_events: 500,
            retry: RetryPolicy::default(),
        }
    }
}

/// A read model of a feed, in a database.
///
/// ```no_run
/// use bson::{Document, doc};
/// use mongodb::Client;
/// use postrider_events::context::{Context, ContextSettings};
/// use postrider_events::feed::{Feed, FeedEvent};
/// use postrider_projections::{ApplyError, GenerationWriter, Projector, ReadModel, ReadModelSettings};
/// use tokio_util::sync::CancellationToken;
///
/// /// The number of items in each cart.
/// struct Carts;
///
/// impl Projector for Carts {
///     async fn apply(
///         &self,
///         into: &mut GenerationWriter<'_>,
///         append: &[FeedEvent],
///     ) -> Result<(), ApplyError> {
///         let carts = into.collection::<Document>("carts");
///         for event in append {
///             let cart = doc! { "_id": &event.aggregate_id };
///             match event.name.as_str() {
///                 "ItemAdded" => {
///                     let more = doc! { "$inc": { "items": event.body.get_i32("quantity")? } };
///                     carts.update_one(cart, more).upsert(true).session(into.session()).await?;
///                 }
///                 "postrider.StreamErased" => {
///                     carts.delete_one(cart).session(into.session()).await?;
///                 }
///                 _ => {}
///             }
///         }
///         Ok(())
///     }
/// }
///
/// # async fn run() -> Result<(), Box<dyn std::error::Error>> {
/// let client = Client::with_uri_str("mongodb://127.0.0.1:27017/?replicaSet=rs0").await?;
/// let feed = Feed::new(Context::new(client.clone(), ContextSettings::new("shop")));
/// let carts = ReadModel::new(feed, client.database("views"), "carts", ReadModelSettings::default())?;
/// carts.run(&Carts, CancellationToken::new()).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct ReadModel {
    pub(crate) feed: Feed,
    pub(crate) database: Database,
    pub(crate) name: ReadModelName,
    pub(crate) settings: ReadModelSettings,
}

/// What a transaction on the documents of a read model needs.
pub(crate) type Statements<'a, T> = &'a mut (
            dyn for<'s> FnMut(&'s mut ClientSession) -> BoxFuture<'s, Result<T, DriverError>>
                + Send
                + 'a
        );

impl ReadModel {
    /// A read model of this feed, whose collections and checkpoints are in this database: of the same or
    /// another deployment, which must be a replica set. Sends nothing.
    ///
    /// # Errors
    ///
    /// [`ProjectionError::Name`].
    pub fn new(
        feed: Feed,
        database: Database,
        name: &str,
        settings: ReadModelSettings,
    ) -> Result<Self, ProjectionError> {
        let invalid = || ProjectionError::Name { name: name.to_owned() };
        let name = ReadModelName::new(name).ok_or_else(invalid)?;
        Ok(Self { feed, database, name, settings })
    }

    /// The collections of a generation, whether it exists or not.
    pub fn collections(&self, generation: Generation) -> GenerationCollections {
        GenerationCollections {
            database: self.database.clone(),
            name: self.name.clone(),
            generation,
        }
    }

    pub(crate) fn made_with(&self) -> MadeWith {
        MadeWith { revision: self.settings.revision, filter: self.settings.filter.clone() }
    }

    /// The document that readers resolve; `None` before the first run.
    pub(crate) async fn generations(&self) -> Result<Option<Generations>, StoreError> {
        let models = read_models(&self.database);
        let finding = models.find_one(doc! { "_id": self.name.as_str() });
        let found =
            within("read a read model", limits::BATCH_TIMEOUT, finding.into_future()).await?;
        let read = |found| {
            Generations::read(&found).ok_or_else(|| invalid(READ_MODELS, self.name.as_str()))
        };
        found.map(read).transpose()
    }

    /// The same.
    ///
    /// # Errors
    ///
    /// [`ProjectionError::Missing`], [`ProjectionError::Store`].
    pub(crate) async fn existing(&self) -> Result<Generations, ProjectionError> {
        let missing = || ProjectionError::Missing { name: self.name.as_str().to_owned() };
        self.generations().await?.ok_or_else(missing)
    }

    /// The checkpoint of a generation, from a majority.
    pub(crate) async fn checkpoint(
        &self,
        generation: Generation,
    ) -> Result<Checkpoint, ProjectionError> {
        let stored = checkpoints(&self.database);
        let finding = stored.find_one(doc! { "_id": self.id(generation) });
        let found =
            within("read a checkpoint", limits::BATCH_TIMEOUT, finding.into_future()).await?;
        let found = found.ok_or(ProjectionError::NoGeneration { generation })?;
        let id = self.id(generation);
        Checkpoint::read(&found).ok_or_else(|| invalid(CHECKPOINTS, &id).into())
    }

    pub(crate) fn id(&self, generation: Generation) -> String {
        id(&self.name, generation)
    }

    /// Repeats a step while MongoDB is unreachable, or the feed does not exist yet. The step may have taken
    /// effect before.
    pub(crate) async fn retry<T, F>(&self, step: impl Fn() -> F) -> Result<T, ProjectionError>
    where
        F: Future<Output = Result<T, ProjectionError>>,
    {
        let mut failures = 0;
        loop {
            match step().await {
                Err(error) if error.is_transient() => {
                    let (name, error) = (self.name.as_str(), chain(&error));
                    warn!(read_model = name, error, "waiting for MongoDB");
                    let pause = RetryPolicy::ENDLESS.pause_before(failures).unwrap_or_default();
                    tokio::time::sleep(pause).await;
                    failures += 1;
                }
                ended => return ended,
            }
        }
    }

    /// Creates generation 1, unless the read model exists.
    pub(crate) async fn create(&self) -> Result<Generations, ProjectionError> {
        if let Some(generations) = self.generations().await? {
            return Ok(generations);
        }
        let first = Generation(1);
        let model = doc! { "_id": self.name.as_str(), LIVE: 1_i64, NEWEST: 1_i64 };
        let checkpoint = Checkpoint::new_document(&self.name, first, &self.made_with());
        // Both, or nothing: a read model without its checkpoint would begin again in a full collection.
        // Another process that creates it at the same time makes this one fail, and look again.
        self.transact("create a read model", &mut |session| {
            let (database, model, checkpoint) =
                (self.database.clone(), model.clone(), checkpoint.clone());
            async move {
                let models = database.collection::<Document>(READ_MODELS);
                models.insert_one(model).session(&mut *session).await?;
                let checkpoints = database.collection::<Document>(CHECKPOINTS);
                checkpoints.insert_one(checkpoint).session(&mut *session).await?;
                Ok(())
            }
            .boxed()
        })
        .await?;
        Ok(Generations { live: first, building: None, newest: first })
    }

    /// Runs statements in a transaction, and again after a conflict or an election. They may run several
    /// times.
    pub(crate) async fn transact<T: Send>(
        &self,
        action: &'static str,
        statements: Statements<'_, T>,
    ) -> Result<T, StoreError> {
        let running = async {
            let mut session = self.database.client().start_session().await?;
            session
                .start_transaction()
                .with_options(transaction::options())
                .and_run(statements, |session, statements| statements(session))
                .await
        };
        within(action, limits::REPORT_TIMEOUT, running).await
    }
}

/// The error of a document that is not as this library writes it.
fn invalid(collection: &str, id: &str) -> StoreError {
    StoreError::Answer {
        action: "read a read model",
        detail: format!(
            "invalid document {id:?} in {collection}; correct it, or remove the read model"
        ),
    }
}
