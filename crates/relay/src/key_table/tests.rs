use std::collections::BTreeSet;
use std::time::Duration;

use bson::raw::RawDocumentBuf;
use bson::{Timestamp, doc};
use postrider_outbox::position::Position;

use super::*;
use crate::partition;

fn all() -> KeyTable {
    let key_table = KeyTable::default();
    key_table.set_owned(&(0..=255).collect::<Vec<u8>>());
    key_table
}

fn key(name: &str) -> LaneKey {
    LaneKey::Keyed(name.into())
}

/// The head of a key.
fn head(name: &str) -> Record {
    let seq = Timestamp { time: 1, increment: 1 };
    let document = doc! { "_id": name, "key": name, "partition": 0, "seq": seq };
    Record::read(&RawDocumentBuf::try_from(&document).unwrap())
}

fn wait(reason: BlockReason, name: &str, until: Option<Instant>) -> KeyBlock {
    KeyBlock::new(reason, Blocker::of(&head(name)), until)
}

fn block(key_table: &KeyTable, name: &str) {
    key_table.block_for_sink(
        key(name),
        wait(BlockReason::SinkDown, name, None),
        key_table.recoveries(),
    );
}

fn claims(key_table: &KeyTable, name: &str) -> bool {
    key_table.register(&Lane::new(key(name), 0), &head(name))
}

/// Returns all keys that the pages from the beginning on skip, and how many there are.
fn all_pages(key_table: &KeyTable) -> (BTreeSet<String>, usize) {
    let mut seen = BTreeSet::new();
    let mut from = Position::start();
    for pages in 1.. {
        let over = key_table.keys_to_skip(&from);
        seen.extend(over.keys.iter().map(|key| key.as_str().unwrap().to_owned()));
        match over.until.as_ref().map(Position::behind).or(from.next_side()) {
            Some(next) => from = next,
            None => return (seen, pages),
        }
    }
    unreachable!("the loop ends by itself");
}

#[test]
fn pages_skip_every_known_key_up_to_the_limit() {
    let key_table = all();
    let names: BTreeSet<String> = (0..9_000).map(|n| format!("k-{n}")).collect();
    names.iter().for_each(|name| block(&key_table, name));

    let (seen, pages) = all_pages(&key_table);

    assert_eq!(seen, names);
    assert_eq!(pages, 10, "of each side five");
}

#[test]
fn removed_key_is_not_skipped() {
    let key_table = all();
    let lane = Lane::new(key("busy"), 0);
    assert!(key_table.register(&lane, &head("busy")));
    block(&key_table, "held");
    assert!(key_table.register_quarantined(&key("suspect"), Blocker::of(&head("suspect"))));
    assert_eq!(all_pages(&key_table).0.len(), 3);

    key_table.release(&lane.key);
    key_table.unblock_sinks();
    key_table.unblock(&key("suspect"));

    assert_eq!(all_pages(&key_table).0.len(), 0);
    assert!(key_table.taken_keys().is_empty());
}

/// The read saw that the sink was down, and reports that late: nothing would unblock the key.
#[test]
fn key_is_not_blocked_for_a_sink_that_came_up() {
    let key_table = all();
    let as_of = key_table.recoveries();
    key_table.unblock_sinks();

    key_table.block_for_sink(key("late"), wait(BlockReason::SinkDown, "late", None), as_of);

    assert_eq!(all_pages(&key_table).0.len(), 0);
}

#[test]
fn block_ends_when_due_and_not_before() {
    let key_table = all();
    let now = Instant::now();
    let later = now + Duration::from_secs(1);
    for (name, until) in [("later", later), ("now", now)] {
        key_table.block(key(name), wait(BlockReason::NotDue, name, Some(until)));
    }
    block(&key_table, "for ever");

    assert!(key_table.unblock_due(now));
    assert!(!key_table.unblock_due(now));
    assert_eq!(all_pages(&key_table).0, BTreeSet::from(["for ever", "later"].map(str::to_owned)));
    assert!(key_table.unblock_due(later));
    assert_eq!(all_pages(&key_table).0, BTreeSet::from(["for ever".to_owned()]));
    assert!(!key_table.unblock_due(later + Duration::from_secs(9)));
}

