use bson::raw::RawDocumentBuf;
use bson::{Bson, Document, doc};
use postrider_outbox::ids::InstanceId;
use proptest::prelude::*;

use super::*;

const NOW: DateTime = DateTime::from_millis(1_000_000);
const BEFORE: DateTime = DateTime::from_millis(999_000);
const LATER: DateTime = DateTime::from_millis(1_001_000);
const LANE_CAP: usize = 4;
const MAX_ATTEMPTS: u32 = 10;

fn id(number: i64) -> RecordId {
    RecordId::Int(number)
}

fn ids(records: &[Record]) -> Vec<RecordId> {
    records.iter().map(|record| record.id.clone()).collect()
}

/// A record of `key` that may go; `number` is its `_id` and its place in the key.
fn sound(key: &str, number: i64) -> Document {
    let increment = u32::try_from(number).unwrap() + 1;
    doc! {
        "_id": number,
        "key": key,
        "seq": Bson::Timestamp(Timestamp { time: 1, increment }),
        "partition": 7,
    }
}

fn with(mut document: Document, fields: Document) -> Document {
    document.extend(fields);
    document
}

fn leased(document: Document, until: DateTime) -> Document {
    let lease = Bson::from(postrider_outbox::ids::LeaseId::fresh());
    with(document, doc! { "leaseId": lease, "leaseUntil": until })
}

/// A record of which this many leases ended without an outcome; the last lease is still present.
fn crashed(document: Document, crashes: i32) -> Document {
    let counts = doc! { "attempt": crashes, "leaseCrashes": crashes - 1 };
    leased(with(document, counts), BEFORE)
}

fn read(document: Document) -> Record {
    Record::read(&RawDocumentBuf::try_from(&document).unwrap())
}

fn keyed(key: &str) -> LaneKey {
    LaneKey::Keyed(key.into())
}

/// What a test knows in addition to the records. By default all sinks are up and nothing is in
/// flight.
#[derive(Clone, Debug, Default)]
struct KeyState {
    misplaced: HashMap<LaneKey, Option<Timestamp>>,
    blocked: HashSet<LaneKey>,
    alone: HashSet<RecordId>,
    in_flight: HashSet<RecordId>,
    /// Those of which the lane has an earlier document.
    replaced: HashSet<RecordId>,
    taken: HashSet<LaneKey>,
    down: HashSet<RecordId>,
    dead_owners: HashSet<InstanceId>,
}

impl KeyState {
    fn plan(&self, records: Vec<Record>) -> Plan {
        let input = PlanInput {
            now: NOW,
            lane_cap: LANE_CAP,
            whole: LANE_CAP + 1,
            max_attempts: MAX_ATTEMPTS,
            misplaced: self.misplaced.clone(),
            blocked: self.blocked.clone(),
            must_be_isolated: &|id| self.alone.contains(id),
            taken: self.taken.clone(),
            is_owner_dead: &|record| {
                record.lease_owner.is_some_and(|owner| self.dead_owners.contains(&owner))
            },
            in_lane: &|record| {
                if self.replaced.contains(&record.id) {
                    InLane::Replaced
                } else if self.in_flight.contains(&record.id) {
                    InLane::InFlight
                } else {
                    InLane::Absent
                }
            },
            availability: &|record| {
                if self.down.contains(&record.id) {
                    Availability::Down(BlockReason::SinkDown)
                } else {
                    Availability::Available
                }
            },
        };
        plan(records, &input)
    }

    fn plan_of(&self, documents: impl IntoIterator<Item = Document>) -> Plan {
        self.plan(documents.into_iter().map(read).collect())
    }
}

/// The ids of the run of `key`; empty if there is none.
fn run_of(plan: &Plan, key: &str) -> Vec<RecordId> {
    let run = plan.runs.iter().find(|run| run.lane == keyed(key));
    run.map(|run| ids(&run.records)).unwrap_or_default()
}

#[test]
fn records_of_a_key_form_one_run_in_order() {
    let plan = KeyState::default().plan_of([sound("a", 1), sound("a", 2), sound("b", 3)]);

    assert_eq!(plan.runs.len(), 2);
    assert_eq!(run_of(&plan, "a"), [id(1), id(2)]);
    assert_eq!(run_of(&plan, "b"), [id(3)]);
    assert!(plan.runs.iter().all(|run| !run.more));
}

