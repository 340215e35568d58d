use bson::raw::cstr;
use bson::{doc, rawdoc};
use proptest::prelude::*;

use super::*;

/// The document with each `MARK` in its bytes made no UTF-8.
fn broken(document: &Document) -> RawDocumentBuf {
    let mut bytes = RawDocumentBuf::try_from(document).unwrap().into_bytes();
    for at in 0..bytes.len() - 4 {
        if &bytes[at..at + 4] == b"MARK" {
            bytes[at..at + 4].copy_from_slice(b"a\xff\xfeb");
        }
    }
    RawDocumentBuf::from_bytes(bytes).unwrap()
}

#[test]
fn a_record_is_shown_and_what_is_wrong_is_named() {
    let record = doc! {
        "_id": 1, "status": "pending", "MARK": 1,
        "payload": { "MARK": ["x", "MARK"], "n": 7 }, "type": "MARK", "behind": true,
    };

    let shown = DecodedRecord::read(&broken(&record));

    let expected = doc! {
        "_id": 1, "status": "pending", "a\\xff\\xfeb": 1,
        "payload": { "a\\xff\\xfeb": ["x", "a\u{fffd}\u{fffd}b"], "n": 7 },
        "type": "a\u{fffd}\u{fffd}b", "behind": true,
    };
    assert_eq!(shown.document, expected);
    let expected = [
        "a\\xff\\xfeb: the name of the field is not valid UTF-8",
        "payload.a\\xff\\xfeb: the name of the field is not valid UTF-8",
        "payload.a\\xff\\xfeb.1: is not valid UTF-8",
        "type: is not valid UTF-8",
    ];
    assert_eq!(shown.invalid, expected);
}

#[test]
fn a_status_that_is_none_and_a_field_that_stands_twice_are_named() {
    let mut twice = rawdoc! { "_id": 1, "status": "Pending" };
    twice.append(cstr!("status"), "done");

    let shown = DecodedRecord::read(&twice);

    assert_eq!(shown.document, doc! { "_id": 1, "status": "Pending" });
    assert_eq!(shown.invalid.len(), 2, "{:?}", shown.invalid);
    assert!(shown.invalid[1].starts_with("status: must be pending"), "{:?}", shown.invalid);
}

#[test]
fn an_id_is_named_by_a_text_that_means_no_other() {
    let ids = [
        Bson::Int32(7),
        "7".into(),
        "uuid:x".into(),
        "raw:x".into(),
        bson::oid::ObjectId::from_bytes([1; 12]).into(),
        bson::Uuid::from_bytes([1; 16]).into(),
        1.5.into(),
        true.into(),
        doc! { "a": 1 }.into(),
        Bson::Null,
    ];
    for id in ids {
        let raw = RawId::from(&id);

        let again = RawId::parse_candidates(&raw.text());

        // MongoDB holds the integer types equal.
        let expected = match id {
            Bson::Int32(number) => RawId::from(&Bson::Int64(number.into())),
            _ => raw.clone(),
        };
        assert_eq!(again, [expected], "{id}: {}", raw.text());
    }
    let undecodable = RawId::of(&broken(&doc! { "_id": "MARK", "status": "dead" }));
    assert_eq!(undecodable.decoded(), None);
    assert_eq!(RawId::parse_candidates(&undecodable.text()), [undecodable]);
    assert_eq!(RawId::parse_candidates("raw:"), []);
    assert_eq!(RawId::parse_candidates("raw:!"), []);
    // A document without an `_id`.
    assert_eq!(RawId::parse_candidates("raw:BQAAAAA"), []);
}