#[test]
fn ready_head_in_snapshot_ends_blocks_that_snapshots_show() {
    for (reason, outranked) in [
        (BlockReason::NotDue, true),
        (BlockReason::Leased, true),
        (BlockReason::SinkDown, true),
        (BlockReason::Refused, false),
        (BlockReason::DeadLetter, false),
    ] {
        let key_table = all();
        key_table.block(key("k"), wait(reason, "k", None));

        assert_eq!(claims(&key_table, "k"), outranked, "{reason:?}");
    }
    let key_table = all();
    key_table.block(key("k"), wait(BlockReason::Refused, "another head", None));
    assert!(claims(&key_table, "k"), "it was said of another record");
}

#[test]
fn blocked_keys_are_listed_in_pages_and_each_once() {
    let key_table = all();
    let names: BTreeSet<String> = (0..25).map(|n| format!("k-{n}")).collect();
    names.iter().for_each(|name| block(&key_table, name));
    assert!(key_table.register_quarantined(&key("suspect"), Blocker::of(&head("suspect"))));
    let written = KeyBlock::new(BlockReason::NotDue, Blocker::written(&head("written")), None);
    key_table.block(key("written"), written);
    assert!(claims(&key_table, "busy"));

    let (mut seen, mut from) = (Vec::new(), None);
    loop {
        let (part, next) = key_table.comparable_blockers(from.as_ref(), 10);
        assert!(part.len() <= 10);
        seen.extend(part.into_iter().map(|(lane, _)| lane.as_str().to_owned()));
        match next {
            Some(_) => from = next,
            None => break,
        }
    }

    assert_eq!(seen.len(), 27);
    let seen: BTreeSet<String> = seen.into_iter().collect();
    assert!(seen.is_superset(&names) && seen.contains("suspect"), "{seen:?}");
    assert!(seen.contains("written"), "it is seen by the next read");
}

#[test]
fn key_is_unblocked_from_its_own_blocker_only() {
    let key_table = all();
    block(&key_table, "k");

    assert!(!key_table.unblock_from(&key("k"), &Blocker::of(&head("other"))));
    assert!(key_table.unblock_from(&key("k"), &Blocker::of(&head("k"))));
    assert!(!key_table.unblock_from(&key("k"), &Blocker::of(&head("k"))));
}

#[test]
fn turn_is_skipped_when_record_is_unblocked_or_changed() {
    let key_table = all();
    let record = Blocker::of(&head("k"));
    let lane = Lane::new(key("k"), 0);
    assert!(key_table.register_quarantined(&key("k"), record.clone()));

    assert!(!key_table.start_quarantined(&lane, &Blocker::of(&head("other"))));
    assert!(key_table.unblock_from(&key("k"), &record));
    assert!(!key_table.start_quarantined(&lane, &record));
    assert!(key_table.register_quarantined(&key("k"), record.clone()));
    assert!(key_table.start_quarantined(&lane, &record));
}

#[test]
fn key_in_flight_or_quarantine_is_not_blocked_again() {
    let key_table = all();
    let lane = Lane::new(key("busy"), 0);
    assert!(key_table.register(&lane, &head("busy")));
    assert!(key_table.register_quarantined(&key("suspect"), Blocker::of(&head("suspect"))));

    block(&key_table, "busy");
    block(&key_table, "suspect");

    assert!(key_table.lane(&lane.key).is_some());
    assert_eq!(held_count(&key_table), 1);
}

fn held_count(key_table: &KeyTable) -> usize {
    key_table.counts_by_reason().iter().map(|(_, count)| count).sum()
}

fn hold_for(key_table: &KeyTable, name: &str, destination: &str) {
    let destination = Address { destination: destination.into(), key: None };
    let head = Blocker::of(&head(name));
    key_table.block(key(name), KeyBlock::for_destination(head, None, "s".into(), destination));
}

