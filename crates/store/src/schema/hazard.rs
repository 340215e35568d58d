//! Finds settings of collections by which MongoDB removes, hides or refuses documents of Postrider.
//!
//! Others may add indexes and validators for purposes of their own. Most are harmless. A TTL index
//! that matches documents which must stay is not: it deletes them, and nothing else reports it.

use std::fmt;

use bson::{Bson, Document, doc};
use mongodb::Database;

use crate::StoreError;
use crate::schema::compare::{EXPIRE, PARTIAL, is_rival, name_of};
use crate::schema::existing::{ExistingSchema, list, list_indexes};
use crate::schema::index::{self, Expiry, Index, PartialFilter};
use crate::schema::layout::{CollectionLayout, Layout, Protection};

/// Existing documents with which a validator is tried.
const MAX_TRIED: i64 = 100;

/// A setting of a collection by which documents are lost. `Display` names it, with the remedy.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Hazard {
    /// The object: a collection, or an index of one.
    pub subject: String,
    /// What it does: a verb phrase.
    pub detail: String,
    /// What an operator must do.
    pub remedy: String,
}

impl fmt::Display for Hazard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}; {}", self.subject, self.detail, self.remedy)
    }
}

/// The result of a search for hazards.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hazards {
    /// The hazards.
    pub found: Vec<Hazard>,
    /// What the user may not list, and so is unknown: collections, or a database.
    pub unlisted: Vec<String>,
}

impl Hazards {
    /// Adds those of other collections.
    pub fn extend(&mut self, others: Self) {
        self.found.extend(others.found);
        self.unlisted.extend(others.unlisted);
    }

    /// Describes what is unknown; `None` if nothing is.
    pub fn note(&self) -> Option<String> {
        let unlisted = self.unlisted.join(", ");
        (!unlisted.is_empty()).then(|| {
            format!(
                "whether an index deletes documents is unknown, since the user has no privilege to \
                 list the indexes of {unlisted}"
            )
        })
    }
}

impl Layout {
    /// Searches the existing collections for hazards. Changes nothing.
    ///
    /// # Errors
    ///
    /// [`StoreError`], except for missing privileges, which the result names.
    pub async fn hazards(&self) -> Result<Hazards, StoreError> {
        let mut hazards = Hazards::default();
        let existing = match ExistingSchema::collections(self).await {
            Err(error) if error.is_refusal() => {
                hazards.unlisted.push(format!("database {}", self.database.name()));
                return Ok(hazards);
            }
            existing => existing?,
        };
        for part in &self.parts {
            let Some(entry) = existing.get(part.name.as_str()) else { continue };
            if let Some(wrong) = ExistingSchema::unusable(entry) {
                hazards.found.push(Hazard {
                    subject: format!("collection {}", part.name),
                    detail: format!("is {wrong}, must be a plain collection"),
                    remedy: format!("rename or drop it, or set another {}", self.elsewhere),
                });
                continue;
            }
            match list_indexes(&self.database, &part.name).await {
                Ok(indexes) => {
                    let judged = indexes.iter().filter_map(|index| judge(part, index));
                    hazards.found.extend(judged);
                }
                Err(error) if error.is_refusal() => hazards.unlisted.push(part.name.clone()),
                Err(error) => return Err(error),
            }
            hazards.found.extend(refusing_validator(&self.database, part, entry).await?);
        }
        Ok(hazards)
    }
}

/// Judges one entry of `listIndexes`.
fn judge(part: &CollectionLayout, entry: &Document) -> Option<Hazard> {
    let key = entry.get_document("key").ok()?;
    let field = key.keys().next()?;
    let drop =
        format!("drop it with db.getCollection({:?}).dropIndex({:?})", part.name, name_of(entry));
    let hazard = |detail: String, remedy: String| Hazard {
        subject: format!("index {} of {}", name_of(entry), part.name),
        detail,
        remedy,
    };
    if let Some(expiry) = entry.get(EXPIRE)
        && !may_expire(part, key, entry)
    {
        let seconds = expiry.clone().into_relaxed_extjson();
        let deletes = format!("deletes documents {seconds} s after {field}");
        return Some(match part.protection {
            Protection::All => hazard(deletes, drop),
            Protection::Except { removable, .. } => {
                let filter = removable.filter();
                hazard(
                    format!("{deletes}, even if they do not match {filter}"),
                    format!("{drop}, or create it with partialFilterExpression {filter}"),
                )
            }
        });
    }
    let is_unique =
        ["unique", "prepareUnique"].iter().any(|it| entry.get_bool(it).unwrap_or(false));
    if is_unique
        && !is_expected(part, entry)
        && let Some(which) = changed_field(part, key, entry)
    {
        let detail = format!(
            "is unique, and depends on {which}, which Postrider changes: MongoDB may refuse the change"
        );
        return Some(hazard(detail, drop));
    }
    None
}