proptest! {
    #[test]
    fn any_bytes_are_shown_or_passed_over(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let mut framed = i32::try_from(bytes.len() + 5).unwrap().to_le_bytes().to_vec();
        framed.extend(bytes);
        framed.push(0);
        let document = RawDocumentBuf::from_bytes(framed).unwrap();

        let shown = DecodedRecord::read(&document);

        prop_assert!(!shown.id.text().is_empty());
        let _ = crate::json_view::decoded(&shown);
    }

    #[test]
    fn any_byte_of_a_record_may_be_any_other(at in any::<prop::sample::Index>(), byte: u8) {
        let record = rawdoc! {
            "_id": "id", "status": "pending", "key": "k", "payload": { "a": [1, "x", { "b": 1.5 }] },
            "seq": bson::Timestamp { time: 1, increment: 1 },
        };
        let mut bytes = record.into_bytes();
        let at = 4 + at.index(bytes.len() - 5);
        bytes[at] = byte;
        if let Ok(document) = RawDocumentBuf::from_bytes(bytes) {
            let _ = crate::json_view::decoded(&DecodedRecord::read(&document));
        }
    }

    /// Also for bytes that are no value of their kind.
    #[test]
    fn a_raw_id_becomes_one_equality_or_is_refused(
        kind in prop_oneof![
            any::<u8>(),
            prop::sample::select(vec![0x02, 0x03, 0x04, 0x05, 0x08, 0x0b, 0x0c, 0x0d, 0x0f]),
        ],
        length in prop_oneof![Just(None), (0_i32..40).prop_map(Some)],
        inner in proptest::collection::vec(any::<u8>(), 0..40),
    ) {
        let length = length.map(|length| length.to_le_bytes().to_vec()).unwrap_or_default();
        judge_raw(kind, &[length, inner].concat())?;
    }

    #[test]
    fn a_raw_id_of_operators_is_refused(
        name in "[$a][a-z]{0,3}",
        inner in prop_oneof![Just("$gt"), Just("a")],
        value: i32,
    ) {
        let id = doc! { "a": { inner: value }, &name: value };
        let bytes = RawDocumentBuf::try_from(&id).unwrap();

        prop_assert_eq!(judge_raw(DOCUMENT, bytes.as_bytes())?, !name.starts_with('$'));
    }
}

/// Returns whether this value may be named by `raw:`, after a look at its filter.
fn judge_raw(kind: u8, value: &[u8]) -> Result<bool, TestCaseError> {
    let mut framed = i32::try_from(value.len() + 10).unwrap().to_le_bytes().to_vec();
    framed.extend([&[kind][..], b"_id\0", value, &[0]].concat());
    let text = format!("{RAW}{}", URL_SAFE_NO_PAD.encode(framed));

    let ids = RawId::parse_candidates(&text);

    let Some(id) = ids.first() else { return Ok(false) };
    prop_assert!(![ARRAY, UNDEFINED, REGEX, CODE, CODE_WITH_SCOPE].contains(&id.kind));
    let filter = RawWriter::default().equal(ID, id).finish();
    prop_assert!(is_whole(DOCUMENT, filter.as_bytes(), MAX_DEPTH));
    let only = |bytes| {
        let mut all = elements(bytes);
        all.next().filter(|_| all.next().is_none()).unwrap()
    };
    let condition = only(filter.as_bytes());
    prop_assert_eq!((condition.kind, condition.name), (DOCUMENT, &b"_id"[..]));
    let equal = only(condition.value);
    prop_assert_eq!((equal.kind, equal.name, equal.value), (id.kind, &b"$eq"[..], &id.value[..]));
    Ok(true)
}

#[test]
fn ids_are_the_same_by_their_bytes_or_as_integers() {
    let id = |value: Bson| RawId::from(&value);

    assert!(id(1.into()).is_same(&id(1_i64.into())));
    for other in [1.0.into(), "1".into(), Bson::Symbol("1".into())] {
        assert!(!id(1.into()).is_same(&id(other.clone())), "{other}");
        assert!(!id("1".into()).is_same(&id(other.clone())) || other == "1".into(), "{other}");
        assert!(id(other.clone()).is_same(&id(other)));
    }
}