#[test]
fn probe_unblocks_one_key_per_destination_unsuspected_first() {
    let key_table = all();
    for (name, destination) in [("bad", "a"), ("good", "a"), ("late", "a"), ("other", "b")] {
        hold_for(&key_table, name, destination);
    }
    let due = |names: &[&str]| -> Vec<Address> {
        let address = |name: &&str| Address { destination: (*name).into(), key: None };
        names.iter().map(address).collect()
    };
    let call = |sink: &str, names: &[&str]| {
        let called = key_table.unblock_for_probes(sink, &due(names), |id| *id == head("bad").id);
        let mut called: Vec<String> =
            called.into_iter().map(|(key, _)| key.as_str().to_owned()).collect();
        called.sort();
        called
    };

    assert!(call("another", &["a", "b"]).is_empty());
    assert_eq!(call("s", &["a", "b", "c"]), ["good", "other"]);
    assert_eq!(call("s", &["a"]), ["late"]);
    assert_eq!(call("s", &["a", "b"]), ["bad"]);
    assert_eq!(held_count(&key_table), 0);
}

#[test]
fn confirming_destination_unblocks_its_own_keys() {
    let key_table = all();
    hold_for(&key_table, "mine", "a");
    hold_for(&key_table, "other", "b");
    let a = Address { destination: "a".into(), key: None };

    key_table.unblock_destination("another", &a);
    assert_eq!(held_count(&key_table), 2);
    key_table.unblock_destination("s", &a);

    assert_eq!(held_count(&key_table), 1);
    assert!(claims(&key_table, "mine"));
}

/// A key table while the change stream carries the records.
fn go_live() -> KeyTable {
    let key_table = all();
    key_table.begin_following();
    key_table.go_live();
    key_table
}

fn at(second: u32) -> Timestamp {
    Timestamp { time: second, increment: 1 }
}

/// A read that begins now and shows this moment.
fn read(key_table: &KeyTable, second: u32) -> ScanPoint {
    ScanPoint { at: at(second), start: key_table.scan_start() }
}

fn withhold(key_table: &KeyTable, name: &str, second: u32) {
    key_table.withhold(key(name), 0, head(name).id, at(second));
}

/// The state of a key when its next record becomes pending.
fn state_of(key_table: &KeyTable, name: &str, second: u32) -> &'static str {
    let mut record = head(name);
    record.id = RecordId::String(format!("{name}, another"));
    match key_table.state_of(&record, at(second)) {
        KeyState::Idle => "free",
        KeyState::InFlight(_) => "busy",
        KeyState::Covered => "covered",
        KeyState::Blocked => "waits",
    }
}

fn asked(key_table: &KeyTable) -> Vec<String> {
    let asked = key_table.take_pending_scans(10).into_iter();
    asked.map(|(key, ..)| key.as_str().to_owned()).collect()
}

/// A complete lane for an unknown key.
fn take(key_table: &KeyTable, name: &str) -> Arc<Lane> {
    let lane = Lane::new(key(name), 0);
    lane.begin(&[head(name)], true);
    lane.queued();
    assert!(key_table.register_idle(&lane, &head(name)));
    lane
}

#[test]
fn key_is_idle_after_complete_lane_else_scanned() {
    for (is_complete, expected) in [(true, "free"), (false, "waits")] {
        let key_table = go_live();
        let lane = take(&key_table, "k");
        assert_eq!(state_of(&key_table, "k", 1), "busy");

        key_table.end_lane(&lane, is_complete);

        assert_eq!(state_of(&key_table, "k", 2), expected);
        assert_eq!(asked(&key_table).len(), usize::from(!is_complete));
    }
}

/// With the same `_id`, while the earlier record is in flight.
#[test]
fn reinserted_record_is_not_mistaken_for_the_one_in_flight() {
    let key_table = go_live();
    take(&key_table, "k");

    assert!(matches!(key_table.state_of(&head("k"), at(9)), KeyState::Blocked));
}

/// Two records of one transaction in different partitions: the event of the second came while the
/// key was read, in the partition of the first alone.
#[test]
fn read_of_some_partitions_of_a_key_is_inconclusive() {
    let own = partition::of_key("k");
    let [one, two] = [own.wrapping_add(1), own.wrapping_add(2)];
    for comes_before in [true, false] {
        let key_table = go_live();
        key_table.withhold(key("k"), one, head("k").id, at(5));
        assert_eq!(asked(&key_table), ["k"]);
        let second = || key_table.withhold(key("k"), two, head("second").id, at(5));
        if comes_before {
            second();
        }
        let read = read(&key_table, 9);
        if !comes_before {
            second();
        }

        key_table.finish_scan(&key("k"), Some(read));

        assert_eq!(state_of(&key_table, "k", 10), if comes_before { "free" } else { "waits" });
    }
}