#[test]
fn records_without_a_key_go_in_lanes_of_their_own() {
    let mut keyless = [sound("", 1), sound("", 2)];
    keyless.iter_mut().for_each(|record| drop(record.remove("key")));
    keyless[0].insert("visibleAt", LATER);

    let plan = KeyState::default().plan_of(keyless);

    assert_eq!(plan.runs.len(), 1, "the second does not wait for the first");
    assert_eq!(ids(&plan.runs[0].records), [id(2)]);
}

#[test]
fn leased_record_ends_the_run_of_its_key_only() {
    for place in 0..3 {
        let of_a =
            (0..3).map(|n| if n == place { leased(sound("a", n), LATER) } else { sound("a", n) });

        let plan = KeyState::default().plan_of(of_a.chain([sound("b", 9)]));

        assert_eq!(run_of(&plan, "a"), (0..place).map(id).collect::<Vec<_>>());
        assert_eq!(run_of(&plan, "b"), [id(9)]);
    }
}

#[test]
fn record_goes_when_due() {
    let due = with(sound("due", 3), doc! { "visibleAt": NOW });

    assert_eq!(run_of(&KeyState::default().plan_of([due]), "due"), [id(3)]);
}

#[test]
fn key_is_blocked_with_its_reason_when_its_head_waits() {
    let not_due = with(sound("due", 3), doc! { "visibleAt": LATER });
    let known = KeyState { down: HashSet::from([id(5)]), ..KeyState::default() };

    let plan = known.plan_of([
        not_due,
        sound("due", 4),
        leased(sound("leased", 1), LATER),
        sound("leased", 2),
        sound("down", 5),
        sound("down", 6),
    ]);

    assert!(plan.runs.is_empty(), "{:?}", plan.runs);
    let holds = plan.blocked.iter().map(|hold| (hold.head.id.clone(), hold.reason, hold.until));
    assert_eq!(
        holds.collect::<Vec<_>>(),
        [
            (id(3), BlockReason::NotDue, Some(LATER)),
            (id(1), BlockReason::Leased, Some(LATER)),
            (id(5), BlockReason::SinkDown, None),
        ]
    );
}

#[test]
fn waiting_record_behind_others_ends_run_without_block() {
    let waiting = with(sound("a", 2), doc! { "visibleAt": LATER });

    let plan = KeyState::default().plan_of([sound("a", 1), waiting, sound("a", 3)]);

    assert_eq!(run_of(&plan, "a"), [id(1)]);
    assert!(plan.blocked.is_empty(), "{:?}", plan.blocked);
}

#[test]
fn blocked_key_has_no_run() {
    let known = KeyState { blocked: HashSet::from([keyed("a")]), ..KeyState::default() };

    let plan = known.plan_of([sound("a", 1), leased(sound("a", 2), BEFORE), sound("b", 3)]);

    assert_eq!(plan.runs.len(), 1);
    assert_eq!(run_of(&plan, "b"), [id(3)]);
    assert!(plan.quarantined.is_empty() && plan.blocked.is_empty());
}

#[test]
fn defective_record_is_repaired_and_ends_its_run() {
    for broken in [doc! { "seq": Bson::Null }, doc! { "partition": 256 }] {
        let record = with(sound("a", 2), broken.clone());

        let plan = KeyState::default().plan_of([sound("a", 1), record, sound("a", 3)]);

        assert_eq!(run_of(&plan, "a"), [id(1)], "{broken}");
        assert_eq!(ids(&plan.defective), [id(2)]);
    }
}

#[test]
fn record_without_partition_joins_the_run_of_its_key() {
    let mut without = sound("a", 2);
    without.remove("partition");

    let plan = KeyState::default().plan_of([sound("a", 1), without, sound("a", 3)]);

    assert_eq!(run_of(&plan, "a"), [id(1), id(2), id(3)]);
    assert!(plan.defective.is_empty());
}

#[test]
fn unfit_record_is_exhausted_and_ends_its_run() {
    let nameless = |number| {
        let mut record = sound("a", number);
        record.remove("_id");
        record
    };

    let at_the_head = KeyState::default().plan_of([nameless(1), sound("a", 2)]);
    let behind = KeyState::default().plan_of([sound("a", 1), nameless(2), sound("a", 3)]);

    assert!(at_the_head.runs.is_empty());
    assert_eq!(at_the_head.exhausted.len(), 1);
    assert_eq!(run_of(&behind, "a"), [id(1)]);
    assert!(behind.exhausted.is_empty());
}

