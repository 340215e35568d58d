use std::time::Duration;

use bson::doc;
use bson::raw::RawDocumentBuf;
use futures_util::FutureExt as _;
use postrider_outbox::ids::LeaseId;
use postrider_store::moment::Moment;

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
    let lease = Lease::new(LeaseId::fresh(), Duration::from_secs(30), Moment::now());
    lease.hold(records(numbers))
}

fn lane() -> Arc<Lane> {
    Lane::new(LaneKey::Keyed("k".into()), 7)
}

/// A lane to which these, all that its key has pending, are being leased.
fn begun(numbers: impl IntoIterator<Item = i64>) -> Arc<Lane> {
    let lane = lane();
    lane.begin(&records(numbers), true);
    lane.queued();
    lane
}

/// The same, and they are leased.
fn holding(numbers: std::ops::Range<i64>) -> Arc<Lane> {
    let lane = begun(numbers.clone());
    let expected: Vec<RecordId> = numbers.clone().map(id).collect();
    lane.add_expected(held(numbers), &expected, Some(false));
    assert!(is_changed(&lane), "its worker is to know");
    lane
}

/// Whether its worker was told since this was last asked.
fn is_changed(lane: &Lane) -> bool {
    lane.changed().now_or_never().is_some()
}

/// The next step, with room to ask for more when so many are unsettled: the record's id, `Await` or
/// `End`, and whether more is asked for.
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
fn records_are_published_in_their_order_and_the_end_comes_when_all_are_settled() {
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
fn a_record_that_is_put_back_is_the_next_one() {
    let lane = holding(0..2);
    let (Next::Publish(first), _) = lane.next(None) else { panic!("the first record") };

    lane.put_back(*first);

    assert_eq!(next(&lane, None).0, Ok(id(0)));
    assert_eq!(next(&lane, None).0, Ok(id(1)));
}

#[test]
fn what_was_not_published_is_taken_in_its_order() {
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
fn a_complete_lane_takes_one_more() {
    let lane = begun([0]);

    assert!(lane.offer(&id(1)), "while its first one is being leased");
    assert!(!lane.offer(&id(1)), "not twice");
    assert!(lane.expects(&id(0)) && lane.expects(&id(1)) && !lane.expects(&id(2)));
    lane.add_expected(held([0]), &[id(0)], Some(false));
    lane.add_expected(held([1]), &[id(1)], None);
    assert!(lane.offer(&id(2)), "while they are in hand");
    assert!(lane.expects(&id(0)), "in hand");
    lane.add_expected(held([2]), &[id(2)], None);

    for number in 0..3 {
        assert_eq!(next(&lane, None).0, Ok(id(number)));
        lane.settled(&id(number));
        assert!(!lane.expects(&id(number)), "settled");
    }
    assert!(lane.close());
}

/// What an offer is refused for ends the lane's being complete: what comes later would overtake.
fn assert_refuses(lane: &Lane, number: i64) {
    assert!(!lane.offer(&id(number)));
    assert!(!lane.expects(&id(number)));
    lane.take_waiting();
    lane.settled(&id(0));
    assert!(!lane.close(), "of its key something is pending");
}

#[test]
fn a_lane_that_is_incomplete_takes_no_other() {
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
fn a_lane_that_has_ended_takes_no_other() {
    let lane = holding(0..1);
    assert!(!lane.close(), "its record is in hand");
    assert!(lane.is_closed());
    assert_refuses(&lane, 1);
}

#[test]
fn a_lane_that_is_about_to_begin_takes_no_other() {
    let lane = lane();
    lane.begin(&records([0]), true);
    assert!(!lane.offer(&id(1)));

    lane.queued();

    assert!(!lane.offer(&id(2)), "the one before it was refused");
}

#[test]
fn a_full_lane_takes_no_other() {
    let most = i64::try_from(Settings::WHOLE).unwrap();
    let lane = holding(0..most - 1);
    assert!(lane.offer(&id(most)), "one fits");

    assert!(!lane.offer(&id(most + 1)), "one in hand or expected too many");

    for number in 0..most - 1 {
        lane.settled(&id(number));
    }
    assert!(!lane.offer(&id(most + 2)), "behind one that was refused");
}

#[test]
fn a_lease_that_got_fewer_leaves_a_gap() {
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
fn a_lease_that_got_all_leaves_no_gap() {
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
fn a_lane_is_closed_to_its_key_while_anything_is_in_hand_or_waits() {
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
fn what_a_lease_is_under_way_for_is_no_end() {
    let lane = begun([0]);
    assert!(!lane.is_finished());
    assert_eq!(next(&lane, None), (Err("await"), false));
    assert!(!lane.is_closed());
}

/// Half of what came last is published, so the next ones are asked for, while few are unsettled.
#[test]
fn more_is_asked_for_when_half_is_left_and_few_are_unsettled() {
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
    assert!(!lane.offer(&id(9)), "what the refill reads is not known");
}

#[test]
fn more_is_asked_for_with_half_of_them_waiting() {
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
fn nothing_is_asked_for_where_the_key_has_no_more() {
    let lane = lane();
    lane.add(held([0]), false);
    assert!(is_changed(&lane));

    assert_eq!(next(&lane, Some(9)), (Ok(id(0)), false));
    assert_eq!(next(&lane, Some(9)), (Err("await"), false));
    lane.settled(&id(0));
    assert_eq!(next(&lane, Some(9)), (Err("end"), false));
}

#[test]
fn a_refill_is_put_behind_the_others_and_the_next_one_may_be_asked_for() {
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
fn a_lane_does_not_end_under_its_refill() {
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
fn only_what_lets_it_go_on_is_news() {
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

/// A refill's snapshot may be from before a record was settled, and shows it once more.
#[test]
fn what_was_settled_since_a_refill_was_asked_for_is_known_until_it_came() {
    let lane = lane();
    lane.add(held([0, 1, 2]), true);
    next(&lane, None).0.unwrap();
    lane.settled(&id(0));
    assert!(!lane.had(&record(0)) && lane.had(&record(1)));
    assert_eq!(lane.had_count(), 2);

    next(&lane, None).0.unwrap();
    assert_eq!(next(&lane, Some(9)), (Ok(id(2)), true));
    lane.settled(&id(1));

    assert!(lane.had(&record(1)) && lane.had(&record(2)) && !lane.had(&record(3)));
    assert_eq!((lane.had_count(), lane.in_flight()), (2, vec![id(2)]));
    lane.add(Vec::new(), false);
    assert!(!lane.had(&record(1)));
    assert_eq!(lane.had_count(), 1);
}

#[test]
fn what_is_being_leased_counts_as_had() {
    let lane = begun([0, 1]);
    assert!(lane.had(&record(0)) && lane.had(&record(1)) && !lane.had(&record(2)));
    assert_eq!((lane.had_count(), lane.in_flight()), (2, Vec::new()));

    lane.add_expected(held([0, 1]), &[id(0), id(1)], Some(false));
    assert!(lane.offer(&id(2)));
    assert_eq!((lane.had_count(), lane.in_flight().len()), (3, 2));
}

#[test]
fn a_lane_is_over_when_it_is_revoked_refused_or_the_relay_stops() {
    let stop = CancellationToken::new();
    let over = |lane: &Lane| (lane.must_end(&stop), lane.is_over(&stop));
    let is_told = |lane: &Lane| lane.over(&stop).now_or_never().is_some();
    let lanes = [lane(), lane(), lane()];
    assert!(lanes.iter().all(|lane| over(lane) == (false, false) && !is_told(lane)));

    lanes[0].revoke();
    lanes[1].refuse();

    assert_eq!(over(&lanes[0]), (true, true));
    assert_eq!(over(&lanes[1]), (false, true), "its outcomes are still to be written");
    assert!(is_changed(&lanes[0]) && is_changed(&lanes[1]));
    assert!(is_told(&lanes[0]) && is_told(&lanes[1]) && !is_told(&lanes[2]));
    assert!(lanes[1].refused().now_or_never().is_some());
    assert!(lanes[0].refused().now_or_never().is_none());
    stop.cancel();
    assert_eq!(over(&lanes[2]), (true, true));
    assert!(is_told(&lanes[2]));
}

#[test]
fn whoever_waits_for_its_end_is_told_while_waiting() {
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
fn a_parked_lane_takes_no_room_until_it_goes_on() {
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
fn one_record_may_go_alone() {
    let lane = Lane::alone(LaneKey::Keyed("k".into()), 9);

    assert_eq!((lane.alone, lane.partition), (true, 9));
    assert!(!self::lane().alone);
    assert_eq!(lane.single(), RecordId::from(bson::Bson::Null), "it has none yet");
}
