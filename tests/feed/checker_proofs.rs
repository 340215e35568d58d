//! Proves the checker: it must catch what is seeded, and nothing else.

use crate::checker::{FeedFault, FeedItem, ReaderLog, StoredAppend, judge};

fn append(aggregate: &str, version: i64, events: i64, position: i64) -> StoredAppend {
    let aggregate = format!("order/{aggregate}");
    StoredAppend { aggregate, version, events, position: Some(position) }
}

/// Five events in three appends.
fn sound() -> Vec<StoredAppend> {
    vec![append("a", 1, 2, 2), append("b", 1, 1, 3), append("a", 2, 2, 5)]
}

fn item(position: i64, aggregate: &str, version: i64, index: i64) -> FeedItem {
    FeedItem { position, aggregate: format!("order/{aggregate}"), version, index }
}

fn log() -> ReaderLog {
    let items = [(1, "a", 1, 0), (2, "a", 1, 1), (3, "b", 1, 0), (4, "a", 2, 0), (5, "a", 2, 1)];
    let items = items.map(|(position, id, version, index)| item(position, id, version, index));
    ReaderLog { items: items.into(), errors: Vec::new() }
}

#[test]
fn sound_feed_has_no_fault() {
    assert_eq!(judge(&sound(), 5, &[log(), log()]), []);
    assert_eq!(judge(&[], 0, &[ReaderLog::default()]), []);
}

#[test]
fn seeded_append_without_a_position_is_caught() {
    let mut appends = sound();
    appends.push(StoredAppend { position: None, ..append("c", 1, 1, 0) });

    let aggregate = "order/c".to_owned();
    assert_eq!(judge(&appends, 5, &[]), [FeedFault::Unpositioned { aggregate, version: 1 }]);
}

#[test]
fn seeded_hole_is_caught() {
    let mut appends = sound();
    appends[2].position = Some(6);

    assert_eq!(judge(&appends, 6, &[]), [FeedFault::Hole { position: 4 }]);
}

#[test]
fn seeded_position_of_two_events_is_caught() {
    let mut appends = sound();
    appends[1].position = Some(2);

    let found = judge(&appends, 5, &[]);

    assert_eq!(found, [FeedFault::Shared { position: 2 }, FeedFault::Hole { position: 3 }]);
}

#[test]
fn seeded_events_that_are_not_adjacent_are_caught() {
    let mut appends = sound();
    // Between the two of the first append.
    (appends[0].position, appends[1].position) = (Some(3), Some(2));

    let found = judge(&appends, 5, &[]);

    assert_eq!(found, [FeedFault::Shared { position: 2 }, FeedFault::Hole { position: 1 }]);
}

#[test]
fn seeded_inversion_is_caught() {
    let mut appends = sound();
    (appends[0].version, appends[2].version) = (2, 1);

    let aggregate = "order/a".to_owned();
    assert_eq!(judge(&appends, 5, &[]), [FeedFault::Inverted { aggregate, version: 2 }]);
}

#[test]
fn seeded_position_behind_a_missing_version_is_caught() {
    let mut appends = sound();
    appends[2].version = 3;
    let aggregate = "order/a".to_owned();
    let fault = [FeedFault::WithoutPredecessor { aggregate: aggregate.clone(), version: 3 }];
    assert_eq!(judge(&appends, 5, &[]), fault);

    // It exists, and has no position.
    appends.push(StoredAppend { position: None, ..append("a", 2, 1, 0) });
    let unpositioned = FeedFault::Unpositioned { aggregate, version: 2 };
    assert_eq!(judge(&appends, 5, &[])[0], unpositioned);
    assert_eq!(judge(&appends, 5, &[])[1..], fault);
}

#[test]
fn seeded_head_is_caught() {
    for head in [4, 6] {
        assert_eq!(judge(&sound(), head, &[]), [FeedFault::Head { head, last: 5 }]);
    }
}

#[test]
fn seeded_skip_of_a_reader_is_caught() {
    let mut skips = log();
    skips.items.remove(2);
    let mut ends_early = log();
    ends_early.items.truncate(3);

    let found = judge(&sound(), 5, &[log(), skips, ends_early]);

    let skipped = |reader, position| FeedFault::Skipped { reader, position };
    assert_eq!(found, [skipped(1, 3), skipped(2, 4), skipped(2, 5)]);
}

#[test]
fn seeded_duplicate_and_disorder_of_a_reader_are_caught() {
    let mut repeats = log();
    repeats.items.insert(3, repeats.items[2].clone());
    let mut swaps = log();
    swaps.items.swap(2, 3);

    let found = judge(&sound(), 5, &[repeats, swaps]);

    let repeated = |reader, position| FeedFault::Repeated { reader, position };
    let skipped = FeedFault::Skipped { reader: 1, position: 3 };
    assert_eq!(found, [repeated(0, 3), skipped, repeated(1, 3)]);
}

#[test]
fn seeded_other_event_of_a_reader_is_caught() {
    let mut sees_other = log();
    sees_other.items[2].aggregate = "order/z".to_owned();
    let seen = sees_other.items[2].clone();
    let mut sees_more = log();
    sees_more.items.push(item(6, "z", 1, 0));

    let found = judge(&sound(), 5, &[sees_other, sees_more]);

    let more = FeedFault::Other { reader: 1, seen: item(6, "z", 1, 0) };
    assert_eq!(found, [FeedFault::Other { reader: 0, seen }, more]);
}

#[test]
fn error_of_a_reader_is_a_fault() {
    let refused = ReaderLog { errors: vec!["wrong feed".to_owned()], ..log() };

    let error = "wrong feed".to_owned();
    assert_eq!(judge(&sound(), 5, &[refused]), [FeedFault::Refused { reader: 0, error }]);
}