#[test]
fn records_behind_a_misplaced_record_wait_for_its_correction() {
    let between = Timestamp { time: 1, increment: 3 };
    let known =
        KeyState { misplaced: HashMap::from([(keyed("a"), Some(between))]), ..KeyState::default() };

    // Their increments are 2, 3 and 4.
    let plan = known.plan_of([sound("a", 1), sound("a", 2), sound("a", 3), sound("b", 9)]);

    assert_eq!(run_of(&plan, "a"), [id(1), id(2)]);
    assert_eq!(run_of(&plan, "b"), [id(9)]);
}

#[test]
fn misplaced_record_without_seq_blocks_no_others() {
    let known = KeyState { misplaced: HashMap::from([(keyed("a"), None)]), ..KeyState::default() };

    let plan = known.plan_of([sound("a", 1)]);

    assert_eq!(run_of(&plan, "a"), [id(1)]);
}

#[test]
fn only_the_head_goes_after_a_failure() {
    let failed = with(sound("a", 1), doc! { "attempt": 1 });

    let plan = KeyState::default().plan_of([failed, sound("a", 2)]);

    assert_eq!(run_of(&plan, "a"), [id(1)]);
    assert!(plan.runs[0].more, "the rest is to follow");
}

#[test]
fn failed_record_ends_the_run_before_it() {
    let failed = with(sound("a", 2), doc! { "attempt": 1 });

    let plan = KeyState::default().plan_of([sound("a", 1), failed, sound("a", 3)]);

    assert_eq!(run_of(&plan, "a"), [id(1)]);
}

#[test]
fn poison_record_at_the_head_is_quarantined() {
    let poison = crashed(sound("a", 1), 2);

    let plan = KeyState::default().plan_of([poison, sound("a", 2)]);

    assert!(plan.runs.is_empty());
    assert_eq!(ids(&plan.quarantined), [id(1)]);
}

#[test]
fn record_is_quarantined_after_too_many_connection_losses() {
    let known = KeyState { alone: HashSet::from([id(1)]), ..KeyState::default() };

    let plan = known.plan_of([sound("a", 1), sound("a", 2)]);

    assert!(plan.runs.is_empty());
    assert_eq!(ids(&plan.quarantined), [id(1)]);
}

#[test]
fn poison_record_behind_others_ends_the_run() {
    let poison = crashed(sound("a", 2), 2);

    let plan = KeyState::default().plan_of([sound("a", 1), poison, sound("a", 3)]);

    assert_eq!(run_of(&plan, "a"), [id(1)]);
    assert!(plan.quarantined.is_empty());
}

#[test]
fn poison_record_without_attempts_left_is_exhausted() {
    let spent = with(crashed(sound("a", 1), 3), doc! { "attempt": MAX_ATTEMPTS });

    let plan = KeyState::default().plan_of([spent, sound("a", 2)]);

    assert!(plan.runs.is_empty(), "a follower waits until the death is known");
    assert_eq!(ids(&plan.exhausted), [id(1)]);
}

#[test]
fn shared_lease_does_not_exhaust_a_record() {
    for crashes in [1, 2] {
        let record = with(crashed(sound("a", 1), crashes), doc! { "attempt": 2 * MAX_ATTEMPTS });

        let plan = KeyState::default().plan_of([record]);

        assert!(plan.exhausted.is_empty(), "after {crashes} crashes");
    }
}

#[test]
fn records_share_a_run_after_their_first_crash() {
    let records = [1, 2, 3].map(|n| crashed(sound("a", n), 1));

    let plan = KeyState::default().plan_of(records);

    assert_eq!(run_of(&plan, "a"), [id(1), id(2), id(3)]);
}

#[test]
fn lease_of_a_dead_owner_counts_as_expired() {
    let owner = InstanceId::fresh();
    let of_owner =
        |n| with(leased(sound("a", n), LATER), doc! { "leaseOwner": owner, "attempt": 1 });
    let knows_dead = KeyState { dead_owners: HashSet::from([owner]), ..KeyState::default() };

    let waits = KeyState::default().plan_of([of_owner(1), of_owner(2)]);
    let goes = knows_dead.plan_of([of_owner(1), of_owner(2)]);

    assert_eq!(waits.blocked[0].reason, BlockReason::Leased);
    assert_eq!(run_of(&goes, "a"), [id(1), id(2)]);
}

