//! Ids as text: a printed id can be typed.

use std::collections::HashSet;

use postrider::ids::RecordId;
use proptest::prelude::*;

use crate::{arbitrary, corpus};

fn id() -> impl Strategy<Value = RecordId> {
    prop_oneof![
        arbitrary::uuid().prop_map(RecordId::Uuid),
        arbitrary::object_id().prop_map(RecordId::ObjectId),
        arbitrary::text().prop_map(RecordId::String),
        "(uuid|oid|int|str|[0-9]{1,4})?:?[0-9a-f-]{0,36}".prop_map(RecordId::String),
        arbitrary::integer().prop_map(RecordId::Int),
    ]
}

/// The prefix that forces an id's own kind.
fn prefix(id: &RecordId) -> &'static str {
    match id {
        RecordId::Uuid(_) => "uuid:",
        RecordId::ObjectId(_) => "oid:",
        RecordId::String(_) => "str:",
        RecordId::Int(_) => "int:",
        RecordId::Other(_) => unreachable!("no such id is made"),
    }
}

fn judge(text: &str) -> Result<(), TestCaseError> {
    let parse_candidates = RecordId::parse_candidates(text);
    let different: HashSet<&RecordId> = parse_candidates.iter().collect();
    prop_assert_eq!(different.len(), parse_candidates.len(), "{:?}", parse_candidates);
    prop_assert!(parse_candidates.iter().all(RecordId::is_well_formed));
    let forced = ["uuid:", "oid:", "int:", "str:"].iter().any(|prefix| text.starts_with(prefix));
    if forced {
        prop_assert!(parse_candidates.len() <= 1)
    } else {
        prop_assert_eq!(parse_candidates.last(), Some(&RecordId::String(text.to_owned())))
    }
    Ok(())
}

proptest! {
    #[test]
    fn an_id_is_among_the_readings_of_its_own_text(id in id()) {
        let text = id.to_string();
        judge(&text)?;

        let forced = RecordId::parse_candidates(&format!("{}{text}", prefix(&id)));

        prop_assert_eq!(forced, vec![id.clone()]);
        let parse_candidates = RecordId::parse_candidates(&text);
        let is_prefixed = ["uuid", "oid", "int", "str"].contains(&text.split(':').next().unwrap());
        prop_assert!(parse_candidates.contains(&id) || is_prefixed, "{:?}", parse_candidates);
    }

    #[test]
    fn an_id_survives_bson(id in id()) {
        prop_assert_eq!(RecordId::from(bson::Bson::from(&id)), id);
    }

    #[test]
    fn any_text_has_readings(text in arbitrary::text()) {
        judge(&text)?;
    }
}

#[test]
fn the_corpus_is_read() {
    for text in corpus::lines("ids") {
        judge(&text).unwrap_or_else(|error| panic!("{text:?}: {error}"));
    }
}
