use std::collections::BTreeSet;
use std::time::Duration;

use bson::raw::RawDocumentBuf;
use bson::{Timestamp, doc};

use super::*;
use crate::outbox::position::Position;
use crate::partition;

fn all() -> Hands {
    let hands = Hands::default();
    hands.own(&(0..=255).collect::<Vec<u8>>());
    hands
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

fn wait(reason: HoldReason, name: &str, until: Option<Instant>) -> Wait {
    Wait::new(reason, Blocker::of(&head(name)), until)
}

fn hold(hands: &Hands, name: &str) {
    hands.hold_paused(key(name), wait(HoldReason::SinkPaused, name, None), hands.openings());
}

fn claims(hands: &Hands, name: &str) -> bool {
    hands.claim(&Lane::new(key(name), 0), &head(name))
}

/// Everything that pages from the beginning on are told to pass over, and how many there are.
fn all_pages(hands: &Hands) -> (BTreeSet<String>, usize) {
    let mut seen = BTreeSet::new();
    let mut from = Position::start();
    for pages in 1.. {
        let over = hands.passed_over(&from);
        seen.extend(over.keys.iter().map(|key| key.as_str().unwrap().to_owned()));
        match over.until.as_ref().map(Position::behind).or(from.next_side()) {
            Some(next) => from = next,
            None => return (seen, pages),
        }
    }
    unreachable!("the loop ends by itself");
}

#[test]
fn pages_are_told_of_every_held_key_some_thousand_at_a_time() {
    let hands = all();
    let names: BTreeSet<String> = (0..9_000).map(|n| format!("k-{n}")).collect();
    names.iter().for_each(|name| hold(&hands, name));

    let (seen, pages) = all_pages(&hands);

    assert_eq!(seen, names);
    assert_eq!(pages, 10, "of each side five");
}

#[test]
fn what_is_struck_off_is_passed_over_no_more() {
    let hands = all();
    let lane = Lane::new(key("busy"), 0);
    assert!(hands.claim(&lane, &head("busy")));
    hold(&hands, "held");
    assert!(hands.await_turn(&key("suspect"), Blocker::of(&head("suspect"))));
    assert_eq!(all_pages(&hands).0.len(), 3);

    hands.free(&lane.key);
    hands.free_paused();
    hands.free_waiting(&key("suspect"));

    assert_eq!(all_pages(&hands).0.len(), 0);
    assert!(hands.spoken_for().is_empty());
}

/// Its look saw the sink paused, and is slow to say so: nobody would strike the key off.
#[test]
fn a_key_is_not_held_for_a_sink_that_came_up_meanwhile() {
    let hands = all();
    let as_of = hands.openings();
    hands.free_paused();

    hands.hold_paused(key("late"), wait(HoldReason::SinkPaused, "late", None), as_of);

    assert_eq!(all_pages(&hands).0.len(), 0);
}

#[test]
fn a_wait_ends_when_it_is_due_and_not_before() {
    let hands = all();
    let now = Instant::now();
    let later = now + Duration::from_secs(1);
    for (name, until) in [("later", later), ("now", now)] {
        hands.hold(key(name), wait(HoldReason::NotDue, name, Some(until)));
    }
    hold(&hands, "for ever");

    assert!(hands.free_due(now));
    assert!(!hands.free_due(now));
    assert_eq!(all_pages(&hands).0, BTreeSet::from(["for ever", "later"].map(str::to_owned)));
    assert!(hands.free_due(later));
    assert_eq!(all_pages(&hands).0, BTreeSet::from(["for ever".to_owned()]));
    assert!(!hands.free_due(later + Duration::from_secs(9)));
}

#[test]
fn snapshot_that_shows_a_head_fit_to_go_outranks_what_a_snapshot_can_know() {
    for (reason, outranked) in [
        (HoldReason::NotDue, true),
        (HoldReason::Leased, true),
        (HoldReason::SinkPaused, true),
        (HoldReason::Refused, false),
        (HoldReason::DeadLetter, false),
    ] {
        let hands = all();
        hands.hold(key("k"), wait(reason, "k", None));

        assert_eq!(claims(&hands, "k"), outranked, "{reason:?}");
    }
    let hands = all();
    hands.hold(key("k"), wait(HoldReason::Refused, "another head", None));
    assert!(claims(&hands, "k"), "it was said of another record");
}

#[test]
fn waiting_keys_are_answered_in_parts_and_each_once() {
    let hands = all();
    let names: BTreeSet<String> = (0..25).map(|n| format!("k-{n}")).collect();
    names.iter().for_each(|name| hold(&hands, name));
    assert!(hands.await_turn(&key("suspect"), Blocker::of(&head("suspect"))));
    let written = Wait::new(HoldReason::NotDue, Blocker::written(&head("written")), None);
    hands.hold(key("written"), written);
    assert!(claims(&hands, "busy"));

    let (mut seen, mut from) = (Vec::new(), None);
    loop {
        let (part, next) = hands.waiting(from.as_ref(), 10);
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
fn key_is_freed_from_the_blocker_that_it_waits_for_and_from_no_other() {
    let hands = all();
    hold(&hands, "k");

    assert!(!hands.free_from(&key("k"), &Blocker::of(&head("other"))));
    assert!(hands.free_from(&key("k"), &Blocker::of(&head("k"))));
    assert!(!hands.free_from(&key("k"), &Blocker::of(&head("k"))));
}

#[test]
fn turn_is_not_taken_for_a_record_that_was_freed_or_has_changed() {
    let hands = all();
    let suspect = Blocker::of(&head("k"));
    let lane = Lane::new(key("k"), 0);
    assert!(hands.await_turn(&key("k"), suspect.clone()));

    assert!(!hands.take_turn(&lane, &Blocker::of(&head("other"))));
    assert!(hands.free_from(&key("k"), &suspect));
    assert!(!hands.take_turn(&lane, &suspect));
    assert!(hands.await_turn(&key("k"), suspect.clone()));
    assert!(hands.take_turn(&lane, &suspect));
}

#[test]
fn what_is_in_hand_or_waits_for_its_turn_is_not_held_for_another_reason() {
    let hands = all();
    let lane = Lane::new(key("busy"), 0);
    assert!(hands.claim(&lane, &head("busy")));
    assert!(hands.await_turn(&key("suspect"), Blocker::of(&head("suspect"))));

    hold(&hands, "busy");
    hold(&hands, "suspect");

    assert!(hands.busy(&lane.key).is_some());
    assert_eq!(held_count(&hands), 1);
}

fn held_count(hands: &Hands) -> usize {
    hands.held().iter().map(|(_, count)| count).sum()
}

fn hold_for(hands: &Hands, name: &str, destination: &str) {
    let destination = Address { destination: destination.into(), key: None };
    let head = Blocker::of(&head(name));
    hands.hold(key(name), Wait::for_destination(head, None, "s".into(), destination));
}

#[test]
fn of_each_destination_one_key_is_called_to_probe_those_not_suspected_first() {
    let hands = all();
    for (name, destination) in [("bad", "a"), ("good", "a"), ("late", "a"), ("other", "b")] {
        hold_for(&hands, name, destination);
    }
    let due = |names: &[&str]| -> Vec<Address> {
        let address = |name: &&str| Address { destination: (*name).into(), key: None };
        names.iter().map(address).collect()
    };
    let call = |sink: &str, names: &[&str]| {
        let called = hands.free_for_probes(sink, &due(names), |id| *id == head("bad").id);
        let mut called: Vec<String> =
            called.into_iter().map(|(key, _)| key.as_str().to_owned()).collect();
        called.sort();
        called
    };

    assert!(call("another", &["a", "b"]).is_empty());
    assert_eq!(call("s", &["a", "b", "c"]), ["good", "other"]);
    assert_eq!(call("s", &["a"]), ["late"]);
    assert_eq!(call("s", &["a", "b"]), ["bad"]);
    assert_eq!(held_count(&hands), 0);
}

#[test]
fn a_destination_that_confirms_again_frees_its_own_keys() {
    let hands = all();
    hold_for(&hands, "mine", "a");
    hold_for(&hands, "other", "b");
    let a = Address { destination: "a".into(), key: None };

    hands.free_destination("another", &a);
    assert_eq!(held_count(&hands), 2);
    hands.free_destination("s", &a);

    assert_eq!(held_count(&hands), 1);
    assert!(claims(&hands, "mine"));
}

/// A book while the stream carries the records.
fn live() -> Hands {
    let hands = all();
    hands.follow();
    hands.live();
    hands
}

fn at(second: u32) -> Timestamp {
    Timestamp { time: second, increment: 1 }
}

/// A read of now that shows this moment.
fn read(hands: &Hands, second: u32) -> Read {
    Read { at: at(second), begun: hands.begun() }
}

fn withhold(hands: &Hands, name: &str, second: u32) {
    hands.withhold(key(name), 0, head(name).id, at(second));
}

/// What is known of a key when its next record becomes pending.
fn known(hands: &Hands, name: &str, second: u32) -> &'static str {
    let mut record = head(name);
    record.id = RecordId::String(format!("{name}, another"));
    match hands.known(&record, at(second)) {
        Known::Free => "free",
        Known::Busy(_) => "busy",
        Known::Covered => "covered",
        Known::Waits => "waits",
    }
}

fn asked(hands: &Hands) -> Vec<String> {
    let asked = hands.ask_unscanned(10).into_iter();
    asked.map(|(key, ..)| key.as_str().to_owned()).collect()
}

/// A complete lane for a key of which nothing else is known.
fn take(hands: &Hands, name: &str) -> Arc<Lane> {
    let lane = Lane::new(key(name), 0);
    lane.begin(&[head(name)], true);
    lane.queued();
    assert!(hands.claim_free(&lane, &head(name)));
    lane
}

#[test]
fn a_key_is_free_again_when_a_complete_lane_has_ended_and_else_it_is_to_be_read() {
    for (is_complete, expected) in [(true, "free"), (false, "waits")] {
        let hands = live();
        let lane = take(&hands, "k");
        assert_eq!(known(&hands, "k", 1), "busy");

        hands.end(&lane, is_complete);

        assert_eq!(known(&hands, "k", 2), expected);
        assert_eq!(asked(&hands).len(), usize::from(!is_complete));
    }
}

/// With its own `_id`, while the one before is in hand.
#[test]
fn a_record_that_was_deleted_and_inserted_once_more_is_not_taken_for_the_one_in_hand() {
    let hands = live();
    take(&hands, "k");

    assert!(matches!(hands.known(&head("k"), at(9)), Known::Waits));
}

/// Two records of one transaction in different partitions: the event of the second came while the key was
/// read, in the partition of the first alone.
#[test]
fn a_read_that_has_not_looked_into_all_partitions_of_a_key_says_nothing() {
    let own = partition::of_key("k");
    let [one, two] = [own.wrapping_add(1), own.wrapping_add(2)];
    for comes_before in [true, false] {
        let hands = live();
        hands.withhold(key("k"), one, head("k").id, at(5));
        assert_eq!(asked(&hands), ["k"]);
        let second = || hands.withhold(key("k"), two, head("second").id, at(5));
        if comes_before {
            second();
        }
        let read = read(&hands, 9);
        if !comes_before {
            second();
        }

        hands.scanned(&key("k"), Some(read));

        assert_eq!(known(&hands, "k", 10), if comes_before { "free" } else { "waits" });
    }
}

#[test]
fn a_key_is_read_where_its_own_records_lie_whatever_partition_its_blocker_was_in() {
    let hands = live();
    let own = partition::of_key("k");
    let foreign = own.wrapping_add(1);
    hands.own(&[own]);
    let dead = Dead { id: head("dead").id, partition: foreign };
    hands.note_blocked(vec![(key("k"), dead)]);

    hands.free(&key("k"));

    assert_eq!(asked(&hands), ["k"]);
}

#[test]
fn after_an_event_that_was_not_taken_a_lane_takes_no_other_and_its_key_is_read() {
    let hands = live();
    let lane = take(&hands, "k");

    withhold(&hands, "k", 5);

    assert!(!lane.offer(&head("next").id));
    hands.end(&lane, true);
    assert_eq!(asked(&hands), ["k"]);
}

#[test]
fn a_read_counts_where_it_shows_what_was_withheld() {
    let hands = live();
    withhold(&hands, "k", 5);
    assert_eq!(asked(&hands), ["k"]);
    assert!(asked(&hands).is_empty(), "one read at a time");

    hands.scanned(&key("k"), Some(read(&hands, 4)));
    assert_eq!(known(&hands, "k", 6), "waits");
    assert_eq!(asked(&hands), ["k"], "again");
    hands.scanned(&key("k"), Some(read(&hands, 5)));

    assert_eq!(known(&hands, "k", 5), "covered", "its read has shown that");
    assert_eq!(known(&hands, "k", 6), "free");
    hands.passed(at(6));
    assert_eq!(known(&hands, "k", 5), "free", "the stream has passed its read");
}

#[test]
fn a_read_that_has_failed_is_made_again() {
    let hands = live();
    withhold(&hands, "k", 5);
    assert_eq!(asked(&hands), ["k"]);

    hands.scanned(&key("k"), None);

    assert_eq!(asked(&hands), ["k"]);
}

/// The event came between the snapshot and the claim.
#[test]
fn a_lane_of_a_read_is_incomplete_where_an_event_came_since() {
    for (event, takes) in [(5, true), (6, false)] {
        let hands = live();
        withhold(&hands, "k", event);
        assert_eq!(asked(&hands), ["k"]);
        let lane = Lane::new(key("k"), 0);
        lane.begin(&[head("k")], true);

        assert!(hands.claim_scanned(&lane, &head("k"), read(&hands, 5)));
        lane.queued();

        assert_eq!(lane.offer(&head("next").id), takes, "{event}");
        hands.end(&lane, takes);
        assert_eq!(asked(&hands).is_empty(), takes);
    }
}

/// What a read has found is entered in the book before the driver sees it. An event that the driver
/// handles between the two must not be leased first.
#[test]
fn nothing_is_put_behind_records_that_are_not_queued_to_be_leased() {
    for (is_queued, takes) in [(true, true), (false, false)] {
        let hands = live();
        withhold(&hands, "k", 5);
        assert_eq!(asked(&hands), ["k"]);
        let lane = Lane::new(key("k"), 0);
        lane.begin(&[head("k")], true);
        assert!(hands.claim_scanned(&lane, &head("k"), read(&hands, 5)));
        if is_queued {
            lane.queued();
        }

        assert_eq!(lane.offer(&head("next").id), takes);
    }
}

#[test]
fn a_wait_that_is_over_leads_to_a_read_and_holds_events_back_until_then() {
    let hands = live();
    hands.hold(key("k"), wait(HoldReason::NotDue, "k", Some(Instant::now())));
    assert_eq!(known(&hands, "k", 1), "waits");
    assert!(asked(&hands).is_empty());

    assert!(hands.free_due(Instant::now()));

    assert_eq!(known(&hands, "k", 2), "waits");
    let lane = Lane::new(key("k"), 0);
    assert!(!hands.claim_free(&lane, &head("k")));
    assert_eq!(asked(&hands), ["k"]);
}

#[test]
fn what_is_known_is_forgotten_when_rotations_find_the_records_again() {
    let hands = live();
    let lane = take(&hands, "busy");
    withhold(&hands, "unscanned", 5);
    hands.note_blocked(vec![(key("blocked"), Dead { id: head("dead").id, partition: 0 })]);
    hold(&hands, "paused");
    assert!(hands.life().is_some());

    hands.unfollow();

    assert_eq!(hands.life(), None);
    assert_eq!(hands.unscanned(), 0);
    assert!(!lane.offer(&head("next").id));
    assert_eq!(all_pages(&hands).0.len(), 2, "the one in hand, and the one that waits");
}

/// It was begun before rotations found the records for a while, and ended after.
#[test]
fn a_read_of_an_earlier_period_says_nothing() {
    let hands = live();
    withhold(&hands, "k", 5);
    let early = read(&hands, 9);
    hands.unfollow();
    hands.follow();
    withhold(&hands, "k", 6);
    let lane = Lane::new(key("k"), 0);
    lane.begin(&[head("k")], true);

    hands.scanned(&key("k"), Some(early));
    assert_eq!(known(&hands, "k", 10), "waits");
    assert!(hands.claim_scanned(&lane, &head("k"), early));
    lane.queued();

    assert!(!lane.offer(&head("next").id));
}

/// As after an election: the new primary does not know yet what the stream has shown.
#[test]
fn a_read_counts_where_it_shows_what_the_stream_has_shown_before() {
    let hands = live();
    let lane = take(&hands, "k");
    hands.passed(at(7));
    hands.end(&lane, false);

    hands.scanned(&key("k"), Some(read(&hands, 6)));
    assert_eq!(known(&hands, "k", 8), "waits");
    hands.scanned(&key("k"), Some(read(&hands, 7)));

    assert_eq!(known(&hands, "k", 8), "free");
}

#[test]
fn a_key_that_was_met_in_another_partition_is_read_there_too() {
    let hands = live();
    let own = partition::of_key("k");
    let other = own.wrapping_add(1);

    hands.withhold(key("k"), other, head("k").id, at(1));

    let mut places = [own, other];
    places.sort_unstable();
    assert_eq!(hands.places_of(&key("k")), places);
}