/// Returns whether a TTL index deletes only what may be deleted.
fn may_expire(part: &CollectionLayout, key: &Document, entry: &Document) -> bool {
    let is_ours = |index: &&Index| index.expiry == Some(Expiry::AtDate) && index.key() == *key;
    let filter = entry.get_document(PARTIAL).ok();
    match part.protection {
        // Later than at the date is harmless.
        Protection::All => part.indexes.iter().any(is_ours),
        Protection::Except { removable, .. } => {
            filter.is_some_and(|filter| requires(filter, removable))
        }
    }
}

/// Returns whether a partial filter matches only documents that `needed` matches. (MongoDB permits
/// `$and`, `$or`, `$in` and comparisons in them.)
fn requires(filter: &Document, needed: PartialFilter) -> bool {
    let needed_filter = needed.filter();
    let Some((needed_field, value)) = needed_filter.iter().next() else { return false };
    let branches = |list: &Bson| -> Vec<bool> {
        let list = list.as_array().into_iter().flatten().filter_map(Bson::as_document);
        list.map(|branch| requires(branch, needed)).collect()
    };
    filter.iter().any(|(field, condition)| match (field.as_str(), condition) {
        ("$and", list) => branches(list).contains(&true),
        ("$or", list) => {
            let branches = branches(list);
            !branches.is_empty() && !branches.contains(&false)
        }
        (field, _) if field != needed_field => false,
        (_, Bson::Document(operators)) => operators.iter().any(|(operator, operand)| {
            let list = operand.as_array();
            match operator.as_str() {
                "$eq" => operand == value,
                "$in" => list.is_some_and(|list| list.iter().all(|one| one == value)),
                _ => false,
            }
        }),
        (_, found) => found == value,
    })
}

/// Returns whether an index, or its rival, has the unique fields of one of ours.
fn is_expected(part: &CollectionLayout, entry: &Document) -> bool {
    let unique = part.indexes.iter().filter(|index| index.unique);
    unique
        .flat_map(|index| [Some(index.keys), index.rival.map(|rival| rival.keys)])
        .flatten()
        .any(|keys| is_rival(entry, &index::ConflictingIndex { keys, setting: "" }))
}

/// Returns the first field of an index, or of its filter, that Postrider changes in existing documents.
fn changed_field(part: &CollectionLayout, key: &Document, entry: &Document) -> Option<String> {
    let filter = entry.get_document(PARTIAL).ok();
    let of_filter = filter.into_iter().flat_map(fields_of);
    let mut fields = key.keys().cloned().chain(of_filter);
    match part.protection {
        // An index with all fields of a unique one of ours, or with the id, refuses nothing more.
        Protection::All => {
            let unique = part.indexes.iter().filter(|it| it.unique && it.partial.is_none());
            let mut keys = unique.map(|ours| ours.key());
            let has_all = |ours: Document| ours.keys().all(|field| key.contains_key(field));
            let is_implied = key.contains_key("_id") || keys.any(has_all);
            fields.next().filter(|_| !is_implied)
        }
        Protection::Except { changed, .. } => {
            fields.find(|field| changed.contains(&field.split('.').next().unwrap_or_default()))
        }
    }
}

fn fields_of(filter: &Document) -> Vec<String> {
    let fields = filter.iter().flat_map(|(field, condition)| match condition {
        Bson::Array(list) if field.starts_with('$') => {
            list.iter().filter_map(Bson::as_document).flat_map(fields_of).collect()
        }
        _ => vec![field.clone()],
    });
    fields.collect()
}