#[test]
fn key_is_read_in_its_own_partition_not_its_blockers() {
    let key_table = go_live();
    let own = partition::of_key("k");
    let foreign = own.wrapping_add(1);
    key_table.set_owned(&[own]);
    let dead = DeadBlocker { id: head("dead").id, partition: foreign };
    key_table.block_by_dead(vec![(key("k"), dead)]);

    key_table.release(&key("k"));

    assert_eq!(asked(&key_table), ["k"]);
}

#[test]
fn withheld_event_makes_lane_incomplete_and_key_scanned() {
    let key_table = go_live();
    let lane = take(&key_table, "k");

    withhold(&key_table, "k", 5);

    assert!(!lane.offer(&head("next")));
    key_table.end_lane(&lane, true);
    assert_eq!(asked(&key_table), ["k"]);
}

#[test]
fn read_counts_when_it_shows_withheld_events() {
    let key_table = go_live();
    withhold(&key_table, "k", 5);
    assert_eq!(asked(&key_table), ["k"]);
    assert!(asked(&key_table).is_empty(), "one read at a time");

    key_table.finish_scan(&key("k"), Some(read(&key_table, 4)));
    assert_eq!(state_of(&key_table, "k", 6), "waits");
    assert_eq!(asked(&key_table), ["k"], "again");
    key_table.finish_scan(&key("k"), Some(read(&key_table, 5)));

    assert_eq!(state_of(&key_table, "k", 5), "covered", "its read has shown that");
    assert_eq!(state_of(&key_table, "k", 6), "free");
    key_table.advance_to(at(6));
    assert_eq!(state_of(&key_table, "k", 5), "free", "the stream has passed its read");
}

#[test]
fn failed_read_is_repeated() {
    let key_table = go_live();
    withhold(&key_table, "k", 5);
    assert_eq!(asked(&key_table), ["k"]);

    key_table.finish_scan(&key("k"), None);

    assert_eq!(asked(&key_table), ["k"]);
}

/// The event came between the snapshot and the registration.
#[test]
fn lane_is_incomplete_when_event_follows_its_read() {
    for (event, takes) in [(5, true), (6, false)] {
        let key_table = go_live();
        withhold(&key_table, "k", event);
        assert_eq!(asked(&key_table), ["k"]);
        let lane = Lane::new(key("k"), 0);
        lane.begin(&[head("k")], true);

        assert!(key_table.register_scanned(&lane, &head("k"), read(&key_table, 5)));
        lane.queued();

        assert_eq!(lane.offer(&head("next")), takes, "{event}");
        key_table.end_lane(&lane, takes);
        assert_eq!(asked(&key_table).is_empty(), takes);
    }
}

/// The result of a read is registered before the driver sees it. An event that the driver handles
/// between the two must not be leased first.
#[test]
fn record_is_not_added_behind_unqueued_records() {
    for (is_queued, takes) in [(true, true), (false, false)] {
        let key_table = go_live();
        withhold(&key_table, "k", 5);
        assert_eq!(asked(&key_table), ["k"]);
        let lane = Lane::new(key("k"), 0);
        lane.begin(&[head("k")], true);
        assert!(key_table.register_scanned(&lane, &head("k"), read(&key_table, 5)));
        if is_queued {
            lane.queued();
        }

        assert_eq!(lane.offer(&head("next")), takes);
    }
}

#[test]
fn ended_block_leads_to_read_and_withholds_events_until_then() {
    let key_table = go_live();
    key_table.block(key("k"), wait(BlockReason::NotDue, "k", Some(Instant::now())));
    assert_eq!(state_of(&key_table, "k", 1), "waits");
    assert!(asked(&key_table).is_empty());

    assert!(key_table.unblock_due(Instant::now()));

    assert_eq!(state_of(&key_table, "k", 2), "waits");
    let lane = Lane::new(key("k"), 0);
    assert!(!key_table.register_idle(&lane, &head("k")));
    assert_eq!(asked(&key_table), ["k"]);
}

