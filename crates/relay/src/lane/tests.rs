use std::time::Duration;

use bson::doc;
use bson::raw::RawDocumentBuf;
use futures_util::FutureExt as _;
use postrider_outbox::ids::LeaseId;
use postrider_store::boot_instant::BootInstant;

use super::*;
use crate::lease::Lease;

fn id(number: i64) -> RecordId {
    RecordId::Int(number)
}

fn record(number: i64) -> Record {
    Record::read(&RawDocumentBuf::try_from(&doc! { "_id": number, "key": "k" }).unwrap())
}

fn records(numbers: impl IntoIterator<Item = i64>) -> Vec<Record> {
    numbers.into_iter().map(record).collect()
}

fn held(numbers: impl IntoIterator<Item = i64>) -> Vec<LeasedRecord> {
    let lease = Lease::new(LeaseId::fresh(), Duration::from_secs(30), BootInstant::now());
    lease.hold(records(numbers))
}

fn lane() -> Arc<Lane> {
    Lane::new(LaneKey::Keyed("k".into()), 7)
}

/// A lane that expects the lease of these records, which are all that its key has pending.
fn begun(numbers: impl IntoIterator<Item = i64>) -> Arc<Lane> {
    let lane = lane();
    lane.begin(&records(numbers), true);
    lane.queued();
    lane
}

/// The same lane after the lease.
fn holding(numbers: std::ops::Range<i64>) -> Arc<Lane> {
    let lane = begun(numbers.clone());
    let expected: Vec<RecordId> = numbers.clone().map(id).collect();
    lane.add_expected(held(numbers), &expected, Some(false));
    assert!(is_changed(&lane), "its worker is to know");
    lane
}

/// Returns whether its worker was notified since the last call.
fn is_changed(lane: &Lane) -> bool {
    lane.changed().now_or_never().is_some()
}

/// Returns the next step, with room to request more when so many are unsettled: the record's id,
/// `Await` or `End`, and whether more is requested.
fn next(lane: &Lane, share: Option<usize>) -> (Result<RecordId, &'static str>, bool) {
    let (next, asks) = lane.next(share);
    let step = match next {
        Next::Publish(held) => Ok(held.record.id),
        Next::Await => Err("await"),
        Next::End => Err("end"),
    };
    (step, asks)
}

#[test]
fn lane_publishes_in_order_and_ends_when_all_are_settled() {
    let lane = holding(0..3);

    for number in 0..3 {
        assert_eq!(next(&lane, None), (Ok(id(number)), false));
    }
    assert_eq!(next(&lane, None), (Err("await"), false));
    for number in 0..2 {
        lane.settled(&id(number));
        assert!(!is_changed(&lane), "one is left");
    }
    assert!(!lane.is_finished() && !lane.is_closed());
    lane.settled(&id(2));

    assert!(is_changed(&lane) && lane.is_finished());
    assert_eq!(next(&lane, None), (Err("end"), false));
    assert!(lane.is_closed(), "an end is the end");
    assert!(lane.close(), "nothing of the key is pending");
}

#[test]
fn record_put_back_is_next() {
    let lane = holding(0..2);
    let (Next::Publish(first), _) = lane.next(None) else { panic!("the first record") };

    lane.put_back(*first);

    assert_eq!(next(&lane, None).0, Ok(id(0)));
    assert_eq!(next(&lane, None).0, Ok(id(1)));
}

#[test]
fn unpublished_records_are_taken_in_order() {
    let lane = holding(0..3);
    next(&lane, None).0.unwrap();

    let waiting: Vec<RecordId> =
        lane.take_waiting().into_iter().map(|held| held.record.id).collect();

    assert_eq!(waiting, [id(1), id(2)]);
    assert!(lane.take_waiting().is_empty());
    assert_eq!(lane.in_flight().len(), 3, "until each is settled");
    assert!(!lane.is_finished());
}

#[test]
fn complete_lane_accepts_another_record() {
    let lane = begun([0]);

    assert!(lane.offer(&record(1)), "while its first one is being leased");
    assert!(!lane.offer(&record(1)), "not twice");
    assert!(lane.expects(&id(0)) && lane.expects(&id(1)) && !lane.expects(&id(2)));
    lane.add_expected(held([0]), &[id(0)], Some(false));
    lane.add_expected(held([1]), &[id(1)], None);
    assert!(lane.offer(&record(2)), "while they are in hand");
    assert!(lane.expects(&id(0)), "in hand");
    lane.add_expected(held([2]), &[id(2)], None);

    for number in 0..3 {
        assert_eq!(next(&lane, None).0, Ok(id(number)));
        lane.settled(&id(number));
        assert!(!lane.expects(&id(number)), "settled");
    }
    assert!(lane.close());
}