#[test]
fn run_is_whole_with_a_short_rest_or_cut_to_the_cap() {
    let cap = i64::try_from(LANE_CAP).unwrap();

    let whole = KeyState::default().plan_of((0..=cap).map(|n| sound("a", n)));
    let over = KeyState::default().plan_of((0..cap + 2).map(|n| sound("a", n)));

    assert_eq!(run_of(&whole, "a").len(), LANE_CAP + 1);
    assert!(!whole.runs[0].more);
    assert_eq!(run_of(&over, "a").len(), LANE_CAP);
    assert!(over.runs[0].more);
}

#[test]
fn plan_skips_records_in_flight_without_leaving_a_gap() {
    let known = KeyState { in_flight: HashSet::from([id(1), id(2)]), ..KeyState::default() };

    let plan = known.plan_of([sound("a", 1), sound("a", 2), sound("a", 3), sound("a", 4)]);

    assert_eq!(run_of(&plan, "a"), [id(3), id(4)]);
}

/// What the lane has of it was replaced: the records behind it wait with it for the lane's end.
#[test]
fn run_ends_before_a_record_that_the_lane_has_in_an_earlier_form() {
    let known = KeyState {
        in_flight: HashSet::from([id(1)]),
        replaced: HashSet::from([id(3)]),
        ..KeyState::default()
    };

    let plan = known.plan_of([sound("a", 1), sound("a", 2), sound("a", 3), sound("a", 4)]);

    assert_eq!(run_of(&plan, "a"), [id(2)]);
    assert!(!plan.runs[0].is_whole && plan.stopped.is_empty() && plan.blocked.is_empty());
}

#[test]
fn key_with_a_lane_in_flight_has_no_run() {
    let lane = LaneKey::Keyed("a".into());
    let known = KeyState { taken: HashSet::from([lane]), ..KeyState::default() };

    let plan = known.plan_of([sound("a", 1), sound("a", 2), sound("b", 1)]);

    assert_eq!(plan.runs.len(), 1);
    assert_eq!(run_of(&plan, "b"), [id(1)]);
    assert!(plan.blocked.is_empty());
}

/// The kind of one record of a generated key.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Trait {
    Sound,
    Failed,
    Leased,
    NotDue,
    Down,
    NoSeq,
    NoPartition,
    Poison,
    Spent,
    LostTwice,
    InFlight,
}

#[derive(Clone, Debug)]
struct Key {
    traits: Vec<Trait>,
    blocked: bool,
    /// The place in the key from which on all records are behind a misplaced record.
    misplaced_before: Option<usize>,
}

fn keys() -> impl Strategy<Value = Vec<Key>> {
    let one = prop_oneof![
        12 => Just(Trait::Sound),
        2 => Just(Trait::InFlight),
        1 => prop::sample::select(vec![
            Trait::Failed,
            Trait::Leased,
            Trait::NotDue,
            Trait::Down,
            Trait::NoSeq,
            Trait::NoPartition,
            Trait::Poison,
            Trait::Spent,
            Trait::LostTwice,
        ]),
    ];
    let traits = prop::collection::vec(one, 1..9);
    let blocked = prop::bool::weighted(0.1);
    let misplaced_before = prop::option::weighted(0.1, 0..8_usize);
    let key = (traits, blocked, misplaced_before)
        .prop_map(|(traits, blocked, misplaced_before)| Key { traits, blocked, misplaced_before });
    prop::collection::vec(key, 1..5)
}

/// The generated keys as records in lane order, and the state of the keys.
fn scene(keys: &[Key]) -> (Vec<Record>, KeyState) {
    let mut known = KeyState::default();
    let mut records = Vec::new();
    for (of_key, key) in (0_i64..).zip(keys) {
        let name = format!("key {of_key}");
        if key.blocked {
            known.blocked.insert(keyed(&name));
        }
        for (place, kind) in (0_i64..).zip(&key.traits) {
            let number = of_key * 100 + place;
            let document = sound(&name, number);
            records.push(read(match kind {
                Trait::Sound => document,
                Trait::Failed => with(document, doc! { "attempt": 1 }),
                Trait::Leased => leased(document, LATER),
                Trait::NotDue => with(document, doc! { "visibleAt": LATER }),
                Trait::NoSeq => with(document, doc! { "seq": "none" }),
                Trait::NoPartition => with(document, doc! { "partition": "none" }),
                Trait::Poison => crashed(document, 2),
                Trait::Spent => with(crashed(document, 3), doc! { "attempt": MAX_ATTEMPTS }),
                Trait::Down => {
                    known.down.insert(id(number));
                    document
                }
                Trait::LostTwice => {
                    known.alone.insert(id(number));
                    document
                }
                Trait::InFlight => {
                    known.in_flight.insert(id(number));
                    document
                }
            }));
        }
        if let Some(place) = key.misplaced_before {
            // Just before the record at this place: its increment is one more than its number.
            let increment = u32::try_from(of_key * 100).unwrap() + u32::try_from(place).unwrap();
            known.misplaced.insert(keyed(&name), Some(Timestamp { time: 1, increment }));
        }
    }
    (records, known)
}

