//! The history checker itself: it must find what is seeded, and nothing else.

use crate::support::history::{Arrival, Committed, Findings, Inversion, judge};
use bson::Timestamp;

/// A done record; `key` `""` means none.
fn record(id: &str, key: &str, seq: u32) -> Committed {
    Committed {
        id: id.to_owned(),
        key: (!key.is_empty()).then(|| key.to_owned()),
        seq: Timestamp { time: 1, increment: seq },
        content: 0,
        status: "done".to_owned(),
        exempt: false,
    }
}

/// Three records of key `k`, in this order, and two of `l`.
fn committed() -> Vec<Committed> {
    vec![
        record("k1", "k", 1),
        record("k2", "k", 2),
        record("k3", "k", 5),
        record("l1", "l", 3),
        record("l2", "l", 4),
    ]
}

/// Arrivals under the key that is the id's first letter.
fn arrived(ids: &[&str]) -> Vec<Arrival> {
    let arrival =
        |id: &&str| Arrival { id: (*id).to_owned(), key: Some(id[..1].to_owned()), content: 0 };
    ids.iter().map(arrival).collect()
}

#[test]
fn a_history_in_order_is_accepted_however_the_keys_interleave() {
    for ids in [["k1", "k2", "k3", "l1", "l2"], ["l1", "k1", "l2", "k2", "k3"]] {
        assert_eq!(judge(&committed(), &arrived(&ids)), Findings::default());
    }
}

#[test]
fn duplicates_are_accepted_and_counted_wherever_they_come() {
    // A second stream, as of a suspended instance, merged with the first.
    let ids = ["k1", "k2", "k1", "k2", "k3", "l1", "l2", "l1", "k3"];

    let findings = judge(&committed(), &arrived(&ids));

    assert_eq!(findings, Findings { duplicates: 4, ..Findings::default() });
    assert!(findings.is_kept());
}

#[test]
fn a_seeded_loss_is_caught_even_where_the_record_says_done() {
    let findings = judge(&committed(), &arrived(&["k1", "k3", "l1", "l2"]));

    assert_eq!(findings, Findings { losses: vec!["k2".into()], ..Findings::default() });
    assert!(!findings.is_kept());
}

#[test]
fn a_pending_record_is_a_loss_and_a_dead_one_is_not() {
    let mut records = committed();
    records[1].status = "dead".into();
    records[4].status = "pending".into();

    let findings = judge(&records, &arrived(&["k1", "k3", "l1"]));

    assert_eq!(findings, Findings { losses: vec!["l2".into()], ..Findings::default() });
}

#[test]
fn a_seeded_phantom_is_caught() {
    let findings = judge(&committed(), &arrived(&["k1", "k2", "kX", "k3", "l1", "l2"]));

    assert_eq!(findings, Findings { phantoms: vec!["kX".into()], ..Findings::default() });
    assert!(!findings.is_kept());
}

#[test]
fn a_message_under_a_wrong_key_is_a_phantom_and_its_record_lost() {
    let mut arrivals = arrived(&["k1", "k2", "k3", "l1", "l2"]);
    arrivals[0].key = Some("l".into());

    let findings = judge(&committed(), &arrivals);

    assert_eq!(findings.phantoms, ["k1"]);
    assert_eq!(findings.losses, ["k1"]);
}

#[test]
fn a_message_with_another_content_is_a_phantom_and_its_record_lost() {
    let mut arrivals = arrived(&["k1", "k2", "k3", "l1", "l2"]);
    arrivals[1].content = 7;

    let findings = judge(&committed(), &arrivals);

    assert_eq!(findings.phantoms, ["k2"]);
    assert_eq!(findings.losses, ["k2"]);
}

/// The first content of `k2` may arrive, and is not required to; the second one must.
#[test]
fn each_content_of_a_replaced_document_is_judged() {
    let mut records = committed();
    (records[1].status, records[1].exempt) = ("dead".into(), true);
    records.push(Committed { content: 7, ..record("k2", "k", 9) });
    let late = Arrival { id: "k2".into(), key: Some("k".into()), content: 7 };
    let first = arrived(&["k1", "k2", "k3", "l1", "l2"]);
    let without: Vec<Arrival> = first.iter().filter(|one| one.id != "k2").cloned().collect();

    let both = judge(&records, &[first.clone(), vec![late.clone()]].concat());
    let last = judge(&records, &[without, vec![late]].concat());

    assert!(both.is_kept() && last.is_kept(), "{both:?} {last:?}");
    assert_eq!(judge(&records, &first).losses, ["k2"]);
}

#[test]
fn a_seeded_inversion_is_caught_and_named() {
    let findings = judge(&committed(), &arrived(&["k1", "k3", "k2", "l1", "l2"]));

    let inversion = Inversion { key: "k".into(), late: "k2".into(), overtaker: "k3".into() };
    assert_eq!(findings, Findings { inversions: vec![inversion], ..Findings::default() });
    assert!(!findings.is_kept());
}

#[test]
fn an_inversion_is_not_excused_by_a_delivery_in_order_later_on() {
    let findings = judge(&committed(), &arrived(&["k1", "k3", "k2", "k3", "l1", "l2"]));

    assert_eq!(findings.inversions.len(), 1);
    assert_eq!(findings.duplicates, 1);
}

#[test]
fn each_late_record_is_named_against_the_furthest_one() {
    let findings = judge(&committed(), &arrived(&["k3", "k2", "k1", "l1", "l2"]));

    let late: Vec<&str> = findings.inversions.iter().map(|one| one.late.as_str()).collect();
    assert_eq!(late, ["k2", "k1"]);
    assert!(findings.inversions.iter().all(|one| one.overtaker == "k3"));
}

#[test]
fn exempt_records_and_those_without_a_key_stand_in_no_order() {
    let mut records = committed();
    records[0].exempt = true;
    records.extend([record("a", "", 9), record("b", "", 8)]);
    let mut arrivals = arrived(&["k2", "k1", "k3", "l1", "l2"]);
    arrivals.extend(["a", "b"].map(|id| Arrival { id: id.into(), key: None, content: 0 }));

    assert_eq!(judge(&records, &arrivals), Findings::default());
}
