//! One index beside what is there.

use std::collections::{BTreeMap, BTreeSet};

use bson::{Bson, Document};

use crate::schema::index::{self, Expiry, Index, Rival};

const EXPIRE: &str = "expireAfterSeconds";
const PARTIAL: &str = "partialFilterExpression";

/// What MongoDB tells two indexes apart by, beside their names: of those that are equal in
/// these, it permits one.
const SIGNATURE: [&str; 5] = ["key", PARTIAL, "unique", "sparse", "collation"];

/// What the listing shows without its being part of the definition.
const IGNORED: [&str; 4] = ["v", "ns", "name", "background"];

/// What is to be thought of the indexes found, for one that should be there.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Verdict {
    /// It is there.
    Same,
    /// It is not, and nothing is in its way.
    Missing,
    /// It is there, but deletes after another time.
    Expiry {
        /// Seconds, or what else was found in their place.
        found: Bson,
        /// Seconds.
        wanted: i32,
    },
    /// Its name or its definition is taken.
    Taken(Taken),
    /// One that must not be beside it is there.
    Excluded {
        /// The name of that one.
        by: String,
        /// What it is.
        rival: Rival,
    },
}

/// An index that stands in another's way.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Taken {
    /// The name of the one in the way.
    pub by: String,
    /// What of it differs, in words.
    pub found: String,
    /// What that should be, in words.
    pub wanted: String,
}

/// Judges `index` by the `listIndexes` entries of its collection.
pub(super) fn judge(index: &Index, found: &[Document], retention: i32) -> Verdict {
    if let Some(rival) = index.rival
        && let Some(entry) = found.iter().find(|entry| is_rival(entry, &rival))
    {
        return Verdict::Excluded { by: name_of(entry).to_owned(), rival };
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
        [] => Verdict::Same,
        [EXPIRE] if adjusts(index) && present.contains_key(EXPIRE) => Verdict::Expiry {
            found: namesake.get(EXPIRE).cloned().unwrap_or(Bson::Null),
            wanted: retention,
        },
        differing => Verdict::Taken(Taken {
            by: index.name.into(),
            found: in_words(differing, &present),
            wanted: in_words(differing, &wanted),
        }),
    }
}

/// Whether its expiry is the operator's to change; another is as much a part of it as its keys.
fn adjusts(index: &Index) -> bool {
    index.expiry == Some(Expiry::Retention)
}

/// Unique in just these fields, whatever it is called and whichever documents are in it.
fn is_rival(entry: &Document, rival: &Rival) -> bool {
    let keys = index::document(rival.keys);
    // Their order tells indexes apart, but not what is unique in them.
    let same = |key: &Document| {
        key.len() == keys.len() && keys.keys().all(|field| key.contains_key(field))
    };
    entry.get_bool("unique").unwrap_or(false) && entry.get_document("key").is_ok_and(same)
}

/// An index of another name may be what MongoDB considers the same.
fn judge_twins(index: &Index, found: &[Document], wanted: &BTreeMap<String, Bson>) -> Verdict {
    for entry in found {
        let present = definition(entry);
        if SIGNATURE.iter().all(|part| present.get(*part) == wanted.get(*part)) {
            let by = name_of(entry).to_owned();
            let found = format!("there under the name {by}");
            return Verdict::Taken(Taken { by, found, wanted: format!("named {}", index.name) });
        }
    }
    Verdict::Missing
}

fn name_of(entry: &Document) -> &str {
    entry.get_str("name").unwrap_or_default()
}

/// An entry without what does not define it, numbers alike whatever shell wrote them.
fn definition(entry: &Document) -> BTreeMap<String, Bson> {
    let defining = entry.iter().filter(|(name, value)| {
        // What is false is as if it was absent.
        !IGNORED.contains(&name.as_str()) && **value != Bson::Boolean(false)
    });
    defining.map(|(name, value)| (name.clone(), plain(value))).collect()
}

fn plain(value: &Bson) -> Bson {
    match value {
        Bson::Int32(number) => Bson::Int64(i64::from(*number)),
        // A fraction, too, differs from what is wanted after this: that is never negative.
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
    use crate::schema::index::Key::Ascending;
    use crate::schema::index::{Expiry, Partial};

    const TTL: Index = Index {
        name: "done_ttl_idx",
        keys: &[Ascending("doneAt")],
        partial: Some(Partial::Status("done")),
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
        rival: Some(Rival { keys: &[Ascending("requestId")], setting: "global" }),
        ..Index::PLAIN
    };

    const UNIQUE_EVERYWHERE: Index = Index {
        name: "requestId_1",
        keys: &[Ascending("requestId")],
        unique: true,
        rival: Some(Rival { keys: UNIQUE_IN_AGGREGATE.keys, setting: "aggregate" }),
        ..Index::PLAIN
    };

    #[test]
    fn an_index_is_the_same_whatever_numbers_it_was_written_with() {
        let found = doc! {
            "v": 2,
            "key": { "doneAt": 1.0 },
            "name": "done_ttl_idx",
            "background": true,
            "unique": false,
            "partialFilterExpression": { "status": "done" },
            "expireAfterSeconds": 60_i64,
        };

        assert_eq!(judge(ttl(), &[found], 60), Verdict::Same);
    }

    #[test]
    fn another_expiry_is_told_from_another_definition() {
        let mut found = ttl().definition(60);
        let expiry = judge(ttl(), std::slice::from_ref(&found), 61);
        found.insert("hidden", true);
        let hidden = judge(ttl(), std::slice::from_ref(&found), 60);
        found.remove("hidden");
        found.remove("expireAfterSeconds");
        let none = judge(ttl(), &[found], 60);

        assert_eq!(expiry, Verdict::Expiry { found: Bson::Int32(60), wanted: 61 });
        assert!(matches!(hidden, Verdict::Taken(taken) if taken.found == "hidden true"));
        assert!(
            matches!(none, Verdict::Taken(taken) if taken.found == "without expireAfterSeconds")
        );
    }

    #[test]
    fn the_same_keys_under_another_name_are_taken_unless_another_filter_tells_them_apart() {
        let mut found = ttl().definition(60);
        found.insert("name", "mine");
        let twin = judge(ttl(), std::slice::from_ref(&found), 60);
        found.insert("partialFilterExpression", doc! { "status": "dead" });
        let other = judge(ttl(), &[found], 60);

        assert!(matches!(twin, Verdict::Taken(taken) if taken.by == "mine"));
        assert_eq!(other, Verdict::Missing);
    }

    #[test]
    fn what_a_request_is_unique_in_excludes_the_other_whatever_it_is_called() {
        let (here, there) = (&UNIQUE_IN_AGGREGATE, &UNIQUE_EVERYWHERE);

        for (index, other) in [(here, there), (there, here)] {
            let mut found = other.definition(0);
            found.insert("name", "mine");
            let excluded = judge(index, &[index.definition(0), found.clone()], 0);
            found.insert("unique", false);
            let plain = judge(index, &[index.definition(0), found], 0);

            assert!(matches!(excluded, Verdict::Excluded { by, .. } if by == "mine"));
            assert_eq!(plain, Verdict::Same, "it promises nothing");
        }
    }

    #[test]
    fn an_expiry_that_no_setting_decides_is_part_of_the_definition() {
        let index = Index { expiry: Some(Expiry::AtDate), ..TTL };
        let mut found = index.definition(0);
        found.insert("expireAfterSeconds", 60);

        assert!(matches!(judge(&index, &[found], 0), Verdict::Taken(_)));
    }
}
