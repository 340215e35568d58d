//! Compares an expected index with the existing ones.

use std::collections::{BTreeMap, BTreeSet};

use bson::{Bson, Document};

use crate::schema::index::{self, ConflictingIndex, Expiry, Index};

pub(super) const EXPIRE: &str = "expireAfterSeconds";
pub(super) const PARTIAL: &str = "partialFilterExpression";

/// Options by which MongoDB distinguishes indexes, in addition to the name: it permits one index
/// per combination.
const SIGNATURE: [&str; 5] = ["key", PARTIAL, "unique", "sparse", "collation"];

/// Fields of the listing that are not part of the definition.
const IGNORED: [&str; 4] = ["v", "ns", "name", "background"];

/// Result of the comparison.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum IndexComparison {
    /// The index exists.
    Same,
    /// The index is missing, and nothing conflicts with it.
    Missing,
    /// The index exists with another expiry.
    Expiry {
        /// The seconds, or the other value that was found.
        found: Bson,
        /// Seconds.
        wanted: i32,
    },
    /// The name or the definition is taken.
    IndexConflict(IndexConflict),
    /// A rival exists.
    Excluded {
        /// Its name.
        by: String,
        /// Its description.
        rival: ConflictingIndex,
    },
}

/// An index that conflicts with another.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct IndexConflict {
    /// Its name.
    pub by: String,
    /// What differs.
    pub found: String,
    /// What is expected.
    pub wanted: String,
}

/// Compares `index` with the `listIndexes` entries of its collection.
pub(super) fn compare(index: &Index, found: &[Document], retention: i32) -> IndexComparison {
    if let Some(rival) = index.rival
        && let Some(entry) = found.iter().find(|entry| is_rival(entry, &rival))
    {
        return IndexComparison::Excluded { by: name_of(entry).to_owned(), rival };
    }
    let wanted = definition(&index.definition(retention));
    let Some(namesake) = found.iter().find(|entry| name_of(entry) == index.name) else {
        return judge_twins(index, found, &wanted);
    };
    let present = definition(namesake);
    let names: BTreeSet<&str> = present.keys().chain(wanted.keys()).map(String::as_str).collect();
    let differing: Vec<&str> =
        names.into_iter().filter(|name| present.get(*name) != wanted.get(*name)).collect();
    match differing.as_slice() {
        [] => IndexComparison::Same,
        [EXPIRE] if adjusts(index) && present.contains_key(EXPIRE) => IndexComparison::Expiry {
            found: namesake.get(EXPIRE).cloned().unwrap_or(Bson::Null),
            wanted: retention,
        },
        differing => IndexComparison::IndexConflict(IndexConflict {
            by: index.name.into(),
            found: in_words(differing, &present),
            wanted: in_words(differing, &wanted),
        }),
    }
}

/// Returns whether the operator configures its expiry; any other expiry is part of its definition.
fn adjusts(index: &Index) -> bool {
    index.expiry == Some(Expiry::Retention)
}

/// Matches a unique index of exactly these fields, with any name and filter.
pub(super) fn is_rival(entry: &Document, rival: &ConflictingIndex) -> bool {
    let keys = index::document(rival.keys);
    // The order of fields distinguishes indexes, but not their uniqueness.
    let same = |key: &Document| {
        key.len() == keys.len() && keys.keys().all(|field| key.contains_key(field))
    };
    entry.get_bool("unique").unwrap_or(false) && entry.get_document("key").is_ok_and(same)
}

/// Compares indexes with other names, which MongoDB may consider equal.
fn judge_twins(
    index: &Index,
    found: &[Document],
    wanted: &BTreeMap<String, Bson>,
) -> IndexComparison {
    for entry in found {
        let present = definition(entry);
        if SIGNATURE.iter().all(|part| present.get(*part) == wanted.get(*part)) {
            let by = name_of(entry).to_owned();
            let found = format!("defined with the name {by}");
            return IndexComparison::IndexConflict(IndexConflict {
                by,
                found,
                wanted: format!("named {}", index.name),
            });
        }
    }
    IndexComparison::Missing
}

pub(super) fn name_of(entry: &Document) -> &str {
    entry.get_str("name").unwrap_or_default()
}

/// Returns the definition in an entry, with numbers of one type.
fn definition(entry: &Document) -> BTreeMap<String, Bson> {
    let defining = entry.iter().filter(|(name, value)| {
        // False equals absent.
        !IGNORED.contains(&name.as_str()) && **value != Bson::Boolean(false)
    });
    defining.map(|(name, value)| (name.clone(), plain(value))).collect()
}

