//! Creating what is missing.

use bson::{Bson, Document, doc};

use crate::outbox::collections::{Collections, names};
use crate::schema::error::SchemaError;
use crate::schema::found::Found;
use crate::schema::index::{self, Index};
use crate::schema::judge::{Taken, Verdict, judge};
use crate::schema::{SchemaOptions, validator};
use crate::store::connect::primary;
use crate::store::{StoreError, limits, within};

/// NamespaceExists: somebody created the collection first.
const COLLECTION_EXISTS: i32 = 48;

/// DuplicateKey: two records that are there already clash.
const DUPLICATE_KEY: i32 = 11000;

/// What the server answers where an index can't be had beside what is there:
/// CannotCreateIndex, IndexAlreadyExists, IndexOptionsConflict, IndexKeySpecsConflict, DuplicateKey.
const REFUSALS: [i32; 5] = [67, 68, 85, 86, DUPLICATE_KEY];

/// What was done; all of it empty where nothing was missing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Applied {
    /// Collections created, by their full names.
    pub collections: Vec<String>,
    /// Indexes created (by this or, at the same time, by another instance).
    pub indexes: Vec<&'static str>,
    /// The seconds of the retention that was adjusted in place.
    pub expire_after_seconds: Option<i32>,
}

/// Creates what is missing of the schema, and adjusts the retention.
///
/// Safe to repeat, after a crash in its midst too, and to run in several instances at
/// once. Where their retentions differ, the last one stays. Nothing is ever dropped, and
/// a collection that exists keeps its validator or lack of one.
///
/// # Errors
///
/// [`SchemaError::Conflict`] where an index has another definition or another name,
/// [`SchemaError::Unusable`] where a collection's name is a view's or the like; what
/// was missing beside it may have been created. Else those of the store.
pub async fn apply(
    collections: &Collections,
    options: &SchemaOptions,
) -> Result<Applied, SchemaError> {
    let work = Work { collections, options };
    let mut applied = Applied::default();
    work.create_collections(&mut applied).await?;
    match work.complete_indexes(&mut applied).await {
        // Another instance with another retention may have been at it in the same moment:
        // what it made is judged once more.
        Err(SchemaError::Conflict { .. }) => work.complete_indexes(&mut applied).await?,
        other => other?,
    }
    Ok(applied)
}

struct Work<'a> {
    collections: &'a Collections,
    options: &'a SchemaOptions,
}

impl Work<'_> {
    async fn create_collections(&self, applied: &mut Applied) -> Result<(), SchemaError> {
        let mut found = Found::look(self.collections).await?;
        for base in names::ALL {
            let name = self.collections.name(base);
            if found.has(&name) {
                continue;
            }
            let mut command = doc! { "create": &name };
            if base == names::RECORDS {
                command.extend(validator::collection_options(self.options.validator));
            }
            match self.run("create a collection", command).await {
                Ok(()) => applied.collections.push(name),
                Err(error) if error.code() == Some(COLLECTION_EXISTS) => {
                    found = Found::look(self.collections).await?;
                }
                Err(error) => return Err(error.into()),
            }
        }
        for base in names::ALL {
            let collection = self.collections.name(base);
            if let Some(found) = found.what_is_wrong_with(&collection) {
                return Err(SchemaError::Unusable { collection, found });
            }
        }
        Ok(())
    }

    async fn complete_indexes(&self, applied: &mut Applied) -> Result<(), SchemaError> {
        let found = Found::look(self.collections).await?;
        let expire_after_seconds = self.options.expire_after_seconds();
        let mut missing = Vec::new();
        let mut adjust = None;
        for index in &index::ALL {
            match judge(index, &found.indexes, expire_after_seconds) {
                Verdict::Same => {}
                Verdict::Missing => missing.push(index),
                Verdict::Expiry { .. } => adjust = Some(index),
                Verdict::Taken(taken) => return Err(self.conflict(index, &taken)),
            }
        }
        if !missing.is_empty() {
            self.create_indexes(&missing).await?;
            applied.indexes = missing.iter().map(|index| index.name).collect();
        }
        if let Some(index) = adjust {
            self.run(
                "adjust the retention",
                doc! {
                    "collMod": self.records(),
                    "index": { "name": index.name, "expireAfterSeconds": expire_after_seconds },
                },
            )
            .await?;
            applied.expire_after_seconds = Some(expire_after_seconds);
        }
        Ok(())
    }

    /// All in one scan of the collection; only after a refusal one by one, to learn which.
    async fn create_indexes(&self, missing: &[&Index]) -> Result<(), SchemaError> {
        match self.create(missing).await {
            Err(error) if is_refusal(&error) => {}
            other => return Ok(other?),
        }
        for index in missing {
            match self.create(&[index]).await {
                Err(error) if is_refusal(&error) => return Err(self.refused(index, &error)),
                other => other?,
            }
        }
        Ok(())
    }

    async fn create(&self, indexes: &[&Index]) -> Result<(), StoreError> {
        let seconds = self.options.expire_after_seconds();
        let definitions: Vec<Bson> =
            indexes.iter().map(|index| index.definition(seconds).into()).collect();
        let command = doc! { "createIndexes": self.records(), "indexes": definitions };
        self.run("create the indexes", command).await
    }

    async fn run(&self, action: &'static str, mut command: Document) -> Result<(), StoreError> {
        command.insert("writeConcern", doc! { "w": "majority" });
        let database = self.collections.database();
        let running = database.run_command(command).selection_criteria(primary());
        within(action, limits::SCHEMA, running.into_future()).await.map(drop)
    }

    fn records(&self) -> String {
        self.collections.name(names::RECORDS)
    }

    fn conflict(&self, index: &Index, taken: &Taken) -> SchemaError {
        let collection = self.records();
        let remedy = format!(
            "if nobody needs the one that is there, drop it and apply the schema again: \
             db.getCollection({collection:?}).dropIndex({:?})",
            taken.by
        );
        let detail = format!("it is {}, should be {}", taken.found, taken.wanted);
        SchemaError::Conflict { index: index.name.into(), collection, detail, remedy }
    }

    /// The server saw a conflict that the listing had not shown.
    fn refused(&self, index: &Index, error: &StoreError) -> SchemaError {
        let collection = self.records();
        let words = match error {
            StoreError::Driver { source, .. } => source.to_string(),
            other => other.to_string(),
        };
        let (detail, remedy) = if error.code() == Some(DUPLICATE_KEY) {
            let fields = index.keys.join(", ");
            (
                format!("records that are there share their {fields}: {words}"),
                format!("delete all but one of them, or unset their {fields}, and apply again"),
            )
        } else {
            (
                format!("MongoDB refuses it: {words}"),
                format!(
                    "look at db.getCollection({collection:?}).getIndexes(), drop what is in the \
                     way if nobody needs it, and apply the schema again"
                ),
            )
        };
        SchemaError::Conflict { index: index.name.into(), collection, detail, remedy }
    }
}

fn is_refusal(error: &StoreError) -> bool {
    error.code().is_some_and(|code| REFUSALS.contains(&code))
}