fn place_of(record: &Record) -> usize {
    let RecordId::Int(number) = record.id else { panic!("a generated id") };
    usize::try_from(number % 100).unwrap()
}

fn key_of<'a>(run: &Run, keys: &'a [Key]) -> &'a Key {
    let number = run.lane.as_str().strip_prefix("key ").unwrap();
    &keys[number.parse::<usize>().unwrap()]
}

proptest! {
    #[test]
    fn run_is_gapless_behind_records_in_flight(keys in keys()) {
        let (records, known) = scene(&keys);

        for run in known.plan(records).runs {
            let key = key_of(&run, &keys);
            let places: Vec<usize> = run.records.iter().map(place_of).collect();
            let mut expected = places.iter();
            for place in 0..=*places.last().unwrap() {
                let in_flight = key.traits[place] == Trait::InFlight;
                prop_assert!(in_flight || expected.next() == Some(&place), "{run:?} of {key:?}");
            }
            prop_assert_eq!(expected.next(), None);
        }
    }

    #[test]
    fn run_contains_no_waiting_record(keys in keys()) {
        let (records, known) = scene(&keys);

        for run in known.plan(records).runs {
            let key = key_of(&run, &keys);
            prop_assert!(!key.blocked);
            for place in run.records.iter().map(place_of) {
                let kind = key.traits[place];
                let goes = matches!(kind, Trait::Sound | Trait::Failed);
                prop_assert!(goes, "{kind:?} in {run:?}");
                let behind_misplaced = key.misplaced_before.is_some_and(|before| before <= place);
                prop_assert!(!behind_misplaced, "{run:?} of {key:?}");
            }
        }
    }

    #[test]
    fn failed_record_is_a_run_of_one(keys in keys()) {
        let (records, known) = scene(&keys);

        for run in known.plan(records).runs {
            let key = key_of(&run, &keys);
            let kinds: Vec<Trait> =
                run.records.iter().map(|record| key.traits[place_of(record)]).collect();
            prop_assert!(kinds == [Trait::Failed] || !kinds.contains(&Trait::Failed), "{run:?}");
        }
    }

    #[test]
    fn only_heads_are_quarantined_and_their_keys_have_no_run(keys in keys()) {
        let (records, known) = scene(&keys);

        let plan = known.plan(records);

        for head in &plan.quarantined {
            prop_assert_eq!(place_of(head), 0);
            prop_assert!(plan.runs.iter().all(|run| run.lane != head.lane));
        }
    }

    #[test]
    fn run_length_is_limited_and_each_key_has_one_run_at_most(
        keys in keys(),
    ) {
        let (records, known) = scene(&keys);

        let plan = known.plan(records);

        let lanes: HashSet<&LaneKey> = plan.runs.iter().map(|run| &run.lane).collect();
        prop_assert_eq!(lanes.len(), plan.runs.len());
        for run in &plan.runs {
            prop_assert!((1..=LANE_CAP + 1).contains(&run.records.len()));
        }
    }

    /// Nothing waits without a reason: a sound record goes with those before it.
    #[test]
    fn sound_record_goes_when_all_before_it_go(keys in keys()) {
        let (records, known) = scene(&keys);

        let plan = known.plan(records);

        for (number, key) in keys.iter().enumerate().filter(|(_, key)| !key.blocked) {
            let unhindered = key.misplaced_before.unwrap_or(usize::MAX);
            let leading = key.traits.iter().take(unhindered);
            let leading = leading.take_while(|kind| matches!(kind, Trait::Sound | Trait::InFlight));
            let sound = leading.filter(|kind| **kind == Trait::Sound).count();
            let run = run_of(&plan, &format!("key {number}"));
            prop_assert!(run.len() >= sound.min(LANE_CAP), "{run:?} of {key:?}");
        }
    }
}
