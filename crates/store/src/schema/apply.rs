//! Creates missing collections and indexes.

use bson::{Bson, Document, doc};
use mongodb::error::ErrorKind;

use crate::connect::primary;
use crate::schema::compare::{IndexComparison, IndexConflict, compare};
use crate::schema::error::SchemaError;
use crate::schema::existing::ExistingSchema;
use crate::schema::index::{ConflictingIndex, Index};
use crate::schema::layout::{CollectionLayout, Layout};
use crate::{DUPLICATE_KEY, StoreError, driver_text, limits, within};

/// NamespaceExists: the collection was created meanwhile.
const COLLECTION_EXISTS: i32 = 48;

/// Codes of a conflict with existing indexes or documents: CannotCreateIndex, IndexAlreadyExists,
/// IndexOptionsConflict, IndexKeySpecsConflict, DuplicateKey.
const CONFLICT_CODES: [i32; 5] = [67, 68, 85, 86, DUPLICATE_KEY];

/// Changes that were made; empty if nothing was missing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Applied {
    /// Collections created, by their full names.
    pub collections: Vec<String>,
    /// Indexes created (by this instance or, at the same time, by another one).
    pub indexes: Vec<&'static str>,
    /// The adjusted retention, in seconds.
    pub expire_after_seconds: Option<i32>,
    /// The database that had no context, and now belongs to this one.
    pub claimed: Option<String>,
}

impl Layout {
    /// Creates what is missing, and adjusts the retention.
    ///
    /// Safe to repeat after a crash, and to run in several instances at once. Nothing is dropped,
    /// and an existing collection keeps its options.
    ///
    /// # Errors
    ///
    /// [`SchemaError::Conflict`] if an index has another definition or name,
    /// [`SchemaError::Unusable`] if the name of a collection belongs to a view or the like; other
    /// missing parts may have been created. Otherwise those of the store.
    pub async fn apply(&self) -> Result<Applied, SchemaError> {
        let mut applied = Applied::default();
        self.create_collections(&mut applied).await?;
        match self.complete_indexes(&mut applied).await {
            // An instance with other settings may have created indexes at the same time: they are
            // compared again.
            Err(SchemaError::Conflict { .. }) => self.complete_indexes(&mut applied).await?,
            other => other?,
        }
        Ok(applied)
    }

    async fn create_collections(&self, applied: &mut Applied) -> Result<(), SchemaError> {
        let mut found = ExistingSchema::look(self).await?;
        for CollectionLayout { name, options, .. } in &self.parts {
            if found.has(name) {
                continue;
            }
            let mut command = doc! { "create": name };
            command.extend(options.clone());
            match self.run("create a collection", command).await {
                Ok(()) => applied.collections.push(name.clone()),
                Err(error) if error.code() == Some(COLLECTION_EXISTS) => {
                    found = ExistingSchema::look(self).await?;
                }
                Err(error) => return Err(error.into()),
            }
        }
        for CollectionLayout { name, .. } in &self.parts {
            if let Some(wrong) = found.what_is_wrong_with(name) {
                let (collection, elsewhere) = (name.clone(), self.elsewhere);
                return Err(SchemaError::Unusable { collection, found: wrong, elsewhere });
            }
        }
        Ok(())
    }

    async fn complete_indexes(&self, applied: &mut Applied) -> Result<(), SchemaError> {
        let found = ExistingSchema::look(self).await?;
        for part in &self.parts {
            let missing = self.complete(part, found.indexes(&part.name), applied).await?;
            // An instance with the other setting may have created the rival since the listing.
            if missing.iter().any(|index| index.rival.is_some()) {
                let found = ExistingSchema::look(self).await?;
                for index in missing {
                    compare(index, found.indexes(&part.name), self.retention)
                        .refuse(index, &part.name)?;
                }
            }
        }
        Ok(())
    }