fn plain(value: &Bson) -> Bson {
    match value {
        Bson::Int32(number) => Bson::Int64(i64::from(*number)),
        // A fraction stays a double, which differs from every expected value.
        Bson::Double(number) if number.fract() == 0.0 && number.abs() < 9e15 => {
            Bson::Int64(*number as i64)
        }
        Bson::Document(fields) => {
            let fields = fields.iter().map(|(name, value)| (name.clone(), plain(value)));
            Bson::Document(fields.collect())
        }
        other => other.clone(),
    }
}

fn in_words(names: &[&str], definition: &BTreeMap<String, Bson>) -> String {
    let words = names.iter().map(|name| match definition.get(*name) {
        Some(value) => format!("{name} {}", value.clone().into_relaxed_extjson()),
        None => format!("without {name}"),
    });
    words.collect::<Vec<_>>().join(" and ")
}

#[cfg(test)]
mod tests {
    use bson::doc;

    use super::*;
    use crate::schema::index::IndexKey::Ascending;
    use crate::schema::index::{Expiry, PartialFilter};

    const TTL: Index = Index {
        name: "done_ttl_idx",
        keys: &[Ascending("doneAt")],
        partial: Some(PartialFilter::Status("done")),
        expiry: Some(Expiry::Retention),
        ..Index::PLAIN
    };

    fn ttl() -> &'static Index {
        &TTL
    }

    const UNIQUE_IN_AGGREGATE: Index = Index {
        name: "aggregateId_1_requestId_1",
        keys: &[Ascending("aggregateId"), Ascending("requestId")],
        unique: true,
        rival: Some(ConflictingIndex { keys: &[Ascending("requestId")], setting: "global" }),
        ..Index::PLAIN
    };

    const UNIQUE_EVERYWHERE: Index = Index {
        name: "requestId_1",
        keys: &[Ascending("requestId")],
        unique: true,
        rival: Some(ConflictingIndex { keys: UNIQUE_IN_AGGREGATE.keys, setting: "aggregate" }),
        ..Index::PLAIN
    };

    #[test]
    fn index_is_equal_with_any_type_of_number() {
        let found = doc! {
            "v": 2,
            "key": { "doneAt": 1.0 },
            "name": "done_ttl_idx",
            "background": true,
            "unique": false,
            "partialFilterExpression": { "status": "done" },
            "expireAfterSeconds": 60_i64,
        };

        assert_eq!(compare(ttl(), &[found], 60), IndexComparison::Same);
    }

    #[test]
    fn other_expiry_differs_from_other_definition() {
        let mut found = ttl().definition(60);
        let expiry = compare(ttl(), std::slice::from_ref(&found), 61);
        found.insert("hidden", true);
        let hidden = compare(ttl(), std::slice::from_ref(&found), 60);
        found.remove("hidden");
        found.remove("expireAfterSeconds");
        let none = compare(ttl(), &[found], 60);

        assert_eq!(expiry, IndexComparison::Expiry { found: Bson::Int32(60), wanted: 61 });
        assert!(
            matches!(hidden, IndexComparison::IndexConflict(taken) if taken.found == "hidden true")
        );
        assert!(
            matches!(none, IndexComparison::IndexConflict(taken) if taken.found == "without expireAfterSeconds")
        );
    }

    #[test]
    fn same_keys_conflict_unless_the_filter_differs() {
        let mut found = ttl().definition(60);
        found.insert("name", "mine");
        let twin = compare(ttl(), std::slice::from_ref(&found), 60);
        found.insert("partialFilterExpression", doc! { "status": "dead" });
        let other = compare(ttl(), &[found], 60);

        assert!(matches!(twin, IndexComparison::IndexConflict(taken) if taken.by == "mine"));
        assert_eq!(other, IndexComparison::Missing);
    }

    #[test]
    fn rival_is_found_whatever_its_name() {
        let (here, there) = (&UNIQUE_IN_AGGREGATE, &UNIQUE_EVERYWHERE);

        for (index, other) in [(here, there), (there, here)] {
            let mut found = other.definition(0);
            found.insert("name", "mine");
            let excluded = compare(index, &[index.definition(0), found.clone()], 0);
            found.insert("unique", false);
            let plain = compare(index, &[index.definition(0), found], 0);

            assert!(matches!(excluded, IndexComparison::Excluded { by, .. } if by == "mine"));
            assert_eq!(plain, IndexComparison::Same, "it promises nothing");
        }
    }

    #[test]
    fn fixed_expiry_is_part_of_the_definition() {
        let index = Index { expiry: Some(Expiry::AtDate), ..TTL };
        let mut found = index.definition(0);
        found.insert("expireAfterSeconds", 60);

        assert!(matches!(compare(&index, &[found], 0), IndexComparison::IndexConflict(_)));
    }
}
