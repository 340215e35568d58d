//! The guard of a database: a document that names its context.
//!
//! `wow_database_metadata` has `{_id: "boundedContext", contextName, layoutVersion}`, as the Wow
//! framework writes it. Without it two contexts in one database would share aggregates of the same
//! name unnoticed.

use bson::{Bson, Document, doc};
use mongodb::Collection;
use mongodb::options::ReturnDocument;
use postrider_store::schema::{Difference, ForeignContext, SchemaError};
use postrider_store::{DUPLICATE_KEY, StoreError, limits, within};

use crate::integer::integral;

/// The collection of the guard.
pub const COLLECTION: &str = "wow_database_metadata";

/// The id of the guard.
const ID: &str = "boundedContext";

/// The version of the layout of collections.
const LAYOUT_VERSION: i32 = 1;

/// One database, for one context.
pub(super) struct DatabaseGuard {
    /// The database's name.
    pub(super) database: String,
    pub(super) metadata: Collection<Document>,
    /// The context that claims it.
    pub(super) context: String,
    /// The settings that name another database.
    pub(super) elsewhere: String,
}

impl DatabaseGuard {
    /// Checks that no other context has the database. The difference is that no context has it.
    ///
    /// # Errors
    ///
    /// [`SchemaError`], also for a database of another context.
    pub(super) async fn verify(&self) -> Result<Option<Difference>, SchemaError> {
        let finding = self.metadata.find_one(doc! { "_id": ID });
        let found =
            within("read the context of a database", limits::BATCH_TIMEOUT, finding).await?;
        if let Some(found) = found {
            self.check(&found)?;
            return Ok(None);
        }
        Ok(Some(Difference {
            subject: format!("database {}", self.database),
            found: "without a context".into(),
            wanted: format!("owned by the context {:?}", self.context),
            made_by: Some("insert"),
        }))
    }

    /// Claims the database if it has no context, and then returns its name. Of several contexts at the
    /// same time one wins.
    ///
    /// # Errors
    ///
    /// [`SchemaError`], also for a database of another context.
    pub(super) async fn claim(&self) -> Result<Option<String>, SchemaError> {
        if self.verify().await?.is_none() {
            return Ok(None);
        }
        let found = match self.insert().await {
            // Another process inserted it at the same moment: the second try finds it.
            Err(error) if error.code() == Some(DUPLICATE_KEY) => self.insert().await?,
            other => other?,
        };
        match found {
            Some(found) => self.check(&found).map(|()| None),
            None => Ok(Some(self.database.clone())),
        }
    }

    /// Inserts the guard unless there is one, which is returned. A majority has it then.
    async fn insert(&self) -> Result<Option<Document>, StoreError> {
        let ours = doc! { "contextName": &self.context, "layoutVersion": LAYOUT_VERSION };
        let inserting = self
            .metadata
            .find_one_and_update(doc! { "_id": ID }, doc! { "$setOnInsert": ours })
            .upsert(true)
            .return_document(ReturnDocument::Before);
        within("claim the database for its context", limits::BATCH_TIMEOUT, inserting).await
    }

    fn check(&self, found: &Document) -> Result<(), SchemaError> {
        let version = found.get("layoutVersion").and_then(integral);
        let is_ours = found.get_str("contextName").is_ok_and(|name| name == self.context);
        if is_ours && version == Some(LAYOUT_VERSION.into()) {
            return Ok(());
        }
        let text = |field| match found.get(field) {
            Some(Bson::String(text)) => text.clone(),
            Some(other) => other.clone().into_relaxed_extjson().to_string(),
            None => "none".to_owned(),
        };
        Err(SchemaError::Foreign(Box::new(ForeignContext {
            database: self.database.clone(),
            found: text("contextName"),
            version: text("layoutVersion"),
            wanted: self.context.clone(),
            known: LAYOUT_VERSION,
            elsewhere: self.elsewhere.clone(),
        })))
    }
}