/// Tries the changes of Postrider on documents that the validator accepts. MongoDB itself evaluates
/// the validator, and nothing is written.
async fn refusing_validator(
    database: &Database,
    part: &CollectionLayout,
    entry: &Document,
) -> Result<Option<Hazard>, StoreError> {
    let Protection::Except { example, changes, .. } = part.protection else { return Ok(None) };
    let Ok(options) = entry.get_document("options") else { return Ok(None) };
    let is = |option, value| options.get_str(option).is_ok_and(|it| it == value);
    let Ok(validator) = options.get_document("validator") else { return Ok(None) };
    let is_ours = part.options.get_document("validator").is_ok_and(|ours| ours == validator);
    if is_ours || is("validationAction", "warn") || is("validationLevel", "off") {
        return Ok(None);
    }
    let existing = doc! { "aggregate": &part.name };
    let made_up = doc! { "aggregate": 1 };
    for (mut command, source) in [
        (existing, doc! { "$limit": MAX_TRIED }),
        // MongoDB 5.1 or newer.
        (made_up, doc! { "$documents": [{ "$literal": example() }] }),
    ] {
        for (what, change) in changes() {
            let change: Document = change
                .into_iter()
                .map(|(field, value)| (field, Bson::from(doc! { "$literal": value })))
                .collect();
            command.insert(
                "pipeline",
                vec![
                    source.clone(),
                    doc! { "$match": validator },
                    doc! { "$limit": 1 },
                    doc! { "$set": change },
                    doc! { "$match": { "$nor": [validator] } },
                    doc! { "$project": { "_id": 1 } },
                ],
            );
            match list(database, "try a validator", command.clone()).await {
                Ok(refused) if refused.is_empty() => {}
                Ok(_) => {
                    return Ok(Some(Hazard {
                        subject: format!("collection {}", part.name),
                        detail: format!("has a validator that refuses a record when it {what}"),
                        remedy: format!(
                            "change the validator with db.runCommand({{ collMod: {:?}, validator: … }}) so \
                             that it permits the fields of `postrider schema print`",
                            part.name
                        ),
                    }));
                }
                // It is unknown then: no privilege, or an older version.
                Err(StoreError::Driver { .. }) => break,
                Err(error) => return Err(error),
            }
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use bson::doc;

    use super::*;
    use crate::schema::index::IndexKey::Ascending;

    const DONE: PartialFilter = PartialFilter::Status("done");

    const OURS: [Index; 2] = [
        Index {
            name: "done_ttl_idx",
            keys: &[Ascending("doneAt")],
            partial: Some(DONE),
            expiry: Some(Expiry::Retention),
            ..Index::PLAIN
        },
        Index { name: "dedup_idx", keys: &[Ascending("dedupKey")], unique: true, ..Index::PLAIN },
    ];

    const OF_KEYS: Index = Index {
        name: "ttlAt_1",
        keys: &[Ascending("ttlAt")],
        expiry: Some(Expiry::AtDate),
        ..Index::PLAIN
    };

    fn records() -> CollectionLayout {
        CollectionLayout {
            name: "outbox_records".into(),
            options: Document::new(),
            indexes: OURS.iter().collect(),
            protection: Protection::Except {
                removable: DONE,
                changed: &["status", "leaseId"],
                example: Document::new,
                changes: Vec::new,
            },
        }
    }

    fn keys() -> CollectionLayout {
        CollectionLayout {
            name: "prepare_names".into(),
            options: Document::new(),
            indexes: vec![&OF_KEYS],
            protection: Protection::All,
        }
    }

    fn entry(key: Document, options: Document) -> Document {
        let mut entry = doc! { "v": 2, "key": key, "name": "foreign" };
        entry.extend(options);
        entry
    }

    #[test]
    fn ttl_index_is_harmless_if_its_filter_requires_done() {
        let ttl = |filter: Option<Document>| {
            let mut options = doc! { "expireAfterSeconds": 60 };
            filter.map(|filter| options.insert("partialFilterExpression", filter));
            judge(&records(), &entry(doc! { "createdAt": 1 }, options))
        };
        for harmless in [
            doc! { "status": "done" },
            doc! { "status": { "$eq": "done" }, "type": "a" },
            doc! { "status": { "$in": ["done"] } },
            doc! { "$and": [{ "type": "a" }, { "status": "done" }] },
            doc! { "$or": [{ "status": "done", "type": "a" }, { "status": "done", "type": "b" }] },
        ] {
            assert_eq!(ttl(Some(harmless.clone())), None, "{harmless}");
        }
        for deadly in [
            None,
            Some(doc! { "status": "pending" }),
            Some(doc! { "status": "dead" }),
            Some(doc! { "status": { "$in": ["done", "dead"] } }),
            Some(doc! { "status": { "$gte": "done" } }),
            Some(doc! { "$or": [{ "status": "done" }, { "type": "a" }] }),
            Some(doc! { "type": "done" }),
            Some(doc! { "doneAt": { "$exists": true } }),
        ] {
            let found = ttl(deadly.clone()).unwrap_or_else(|| panic!("{deadly:?}"));

            assert_eq!(found.subject, "index foreign of outbox_records");
            assert!(found.detail.starts_with("deletes documents 60 s after createdAt"), "{found}");
            assert!(found.remedy.contains(r#"dropIndex("foreign")"#), "{found}");
        }
    }

    #[test]
    fn any_other_ttl_index_is_deadly_where_nothing_may_expire() {
        let ttl = |field: &str, seconds: i32| {
            judge(&keys(), &entry(doc! { field: 1 }, doc! { "expireAfterSeconds": seconds }))
        };

        assert_eq!(ttl("ttlAt", 0), None);
        assert_eq!(ttl("ttlAt", 10), None, "late, as MongoDB is anyway");
        assert!(ttl("createTime", 0).is_some());
        assert_eq!(judge(&keys(), &entry(doc! { "createTime": 1 }, Document::new())), None);
    }

    #[test]
    fn unique_index_on_what_postrider_changes_is_named() {
        let unique = |key: Document, filter: Document| {
            let options = doc! { "unique": true, "partialFilterExpression": filter };
            judge(&records(), &entry(key, options))
        };

        let own = unique(doc! { "payload.order": 1 }, doc! { "type": "a" });
        let expected = unique(doc! { "dedupKey": 1 }, doc! { "dedupKey": { "$type": "string" } });
        let partial = unique(doc! { "key": 1 }, doc! { "$and": [{ "status": "pending" }] });
        let leased = unique(doc! { "leaseId": 1 }, Document::new());

        assert_eq!((own, expected), (None, None));
        assert!(partial.is_some_and(|it| it.detail.contains("depends on status")));
        assert!(leased.is_some_and(|it| it.detail.contains("depends on leaseId")));
    }
}