/// A refused offer makes the lane incomplete: a later record would overtake the refused one.
fn assert_refuses(lane: &Lane, number: i64) {
    assert!(!lane.offer(&record(number)));
    assert!(!lane.expects(&id(number)));
    lane.take_waiting();
    lane.settled(&id(0));
    assert!(!lane.close(), "of its key something is pending");
}

#[test]
fn incomplete_lane_refuses_records() {
    let lane = holding(0..1);
    lane.leave_incomplete();
    assert_refuses(&lane, 1);

    let lane = self::lane();
    lane.begin(&records([0]), false);
    lane.queued();
    lane.add_expected(held([0]), &[id(0)], Some(false));
    assert_refuses(&lane, 1);
}

#[test]
fn ended_lane_refuses_records() {
    let lane = holding(0..1);
    assert!(!lane.close(), "its record is in hand");
    assert!(lane.is_closed());
    assert_refuses(&lane, 1);
}

#[test]
fn unqueued_lane_refuses_records() {
    let lane = lane();
    lane.begin(&records([0]), true);
    assert!(!lane.offer(&record(1)));

    lane.queued();

    assert!(!lane.offer(&record(2)), "the one before it was refused");
}

#[test]
fn full_lane_refuses_records() {
    let most = i64::try_from(Settings::WHOLE).unwrap();
    let lane = holding(0..most - 1);
    assert!(lane.offer(&record(most)), "one fits");

    assert!(!lane.offer(&record(most + 1)), "one in hand or expected too many");

    for number in 0..most - 1 {
        lane.settled(&id(number));
    }
    assert!(!lane.offer(&record(most + 2)), "behind one that was refused");
}

#[test]
fn partial_lease_leaves_a_gap() {
    let lane = begun([0, 1]);
    lane.add_expected(held([0]), &[id(0), id(1)], Some(true));

    assert!(lane.is_closed(), "nothing may come behind the gap");
    assert!(!lane.expects(&id(1)), "it is not to be had");
    assert_eq!(next(&lane, None).0, Ok(id(0)));
    lane.settled(&id(0));
    assert!(lane.is_finished());
    assert!(!lane.close(), "the other one is pending");
}

#[test]
fn complete_lease_leaves_no_gap() {
    let lane = holding(0..2);

    assert!(!lane.is_closed());
    assert_eq!(lane.single(), id(0), "the first of all");
    lane.settled(&id(0));
    lane.settled(&id(1));
    assert!(!lane.close(), "they wait to be published");
    lane.take_waiting();
    assert!(lane.close());
}

#[test]
fn lane_stays_incomplete_while_records_are_in_flight_or_wait() {
    let lane = holding(0..1);
    next(&lane, None).0.unwrap();
    assert!(!lane.close(), "in hand");
    lane.settled(&id(0));
    assert!(lane.close());

    let lane = holding(0..1);
    lane.settled(&id(0));
    assert!(!lane.close(), "waits");
}

#[test]
fn lane_does_not_end_while_a_lease_is_under_way() {
    let lane = begun([0]);
    assert!(!lane.is_finished());
    assert_eq!(next(&lane, None), (Err("await"), false));
    assert!(!lane.is_closed());
}

/// Half of the last records are published and few are unsettled, so more are requested.
#[test]
fn refill_is_requested_when_half_is_left_and_few_unsettled() {
    let lane = lane();
    lane.begin(&records([0]), true);
    lane.queued();
    lane.add_expected(held([0, 1, 2, 3]), &[id(0)], Some(true));
    assert!(is_changed(&lane));

    assert_eq!(next(&lane, Some(2)), (Ok(id(0)), false), "all four wait");
    assert_eq!(next(&lane, Some(2)), (Ok(id(1)), false), "three of four wait");
    assert_eq!(next(&lane, None), (Ok(id(2)), false), "there is no room");
    assert_eq!(next(&lane, Some(2)), (Ok(id(3)), false), "three are unsettled");
    lane.settled(&id(0));
    assert!(is_changed(&lane), "it may ask for more");
    assert_eq!(next(&lane, Some(2)), (Err("await"), false), "three are unsettled");
    lane.settled(&id(1));
    assert_eq!(next(&lane, Some(2)), (Err("await"), true));
    assert_eq!(next(&lane, Some(2)), (Err("await"), false), "once");
    assert!(!lane.offer(&record(9)), "what the refill reads is not known");
}