#[test]
fn live_state_is_forgotten_when_rotations_resume() {
    let key_table = go_live();
    let lane = take(&key_table, "busy");
    withhold(&key_table, "unscanned", 5);
    key_table
        .block_by_dead(vec![(key("blocked"), DeadBlocker { id: head("dead").id, partition: 0 })]);
    block(&key_table, "paused");
    assert!(key_table.live_period().is_some());

    key_table.stop_following();

    assert_eq!(key_table.live_period(), None);
    assert_eq!(key_table.pending_scans(), 0);
    assert!(!lane.offer(&head("next")));
    assert_eq!(all_pages(&key_table).0.len(), 3, "the one in hand, and those that wait");
}

/// It began before rotations found the records for a while, and ended after.
#[test]
fn read_of_an_earlier_period_is_inconclusive() {
    let key_table = go_live();
    withhold(&key_table, "k", 5);
    let early = read(&key_table, 9);
    key_table.stop_following();
    key_table.begin_following();
    withhold(&key_table, "k", 6);
    let lane = Lane::new(key("k"), 0);
    lane.begin(&[head("k")], true);

    key_table.finish_scan(&key("k"), Some(early));
    assert_eq!(state_of(&key_table, "k", 10), "waits");
    assert!(key_table.register_scanned(&lane, &head("k"), early));
    lane.queued();

    assert!(!lane.offer(&head("next")));
}

/// As after an election: the new primary may not know yet what the stream has shown.
#[test]
fn read_counts_when_it_shows_all_stream_events() {
    let key_table = go_live();
    let lane = take(&key_table, "k");
    key_table.advance_to(at(7));
    key_table.end_lane(&lane, false);

    key_table.finish_scan(&key("k"), Some(read(&key_table, 6)));
    assert_eq!(state_of(&key_table, "k", 8), "waits");
    key_table.finish_scan(&key("k"), Some(read(&key_table, 7)));

    assert_eq!(state_of(&key_table, "k", 8), "free");
}

#[test]
fn key_seen_in_another_partition_is_read_there_too() {
    let key_table = go_live();
    let own = partition::of_key("k");
    let other = own.wrapping_add(1);

    key_table.withhold(key("k"), other, head("k").id, at(1));

    let mut places = [own, other];
    places.sort_unstable();
    assert_eq!(key_table.partitions_of(&key("k")), places);
}

/// A page of a pass has met the key, in a partition that the read of the key does not cover.
#[test]
fn read_does_not_count_when_pass_skips_its_key_meanwhile() {
    let key_table = all();
    key_table.begin_following();
    let foreign = |name: &str| partition::of_key(name).wrapping_add(1);
    key_table.withhold(key("other"), foreign("other"), head("other").id, at(1));
    key_table.withhold(key("k"), partition::of_key("k"), head("k").id, at(1));
    assert_eq!(key_table.take_pending_scans(9).len(), 2);
    let early = read(&key_table, 9);
    assert_eq!(key_table.partitions_of(&key("k")).len(), 1);
    block(&key_table, "k");
    key_table.release(&key("k"));

    key_table.finish_scan(&key("k"), Some(early));

    assert_eq!(asked(&key_table), ["k"]);
    assert_eq!(key_table.partitions_of(&key("k")).len(), 256);
    key_table.finish_scan(&key("k"), Some(read(&key_table, 9)));
    assert_eq!(state_of(&key_table, "k", 10), "free");
}

fn block_by_dead(key_table: &KeyTable, name: &str) {
    let dead = DeadBlocker { id: head(name).id, partition: partition::of_key(name) };
    key_table.block_by_dead(vec![(key(name), dead)]);
}

/// It was lost while a scan has read.
#[test]
fn key_of_a_foreign_partition_is_not_blocked() {
    let key_table = all();
    let own = partition::of_key("k");
    key_table.set_owned(&[own.wrapping_add(1)]);

    block_by_dead(&key_table, "k");

    assert_eq!(key_table.dead_count(), 0);
}

