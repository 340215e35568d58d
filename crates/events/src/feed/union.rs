//! Reads of several event streams at one moment, with few commands.

use bson::raw::{RawDocument, RawDocumentBuf};
use bson::{Bson, Document, Timestamp, doc};
use futures_util::{StreamExt, TryStreamExt, stream};
use mongodb::Database;
use postrider_store::connect::primary;
use postrider_store::{StoreError, limits, within};

use crate::context::CollectionKind;
use crate::integer::integral;
use crate::names::AggregateName;
use crate::schema::POSITION as INDEX;

/// The most names of one command. MongoDB needs 0.1 ms for each; beyond this number it needs more.
const MAX_NAMES: usize = 64;

/// The most names that are not worth a second command.
const MIN_NAMES: usize = 8;

/// The commands of a page that run at a time.
const MAX_CONCURRENT_READS: usize = 4;

/// The types of a position.
pub(super) const INTEGERS: [&str; 2] = ["int", "long"];

const ACTION: &str = "read the feed";

/// Reads at one moment.
pub(super) struct StreamReads {
    database: Database,
    at: Timestamp,
}

impl StreamReads {
    pub(super) fn new(database: Database, at: Timestamp) -> Self {
        Self { database, at }
    }

    /// Runs `of_name` for each of these names, and `together` on the results of one part: a result for each
    /// part.
    pub(super) async fn union(
        &self,
        parts: &[&[&AggregateName]],
        of_name: impl Fn(&AggregateName) -> Vec<Document>,
        together: &[Document],
    ) -> Result<Vec<Vec<RawDocumentBuf>>, StoreError> {
        let commands: Vec<_> =
            parts.iter().map(|names| self.part(names, &of_name, together)).collect();
        stream::iter(commands).buffered(MAX_CONCURRENT_READS).try_collect().await
    }

    async fn part(
        &self,
        names: &[&AggregateName],
        of_name: &impl Fn(&AggregateName) -> Vec<Document>,
        together: &[Document],
    ) -> Result<Vec<RawDocumentBuf>, StoreError> {
        let Some((first, others)) = names.split_first() else { return Ok(Vec::new()) };
        let mut pipeline = of_name(first);
        pipeline.extend(others.iter().map(|name| {
            doc! { "$unionWith": { "coll": collection(name), "pipeline": of_name(name) } }
        }));
        if !others.is_empty() {
            pipeline.extend_from_slice(together);
        }
        let first = collection(first);
        let command = doc! {
            "aggregate": &first,
            "pipeline": pipeline,
            // (Each pipeline has limits of its own.)
            "cursor": { "batchSize": i32::MAX },
            "hint": INDEX.name,
            "readConcern": { "level": "snapshot", "atClusterTime": self.at },
        };
        let reading = async {
            let running = self.database.run_cursor_command(command);
            let mut cursor = running.selection_criteria(primary()).batch().await?;
            let mut found = Vec::new();
            while let Some(batch) = cursor.next().await.transpose()? {
                for document in batch.doc_slices()? {
                    found.extend(document?.as_document().map(ToOwned::to_owned));
                }
            }
            Ok(found)
        };
        let found = within(ACTION, limits::BATCH_TIMEOUT, reading).await;
        found.map_err(|error: StoreError| error.of_index(&first, INDEX.name))
    }
}

/// Divides names into parts that are read by one command each.
pub(super) fn parts<'a, 'n>(names: &'a [&'n AggregateName]) -> Vec<&'a [&'n AggregateName]> {
    let size = names.len().div_ceil(MAX_CONCURRENT_READS).clamp(MIN_NAMES, MAX_NAMES);
    names.chunks(size).collect()
}

fn collection(name: &AggregateName) -> String {
    CollectionKind::Events.collection(name.as_str())
}

/// The integer that this field of a document is.
pub(super) fn number(found: &RawDocument, field: &str) -> Option<i64> {
    let value = found.get(field).ok().flatten()?;
    integral(&Bson::try_from(value).ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_names_are_one_part_and_many_run_at_a_time() {
        let names: Vec<AggregateName> =
            (0..600).map(|number| AggregateName::new(&format!("n{number}")).unwrap()).collect();
        let names: Vec<&AggregateName> = names.iter().collect();
        for (count, sizes) in [
            (0, vec![]),
            (1, vec![1]),
            (8, vec![8]),
            (9, vec![8, 1]),
            (100, vec![25; 4]),
            (300, vec![64, 64, 64, 64, 44]),
        ] {
            let found: Vec<usize> = parts(&names[..count]).iter().map(|part| part.len()).collect();
            assert_eq!(found, sizes, "{count}");
        }
    }
}