    /// Creates the missing ones and returns which they were.
    async fn complete(
        &self,
        part: &CollectionLayout,
        found: &[Document],
        applied: &mut Applied,
    ) -> Result<Vec<&'static Index>, SchemaError> {
        let mut missing = Vec::new();
        let mut adjust = None;
        for index in part.indexes.iter().copied() {
            match compare(index, found, self.retention) {
                IndexComparison::Same => {}
                IndexComparison::Missing => missing.push(index),
                IndexComparison::Expiry { .. } => adjust = Some(index),
                taken => taken.refuse(index, &part.name)?,
            }
        }
        if !missing.is_empty() {
            self.create_indexes(part, &missing).await?;
            applied.indexes.extend(missing.iter().map(|index| index.name));
        }
        if let Some(index) = adjust {
            self.run(
                "adjust the retention",
                doc! {
                    "collMod": &part.name,
                    "index": { "name": index.name, "expireAfterSeconds": self.retention },
                },
            )
            .await?;
            applied.expire_after_seconds = Some(self.retention);
        }
        Ok(missing)
    }

    /// Creates all in one scan of the collection; after a rejection one by one, to find the cause.
    async fn create_indexes(
        &self,
        part: &CollectionLayout,
        missing: &[&'static Index],
    ) -> Result<(), SchemaError> {
        match self.create(part, missing).await {
            Err(error) if is_refusal(&error) => {}
            other => return Ok(other?),
        }
        for index in missing {
            match self.create(part, &[index]).await {
                Err(error) if is_refusal(&error) => {
                    return Err(refused(index, &part.name, &error));
                }
                other => other?,
            }
        }
        Ok(())
    }

    async fn create(
        &self,
        part: &CollectionLayout,
        indexes: &[&'static Index],
    ) -> Result<(), StoreError> {
        let definitions: Vec<Bson> =
            indexes.iter().map(|index| index.definition(self.retention).into()).collect();
        let command = doc! { "createIndexes": &part.name, "indexes": definitions };
        self.run("create the indexes", command).await
    }

    async fn run(&self, action: &'static str, mut command: Document) -> Result<(), StoreError> {
        command.insert("writeConcern", doc! { "w": "majority" });
        let running = self.database.run_command(command).selection_criteria(primary());
        within(action, limits::SCHEMA_TIMEOUT, running.into_future()).await.map(drop)
    }
}

impl IndexComparison {
    /// Converts what conflicts with an index into an error.
    fn refuse(self, index: &Index, collection: &str) -> Result<(), SchemaError> {
        let drop = |by: &str| {
            format!(
                "if no application uses the existing index, drop it with \
                 db.getCollection({collection:?}).dropIndex({by:?}) and apply the schema again"
            )
        };
        let (detail, remedy) = match self {
            Self::Same | Self::Missing | Self::Expiry { .. } => return Ok(()),
            Self::IndexConflict(IndexConflict { by, found, wanted }) => {
                (format!("the existing index is {found}, must be {wanted}"), drop(&by))
            }
            Self::Excluded { by, rival: ConflictingIndex { setting, .. } } => (
                format!("it conflicts with the unique index {by}"),
                format!("set {setting}, which created that index; or, {}", drop(&by)),
            ),
        };
        Err(SchemaError::Conflict {
            index: index.name.into(),
            collection: collection.into(),
            detail,
            remedy,
        })
    }
}

/// Returns the error of a conflict that the listing did not contain.
fn refused(index: &Index, collection: &str, error: &StoreError) -> SchemaError {
    let words = match error {
        StoreError::Driver { source, .. } => match source.kind.as_ref() {
            ErrorKind::Command(command) => command.message.clone(),
            _ => driver_text(source),
        },
        other => other.to_string(),
    };
    let (detail, remedy) = if error.code() == Some(DUPLICATE_KEY) {
        let fields = index.fields();
        (
            format!("existing documents have the same {fields}: {words}"),
            format!(
                "delete all but one of them, or change their {fields}, and apply the schema \
                 again"
            ),
        )
    } else {
        (
            format!("MongoDB rejects it: {words}"),
            format!(
                "find the conflicting index with db.getCollection({collection:?}).getIndexes(), \
                 drop it if no application uses it, and apply the schema again"
            ),
        )
    };
    SchemaError::Conflict {
        index: index.name.into(),
        collection: collection.into(),
        detail,
        remedy,
    }
}

fn is_refusal(error: &StoreError) -> bool {
    error.code().is_some_and(|code| CONFLICT_CODES.contains(&code))
}