#[test]
fn pages_skip_keys_of_dead_records_among_the_others() {
    let key_table = all();
    let names: BTreeSet<String> = (0..3_000).map(|n| format!("k-{n}")).collect();
    for (n, name) in names.iter().enumerate() {
        if n % 2 == 0 { block(&key_table, name) } else { block_by_dead(&key_table, name) }
    }

    let (seen, pages) = all_pages(&key_table);

    assert_eq!((seen, pages), (names, 4));
    let counts = key_table.counts_by_reason();
    assert!(counts.contains(&(BlockReason::Blocked, 1_500)), "{counts:?}");
    assert!(!key_table.counts_are_at_least());
}

#[test]
fn key_waits_for_one_thing_the_dead_record_or_another() {
    let key_table = all();
    block(&key_table, "k");
    block_by_dead(&key_table, "k");
    assert_eq!((key_table.dead_count(), held_count(&key_table)), (1, 1));

    block(&key_table, "k");
    assert_eq!((key_table.dead_count(), held_count(&key_table)), (0, 1));
    block_by_dead(&key_table, "k");
    let lane = Lane::new(key("k"), 0);
    assert!(key_table.register(&lane, &head("k")), "a snapshot has shown it ready");
    block_by_dead(&key_table, "k");

    assert_eq!((key_table.dead_count(), held_count(&key_table)), (0, 0));
}

#[test]
fn key_without_its_dead_record_is_read_once() {
    let key_table = go_live();
    block_by_dead(&key_table, "k");

    let name: Arc<str> = "k".into();
    assert!(key_table.unblock_from_dead(&name).is_some());

    assert_eq!(asked(&key_table), ["k"]);
    assert!(key_table.unblock_from_dead(&name).is_none());
    let another = DeadBlocker { id: head("another").id, partition: 0 };
    key_table.update_dead(&key("k"), another);
    assert_eq!(key_table.dead_count(), 0, "a late read does not block it again");
}

#[test]
fn many_dead_records_hide_no_other_blocked_key() {
    let key_table = all();
    (0..100).for_each(|n| block_by_dead(&key_table, &format!("k{n}")));
    block(&key_table, "other");

    let shown = key_table.blocked_keys(None, 10);

    let reasons: Vec<BlockReason> = shown.iter().map(|blocked| blocked.reason).collect();
    assert!(reasons.len() == 10 && reasons.contains(&BlockReason::SinkDown), "{reasons:?}");
}

/// The first of them was discarded.
#[test]
fn key_of_two_dead_records_is_named_by_the_one_that_was_read_last() {
    let key_table = go_live();
    block_by_dead(&key_table, "k");
    let second = DeadBlocker { id: head("second").id, partition: 0 };

    key_table.update_dead(&key("k"), second);

    let named = |id: &str| key_table.take_dead(&[head(id).id], 9).0;
    assert_eq!((named("k").len(), named("second").len()), (0, 1));
}

#[test]
fn keys_of_dead_records_beyond_the_limit_are_forgotten_and_reported() {
    let key_table = go_live();
    let dead = |n: usize| {
        let key = n.to_string();
        let dead = DeadBlocker { id: RecordId::Int(n as i64), partition: partition::of_key(&key) };
        (LaneKey::Keyed(key.into()), dead)
    };
    assert!(key_table.block_by_dead((0..dead::MAX_DEAD_BLOCKED).map(dead).collect()));
    assert!(!key_table.counts_are_at_least() && !key_table.is_over_capacity());

    assert!(!key_table.block_by_dead((0..=dead::MAX_DEAD_BLOCKED).map(dead).collect()));

    assert_eq!(key_table.dead_count(), dead::MAX_DEAD_BLOCKED);
    assert!(key_table.counts_are_at_least() && key_table.is_over_capacity());
    // Its last record died, and the scan after that has found nothing else.
    withhold(&key_table, "k", 5);
    assert_eq!(asked(&key_table), ["k"]);
    key_table.finish_blocked_scan(&key("k"), dead(0).1);
    assert_eq!(state_of(&key_table, "k", 6), "waits", "it is not forgotten");
    assert_eq!(asked(&key_table), ["k"]);
    key_table.stop_following();
    key_table.begin_following();
    assert!(key_table.is_over_capacity(), "nothing has changed");
    assert!(key_table.unblock_from_dead(&"0".into()).is_some());
    assert!(key_table.counts_are_at_least(), "others may be missing");
    key_table.has_all_dead();
    assert!(!key_table.counts_are_at_least());
}
