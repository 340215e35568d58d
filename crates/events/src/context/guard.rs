//! The guard of a database: the one document that says whose it is.
//!
//! `wow_database_metadata` holds `{_id: "boundedContext", contextName, layoutVersion}`, as the Wow
//! framework writes it. Two contexts in one database would share aggregates of the same name, and
//! neither could tell.

use bson::{Bson, Document, doc};
use mongodb::Collection;
use mongodb::options::ReturnDocument;
use postrider_store::schema::{Difference, Foreign, SchemaError};
use postrider_store::{DUPLICATE_KEY, StoreError, limits, within};

/// Its collection.
pub const COLLECTION: &str = "wow_database_metadata";

/// Its document.
const ID: &str = "boundedContext";

/// How the collections of a context are laid out.
const LAYOUT_VERSION: i32 = 1;

/// One database, for one context.
pub(super) struct Guard {
    /// The database's name.
    pub(super) database: String,
    pub(super) metadata: Collection<Document>,
    /// Who we are.
    pub(super) context: String,
    /// The settings by which the database would be another.
    pub(super) elsewhere: String,
}

impl Guard {
    /// Whether the database is still to be claimed: the difference that a claim would end.
    ///
    /// # Errors
    ///
    /// Those of the store, and that it is another's.
    pub(super) async fn verify(&self) -> Result<Option<Difference>, SchemaError> {
        let finding = self.metadata.find_one(doc! { "_id": ID }).into_future();
        let found = within("ask whose database it is", limits::BATCH, finding).await?;
        if let Some(found) = found {
            self.judge(&found)?;
            return Ok(None);
        }
        Ok(Some(Difference {
            subject: format!("database {}", self.database),
            found: "no context's".into(),
            wanted: format!("that of {:?}", self.context),
            made_by: Some("insert"),
        }))
    }

    /// Makes it ours if it is nobody's, and tells it by its name. Of several contexts that come at
    /// once one wins.
    ///
    /// # Errors
    ///
    /// Those of the store, and that it is another's.
    pub(super) async fn claim(&self) -> Result<Option<String>, SchemaError> {
        if self.verify().await?.is_none() {
            return Ok(None);
        }
        let found = match self.insert().await {
            // Two claimed it in one moment: by now there is something to be found, and nothing to
            // be inserted.
            Err(error) if error.code() == Some(DUPLICATE_KEY) => self.insert().await?,
            other => other?,
        };
        match found {
            Some(found) => self.judge(&found).map(|()| None),
            None => Ok(Some(self.database.clone())),
        }
    }

    /// What was there before; it is of a majority now, as is what was inserted.
    async fn insert(&self) -> Result<Option<Document>, StoreError> {
        let ours = doc! { "contextName": &self.context, "layoutVersion": LAYOUT_VERSION };
        let inserting = self
            .metadata
            .find_one_and_update(doc! { "_id": ID }, doc! { "$setOnInsert": ours })
            .upsert(true)
            .return_document(ReturnDocument::Before);
        within("claim the database for its context", limits::BATCH, inserting.into_future()).await
    }

    fn judge(&self, found: &Document) -> Result<(), SchemaError> {
        let version = match found.get("layoutVersion") {
            // As a shell writes it.
            Some(Bson::Double(version)) if *version == f64::from(LAYOUT_VERSION) => {
                Some(i64::from(LAYOUT_VERSION))
            }
            Some(Bson::Int32(version)) => Some(i64::from(*version)),
            Some(Bson::Int64(version)) => Some(*version),
            _ => None,
        };
        let is_ours = found.get_str("contextName").is_ok_and(|name| name == self.context);
        if is_ours && version == Some(i64::from(LAYOUT_VERSION)) {
            return Ok(());
        }
        let text = |field| match found.get(field) {
            Some(Bson::String(text)) => text.clone(),
            Some(other) => other.clone().into_relaxed_extjson().to_string(),
            None => "none".to_owned(),
        };
        Err(SchemaError::Foreign(Box::new(Foreign {
            database: self.database.clone(),
            found: text("contextName"),
            version: text("layoutVersion"),
            wanted: self.context.clone(),
            known: LAYOUT_VERSION,
            elsewhere: self.elsewhere.clone(),
        })))
    }
}