#[test]
fn refill_is_requested_when_exactly_half_is_left() {
    let lane = lane();
    lane.add(held([0, 1, 2, 3]), true);
    for number in 0..2 {
        next(&lane, None).0.unwrap();
        lane.settled(&id(number));
    }

    // Two of four wait, nothing is unsettled.
    assert_eq!(next(&lane, Some(0)), (Ok(id(2)), true));
}

#[test]
fn refill_is_not_requested_when_key_has_no_more() {
    let lane = lane();
    lane.add(held([0]), false);
    assert!(is_changed(&lane));

    assert_eq!(next(&lane, Some(9)), (Ok(id(0)), false));
    assert_eq!(next(&lane, Some(9)), (Err("await"), false));
    lane.settled(&id(0));
    assert_eq!(next(&lane, Some(9)), (Err("end"), false));
}

#[test]
fn refill_is_added_behind_and_allows_the_next_refill() {
    let lane = begun([0]);
    lane.add_expected(held([0]), &[id(0)], Some(true));
    assert!(is_changed(&lane));
    assert_eq!(next(&lane, Some(9)), (Ok(id(0)), false), "it waits itself");
    assert_eq!(next(&lane, Some(9)), (Err("await"), true));

    lane.add(held([1, 2]), true);

    assert!(is_changed(&lane));
    assert_eq!(next(&lane, Some(9)), (Ok(id(1)), false));
    assert_eq!(next(&lane, Some(9)), (Ok(id(2)), true));
    lane.add(held([]), false);
    [0, 1, 2].iter().for_each(|number| lane.settled(&id(*number)));
    assert_eq!(next(&lane, Some(9)), (Err("end"), false));
    assert!(!lane.close(), "a refill's lane is not known to be complete");
}

#[test]
fn lane_does_not_end_during_its_refill() {
    let lane = lane();
    lane.add(held([0]), true);
    next(&lane, None).0.unwrap();
    assert_eq!(next(&lane, Some(9)), (Err("await"), true));

    lane.settled(&id(0));

    assert!(!lane.is_finished(), "an answer is to come");
    assert_eq!(next(&lane, Some(9)), (Err("await"), false));
    lane.add(Vec::new(), false);
    assert!(lane.is_finished());
    assert_eq!(next(&lane, Some(9)), (Err("end"), false));
}

#[test]
fn lane_notifies_worker_only_when_it_can_continue() {
    let lane = lane();
    lane.add(held([0, 1, 2]), true);
    assert!(is_changed(&lane));
    next(&lane, None).0.unwrap();
    lane.settled(&id(0));
    assert!(!is_changed(&lane), "two wait");
    next(&lane, None).0.unwrap();
    assert_eq!(next(&lane, Some(9)), (Ok(id(2)), true));
    lane.settled(&id(1));
    assert!(!is_changed(&lane), "it has asked already");
    lane.settled(&id(2));
    assert!(is_changed(&lane), "nothing is in hand");
}

/// A refill's snapshot may be older than the settlement of a record, and show the record again.
#[test]
fn settled_records_are_remembered_until_the_refill_arrives() {
    let lane = lane();
    lane.add(held([0, 1, 2]), true);
    next(&lane, None).0.unwrap();
    lane.settled(&id(0));
    assert!(lane.has(&record(0)) == InLane::Absent && lane.has(&record(1)) == InLane::InFlight);
    assert_eq!(lane.had_count(), 2);

    next(&lane, None).0.unwrap();
    assert_eq!(next(&lane, Some(9)), (Ok(id(2)), true));
    lane.settled(&id(1));

    assert!(
        lane.has(&record(1)) == InLane::InFlight
            && lane.has(&record(2)) == InLane::InFlight
            && lane.has(&record(3)) == InLane::Absent
    );
    assert_eq!((lane.had_count(), lane.in_flight()), (2, vec![id(2)]));
    lane.add(Vec::new(), false);
    assert!(lane.has(&record(1)) == InLane::Absent);
    assert_eq!(lane.had_count(), 1);
}

