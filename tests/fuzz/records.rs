//! Records in a snapshot, by any writer: read and judged, and never a reason to stop.

use bson::raw::{RawDocument, RawDocumentBuf, cstr};
use bson::{Bson, DateTime, Document, doc};
use postrider::outbox::reason::DeadReason;
use postrider::outbox::record::{LaneKey, Record, Unfit};
use proptest::prelude::*;

use crate::{arbitrary, corpus};

/// A text that no generator makes.
const PLANTED: &str = "pl4nted-v4lue";

/// Reads all that the relay reads, of any document.
fn judge(bytes: &[u8]) -> Result<(), TestCaseError> {
    let Ok(raw) = RawDocument::from_bytes(bytes) else { return Ok(()) };
    let record = Record::read(raw);

    prop_assert!(record.attempt <= 1_000_000);
    prop_assert_eq!(record.size(), bytes.len());
    prop_assert_eq!(record.raw.as_bytes(), bytes);
    prop_assert!(record.seq.is_none_or(|seq| (seq.time, seq.increment) != (0, 0)));
    let now = DateTime::now();
    prop_assert!(
        record.lease_until.is_some() || !(record.is_leased(now) || record.was_quarantined())
    );
    let is_nameless = record.unfit == Some(Unfit::Nameless);
    prop_assert!(!is_nameless || !record.id.is_well_formed());
    let _ = (record.hashed_partition(), record.seq_time(), record.lane.as_str());
    match record.content() {
        Ok(content) => {
            prop_assert!(record.id.is_well_formed());
            prop_assert_eq!(content.id, record.id.to_string());
            match (&record.lane, &content.key) {
                (LaneKey::Keyed(lane), Some(key)) => prop_assert_eq!(&**lane, key.as_str()),
                (LaneKey::Single(lane), None) => prop_assert_eq!(&**lane, record.id.to_string()),
                other => prop_assert!(false, "{:?}", other),
            }
        }
        Err(malformed) => {
            prop_assert!(!malformed.field.is_empty() && !malformed.why.is_empty());
            let reason = DeadReason::Malformed(malformed).to_string();
            prop_assert!(reason.starts_with("malformed: "), "{}", reason);
        }
    }
    let single = record.without_order();
    prop_assert!(matches!(single.lane, LaneKey::Single(_)));
    Ok(())
}

fn bytes_of(record: &Document) -> Vec<u8> {
    RawDocumentBuf::try_from(record).unwrap().into_bytes()
}

/// Replaces each text in a value by this one.
fn planted(value: Bson) -> Bson {
    match value {
        Bson::String(_) => Bson::String(PLANTED.into()),
        Bson::Symbol(_) => Bson::Symbol(PLANTED.into()),
        Bson::JavaScriptCode(_) => Bson::JavaScriptCode(PLANTED.into()),
        Bson::Array(values) => values.into_iter().map(planted).collect(),
        Bson::Document(document) => {
            let fields = document.into_iter().map(|(name, value)| (name, planted(value)));
            Bson::Document(fields.collect())
        }
        other => other,
    }
}

proptest! {
    #[test]
    fn any_record_is_read(record in arbitrary::record()) {
        judge(&bytes_of(&record))?;
    }

    #[test]
    fn a_record_whose_bytes_are_broken_is_read(bytes in arbitrary::broken_record()) {
        judge(&bytes)?;
    }

    #[test]
    fn arbitrary_bytes_are_read(bytes in arbitrary::any_bytes()) {
        judge(&bytes)?;
    }

    #[test]
    fn no_value_is_in_a_reason(record in arbitrary::record()) {
        let Bson::Document(record) = planted(Bson::Document(record)) else { unreachable!() };

        let read = Record::read(&RawDocumentBuf::try_from(&record).unwrap());

        if let Err(malformed) = read.content() {
            prop_assert!(!malformed.to_string().contains(PLANTED), "{}", malformed);
        }
    }
}

#[test]
fn the_corpus_is_read() {
    for (name, bytes) in corpus::bytes("records") {
        assert!(RawDocument::from_bytes(&bytes).is_ok(), "{name} has no frame");
        judge(&bytes).unwrap_or_else(|error| panic!("{name}: {error}"));
    }
}

/// As deep as MongoDB permits: `maxBSONDepth` is 200 by default, and at most 250.
#[test]
fn no_depth_overflows_the_stack() {
    let mut deep = RawDocumentBuf::new();
    for _ in 0..250 {
        let inner = std::mem::take(&mut deep);
        deep.append(cstr!("d"), inner);
    }
    for field in [cstr!("_id"), cstr!("key"), cstr!("headers"), cstr!("payload"), cstr!("attempt")]
    {
        let mut record = RawDocumentBuf::try_from(&doc! { "type": "T" }).unwrap();
        record.append(field, deep.clone());

        judge(record.as_bytes()).unwrap();
    }
}