/// It was replaced, or deleted and inserted again: the lane delivers another document.
#[test]
fn lane_has_only_the_document_that_was_leased() {
    let replacement = |number: i64| {
        let seq = bson::Timestamp { time: 9, increment: 9 };
        let document = doc! { "_id": number, "key": "k", "seq": seq };
        Record::read(&RawDocumentBuf::try_from(&document).unwrap())
    };
    let lane = lane();
    lane.add(held([0, 1]), true);
    next(&lane, None).0.unwrap();
    next(&lane, Some(9)).0.unwrap();
    lane.settled(&id(0));

    assert_eq!(lane.has(&replacement(0)), InLane::Absent, "it may go");
    assert_eq!(lane.has(&replacement(1)), InLane::Replaced, "its own lease would end the other's");
    let lane = begun([0]);
    assert_eq!(lane.has(&replacement(0)), InLane::Replaced);
}

#[test]
fn record_being_leased_counts_as_had() {
    let lane = begun([0, 1]);
    assert!(
        lane.has(&record(0)) == InLane::InFlight
            && lane.has(&record(1)) == InLane::InFlight
            && lane.has(&record(2)) == InLane::Absent
    );
    assert_eq!((lane.had_count(), lane.in_flight()), (2, Vec::new()));

    lane.add_expected(held([0, 1]), &[id(0), id(1)], Some(false));
    assert!(lane.offer(&record(2)));
    assert_eq!((lane.had_count(), lane.in_flight().len()), (3, 2));
}

#[test]
fn lane_is_over_when_revoked_refused_or_stopped() {
    let stop = CancellationToken::new();
    let over = |lane: &Lane| (lane.must_end(&stop), lane.is_over(&stop));
    let is_notified = |lane: &Lane| lane.over(&stop).now_or_never().is_some();
    let lanes = [lane(), lane(), lane()];
    assert!(lanes.iter().all(|lane| over(lane) == (false, false) && !is_notified(lane)));

    lanes[0].revoke();
    lanes[1].refuse();

    assert_eq!(over(&lanes[0]), (true, true));
    assert_eq!(over(&lanes[1]), (false, true), "its outcomes are still to be written");
    assert!(is_changed(&lanes[0]) && is_changed(&lanes[1]));
    assert!(is_notified(&lanes[0]) && is_notified(&lanes[1]) && !is_notified(&lanes[2]));
    assert!(lanes[1].refused().now_or_never().is_some());
    assert!(lanes[0].refused().now_or_never().is_none());
    stop.cancel();
    assert_eq!(over(&lanes[2]), (true, true));
    assert!(is_notified(&lanes[2]));
}

#[test]
fn waiter_is_notified_when_the_lane_is_over() {
    let stop = CancellationToken::new();
    let lane = lane();
    let mut over = Box::pin(lane.over(&stop));
    assert!((&mut over).now_or_never().is_none());
    lane.add(held([0]), false);
    assert!((&mut over).now_or_never().is_none(), "a change is not the end");

    lane.revoke();

    assert!(over.now_or_never().is_some());
}

#[test]
fn parked_lane_takes_no_room_until_unparked() {
    let load = InFlight::default();
    let lane = holding(0..3);
    let _publishing = load.publishing();
    records(0..3).iter().for_each(|record| load.add(record));
    assert_eq!((load.moving(), load.publishing_lanes()), (3, 1));

    let parked = lane.park(&load);

    assert!(parked.is_some());
    assert_eq!((load.moving(), load.publishing_lanes()), (0, 0));
    assert!(lane.park(&load).is_none(), "once");
    assert_eq!((load.moving(), load.publishing_lanes()), (0, 0));
    drop(parked);
    assert_eq!((load.moving(), load.publishing_lanes()), (3, 1));
    assert!(lane.park(&load).is_some(), "and again");
}

#[test]
fn quarantine_lane_holds_one_record() {
    let lane = Lane::quarantined(LaneKey::Keyed("k".into()), 9);

    assert_eq!((lane.is_quarantined, lane.partition), (true, 9));
    assert!(!self::lane().is_quarantined);
    assert_eq!(lane.single(), RecordId::from(bson::Bson::Null), "it has none yet");
}
