//! Proves the judges of mixed histories: each catches what is seeded, and nothing else.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use bson::{DateTime, Document, Timestamp, Uuid, doc};

use crate::appends::{self, Append, Fault};
use crate::commands::Settles;
use crate::ledger::{Change, EventOf, Ledger, What};
use crate::plan::{Kind, Peer, Plan, Sickness};
use crate::sickness::Healings;
use crate::support::history::{Arrival, content_of};
use crate::traffic::{Class, Place};
use crate::verdict::{Seen, Verdict};

const LEASE: Uuid = Uuid::from_bytes([1; 16]);

fn plan() -> Plan {
    let mut plan = Plan::of(5, Duration::from_secs(3), true);
    let mixed_options = &mut plan.setup.mixed_options;
    (mixed_options.key_window, mixed_options.calm, mixed_options.validator) = (1, true, false);
    mixed_options.dead_letters = Some(Peer::Broker);
    mixed_options.sick.clear();
    plan.setup.batch_size = 10;
    plan
}

fn arrived(ids: &[&str], key: &str) -> Vec<Arrival> {
    let content = content_of(&doc! {});
    let arrival = |id: &&str| Arrival { id: (*id).to_owned(), key: Some(key.to_owned()), content };
    ids.iter().map(arrival).collect()
}

/// A ledger with lives of records, and what has arrived.
struct Book {
    plan: Plan,
    ledger: Ledger,
    settles: Settles,
    dead_letters: Vec<String>,
    undisturbed: Option<DateTime>,
    healings: Healings,
}

impl Book {
    fn new() -> Self {
        let (ledger, settles) = (Ledger::default(), Settles::default());
        let (dead_letters, healings) = (Vec::new(), Healings::default());
        Self { plan: plan(), ledger, settles, dead_letters, undisturbed: None, healings }
    }

    fn note(&mut self, id: &str, at: i64, what: What) {
        let at = DateTime::from_millis(at);
        let change = Change { id: id.to_owned(), at, brought: at, what };
        self.ledger.note(change, &self.settles);
    }

    fn insert(&mut self, id: &str, key: &str, more: Document) {
        self.insert_at(0, id, key, more);
    }

    fn insert_at(&mut self, at: i64, id: &str, key: &str, more: Document) {
        let time = u32::try_from(self.ledger.committed().len()).unwrap() + 1;
        let seq = Timestamp { time, increment: 1 };
        let mut record = doc! { "key": key, "seq": seq, "status": "pending", "type": "T" };
        record.extend(more);
        self.note(id, at, What::Inserted(record));
    }

    /// A lease, and what ends it.
    fn settle(&mut self, id: &str, at: i64, set: Document) {
        self.lease(id, at);
        self.end(id, at, set);
    }

    fn lease(&mut self, id: &str, at: i64) {
        let until = DateTime::from_millis(at + 1);
        let lease = bson::Binary {
            subtype: bson::spec::BinarySubtype::Uuid,
            bytes: LEASE.bytes().to_vec(),
        };
        let lease = doc! { "leaseId": lease, "leaseUntil": until };
        self.note(id, at, What::Updated { set: lease, unset: Vec::new() });
    }

    fn end(&mut self, id: &str, at: i64, set: Document) {
        self.settles.note(id, LEASE, DateTime::from_millis(at));
        self.note(id, at, What::Updated { set, unset: vec!["leaseId".to_owned()] });
    }

    fn judge(&self, arrivals: &[(Place, Vec<Arrival>)]) -> Verdict {
        let seen = Seen {
            ledger: &self.ledger,
            acknowledged: &[],
            appended: &[],
            stored: &[],
            arrivals,
            dead_letters: Some(self.dead_letters.clone()),
            undisturbed: self.undisturbed,
            healings: &self.healings,
        };
        seen.judge(&self.plan)
    }

    /// Two records of a key that were done, and that arrived in the wrong order.
    fn swapped(key: &str, plan: Plan) -> Verdict {
        let mut book = Self { plan, ..Self::new() };
        for id in ["1", "2"] {
            book.insert(id, key, doc! {});
            book.settle(id, 10, doc! { "status": "done" });
        }
        book.judge(&[(Place::Main, arrived(&["2", "1"], key))])
    }
}

/// A producer's key with a class that matches.
fn key_with_class(such: impl Fn(&Class) -> bool) -> String {
    let plan = plan();
    let keys = (0..200).flat_map(|producer| (0..3).map(move |key| format!("p{producer}k{key}")));
    keys.into_iter().find(|key| such(&Class::of(&plan, key))).unwrap()
}

#[test]
fn a_seeded_inversion_is_caught_with_every_kind_of_partition() {
    let odd = key_with_class(|class| class.is_ordered() && class.has_invalid_partition());
    let different = key_with_class(|class| !class.is_ordered());

    assert_eq!(Book::swapped(&odd, plan()).word(), "broken:order=1");
    assert_eq!(Book::swapped("crowd-odd", plan()).word(), "broken:order=1");
    // Its producers write different partitions for it.
    assert_eq!(Book::swapped(&different, plan()).word(), "kept");
}

#[test]
fn a_seeded_inversion_in_a_window_is_caught_without_refusals() {
    let mut wide = plan();
    wide.setup.mixed_options.key_window = 3;
    let healthy = key_with_class(|class| class.is_healthy && class.is_ordered());
    let troubled = key_with_class(|class| !class.is_healthy && class.is_ordered());

    assert_eq!(Book::swapped(&healthy, wide.clone()).word(), "broken:order=1");
    assert_eq!(Book::swapped(&troubled, wide.clone()).word(), "kept");
    assert_eq!(Book::swapped(&troubled, plan()).word(), "broken:order=1");

    let mut refused = Book { plan: wide, ..Book::new() };
    for id in ["1", "2"] {
        refused.insert(id, &healthy, doc! {});
        refused.settle(id, 10, doc! { "lastError": "nack" });
        refused.settle(id, 20, doc! { "status": "done" });
    }
    let verdict = refused.judge(&[(Place::Main, arrived(&["2", "1"], &healthy))]);
    assert_eq!(verdict.word(), "kept");
}

#[test]
fn a_message_at_a_wrong_destination_is_a_phantom_and_a_loss() {
    let mut book = Book::new();
    book.insert("1", "crowd", doc! { "destination": "chaos-sick" });
    book.settle("1", 10, doc! { "status": "done" });

    let right = book.judge(&[(Place::SickExchange, arrived(&["1"], "crowd"))]);
    let wrong = book.judge(&[(Place::Main, arrived(&["1"], "crowd"))]);

    assert_eq!(right.word(), "kept");
    assert_eq!(wrong.word(), "broken:lost=1,phantom=1");
}

#[test]
fn a_seeded_death_without_a_dead_letter_is_caught() {
    let mut book = Book::new();
    for (id, kind) in [("1", "T"), ("2", "T"), ("3", "Poison"), ("4", "T")] {
        book.insert(id, id, doc! { "type": kind });
        let reason = if id == "4" { "malformed: x" } else { "attempts exhausted: x" };
        book.settle(id, 10, doc! { "status": "dead", "deadReason": reason });
    }
    book.dead_letters.push("1".to_owned());

    let verdict = book.judge(&[]);

    assert_eq!(verdict.without_copy, ["2: attempts exhausted: x"]);
    assert_eq!(verdict.word(), "broken:without-copy=1");
}

#[test]
fn a_seeded_wait_of_a_healthy_record_is_caught() {
    let healthy = key_with_class(|class| class.is_healthy);
    let mut book = Book::new();
    book.insert("1", &healthy, doc! {});
    book.settle("1", 11_000, doc! { "status": "done" });
    let arrivals = [(Place::Main, arrived(&["1"], &healthy))];

    assert_eq!(book.judge(&arrivals).word(), "broken:held-up=1");
    book.plan.setup.mixed_options.calm = false;
    assert_eq!(book.judge(&arrivals).word(), "kept");
}

/// The verdict's word for a history with these records of one healthy key. Each is inserted and,
/// where there is a third time, postponed at that time; it is done at the second.
fn waits(from: Option<i64>, records: &[(i64, i64, Option<i64>)]) -> String {
    let key = key_with_class(|class| class.is_healthy && class.has_own_partition());
    let mut book = Book { undisturbed: from.map(DateTime::from_millis), ..Book::new() };
    let mut ids = Vec::new();
    for (number, (inserted, done, postponed)) in records.iter().enumerate() {
        let id = number.to_string();
        book.insert_at(*inserted, &id, &key, doc! {});
        if let Some(at) = postponed {
            let set = doc! { "visibleAt": DateTime::from_millis(*done) };
            book.note(&id, *at, What::Updated { set, unset: Vec::new() });
        }
        book.settle(&id, *done, doc! { "status": "done" });
        ids.push(id);
    }
    let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
    book.judge(&[(Place::Main, arrived(&ids, &key))]).word()
}

#[test]
fn a_seeded_undisturbed_wait_of_some_seconds_is_caught() {
    let held_up = "broken:held-up=1";

    assert_eq!(waits(Some(1000), &[(2000, 7000, None)]), held_up);
    assert_eq!(waits(Some(1000), &[(2000, 4000, None)]), "kept");
    assert_eq!(waits(None, &[(2000, 7000, None)]), "kept", "something else fails");
    assert_eq!(waits(Some(2500), &[(2000, 7000, None)]), "kept", "inserted before");
    // A record that waits for something else excuses those behind it, until it is done.
    let behind = |postponed| [(500, 7000, postponed), (2000, 7000, None), (7500, 13_000, None)];
    assert_eq!(waits(Some(1000), &behind(None)[..2]), "kept");
    assert_eq!(waits(Some(1000), &behind(None)), held_up);
    assert_eq!(waits(Some(100), &behind(Some(600))[..2]), "kept");
    assert_eq!(waits(Some(100), &behind(Some(600))), held_up);
    assert_eq!(waits(Some(100), &behind(None)[..2]), held_up);
}

#[test]
fn the_delay_of_the_change_stream_is_not_counted() {
    let key = key_with_class(|class| class.is_healthy && class.has_own_partition());
    for (brought, word) in [(1000, "broken:held-up=1"), (5000, "kept")] {
        let mut book = Book { undisturbed: Some(DateTime::MIN), ..Book::new() };
        let seq = Timestamp { time: 1, increment: 1 };
        let record = doc! { "key": &key, "seq": seq, "status": "pending", "type": "T" };
        let brought = DateTime::from_millis(brought);
        let at = DateTime::from_millis(1000);
        let inserted = Change { id: "1".to_owned(), at, brought, what: What::Inserted(record) };
        book.ledger.note(inserted, &book.settles);
        book.settle("1", 6500, doc! { "status": "done" });

        assert_eq!(book.judge(&[(Place::Main, arrived(&["1"], &key))]).word(), word);
    }
}

/// The verdict's word for a history with a topic that lacks a replica until the fifth second: its
/// sample is leased and done at these times, and another of its records is done at the last.
fn sick_topic(sample: Option<(i64, i64)>, other: i64) -> String {
    let mut book = Book::new();
    book.plan.setup.mixed_options.sick = vec![Sickness::Replicas];
    book.healings.begin(Sickness::Replicas, DateTime::from_millis(5000));
    book.healings.begin(Sickness::Replicas, DateTime::from_millis(9000));
    let (id, mut ids) = (Sickness::Replicas.sample_id(), vec!["1"]);
    let to_topic = doc! { "type": "K", "destination": "chaos-sick" };
    book.insert("1", "k", to_topic.clone());
    book.settle("1", other, doc! { "status": "done" });
    if let Some((leased, done)) = sample {
        book.insert(&id, "k", to_topic);
        book.lease(&id, leased);
        book.end(&id, done, doc! { "status": "done" });
        ids.push(&id);
    }
    book.judge(&[(Place::SickTopic, arrived(&ids, "k"))]).word()
}

#[test]
fn a_seeded_fault_without_effect_is_caught() {
    let without_effect = "broken:without-effect=1";

    assert_eq!(sick_topic(Some((1000, 5100)), 5200), "kept");
    assert_eq!(sick_topic(Some((1000, 5100)), 4900), without_effect, "another record was done");
    assert_eq!(sick_topic(Some((1000, 1010)), 5200), without_effect, "it was done at once");
    assert_eq!(sick_topic(Some((4900, 5100)), 5200), without_effect, "it hardly waited");
    assert_eq!(sick_topic(None, 5200), without_effect, "there is no such record");
}

#[test]
fn a_sample_record_goes_to_each_sick_destination() {
    let place = |sick: Sickness| Place::of(&sick.sample("chaos"));

    assert_eq!(place(Sickness::Exchange), Place::SickExchange);
    assert_eq!(place(Sickness::Replicas), Place::SickTopic);
    assert_eq!(place(Sickness::Topic), Place::LateTopic);
    assert_eq!(place(Sickness::Queue), Place::SilentQueue);
}

fn append(version: i64, events: i64) -> Append {
    let (aggregate, request) = ("a".to_owned(), format!("r{version}"));
    Append { aggregate, request, version, events }
}

/// Two appends of three events, with their records.
fn appended() -> (Vec<Append>, HashMap<String, EventOf>) {
    let records = [("1", 1, 0), ("2", 1, 1), ("3", 2, 0)];
    let records = records.map(|(id, version, index)| {
        (id.to_owned(), EventOf { aggregate: "a".to_owned(), version, index })
    });
    (vec![append(1, 2), append(2, 1)], HashMap::from(records))
}

fn faults(
    stored: &[Append],
    answered: &[Append],
    records: &HashMap<String, EventOf>,
    arrivals: &[&str],
) -> Vec<Fault> {
    appends::judge(stored, answered, records, &HashSet::new(), &arrived(arrivals, "a"))
}

#[test]
fn appends_that_match_their_records_are_accepted() {
    let (stored, records) = appended();

    assert_eq!(faults(&stored, &stored, &records, &["1", "1", "2", "1", "3", "2"]), []);
    // An answer may be lost.
    assert_eq!(faults(&stored, &[], &records, &["1", "2", "3"]), []);
}

#[test]
fn a_seeded_gap_or_repeated_version_is_caught() {
    let (mut stored, mut records) = appended();
    stored[1].version = 3;
    records.get_mut("3").unwrap().version = 3;
    let aggregate = "a".to_owned();
    let gap = [Fault::Gap { aggregate: aggregate.clone(), version: 2 }];
    assert_eq!(faults(&stored, &[], &records, &[]), gap);

    let (mut stored, mut records) = appended();
    (stored[1].version, stored[1].events) = (1, 2);
    records.remove("3");
    assert_eq!(faults(&stored, &[], &records, &[]), gap);

    let (mut stored, records) = appended();
    stored[1].request = stored[0].request.clone();
    assert_eq!(faults(&stored, &[], &records, &[]), [Fault::Twice { request: "r1".into() }]);
}

#[test]
fn a_seeded_loss_of_an_acknowledged_append_is_caught() {
    let (stored, records) = appended();
    let others = [append(3, 1), Append { version: 1, ..append(2, 1) }];

    let found = faults(&stored, &others, &records, &[]);

    let forgotten = ["r2", "r3"].map(|request| Fault::Forgotten { request: request.to_owned() });
    assert_eq!(found, forgotten);
}

#[test]
fn a_seeded_event_without_a_record_or_the_reverse_is_caught() {
    let (stored, mut records) = appended();
    let moved = EventOf { index: 7, ..records.remove("2").unwrap() };
    records.insert("x".to_owned(), moved);

    let aggregate = "a".to_owned();
    let expected = [
        Fault::NoRecord { aggregate, version: 1, index: 1 },
        Fault::NoEvent { id: "x".to_owned() },
    ];
    assert_eq!(faults(&stored, &stored, &records, &[]), expected);
}

#[test]
fn a_seeded_late_event_is_caught_unless_it_is_exempt() {
    let (stored, records) = appended();
    let late = Fault::Late { late: "2".to_owned(), overtaker: "3".to_owned() };

    assert_eq!(faults(&stored, &[], &records, &["1", "3", "2"]), [late]);
    let exempt = HashSet::from(["2".to_owned()]);
    let arrivals = arrived(&["1", "3", "2"], "a");
    assert_eq!(appends::judge(&stored, &[], &records, &exempt, &arrivals), []);
}

#[test]
fn a_mixed_plan_has_two_brokers_and_operators() {
    let plans: Vec<Plan> =
        (0..50).map(|seed| Plan::of(seed, Duration::from_secs(15), true)).collect();
    let says = |plan: &Plan, what: &str| plan.to_string().contains(what);

    assert!(plans.iter().all(|plan| plan.setup.kind == Kind::Mixed));
    for what in [
        "OperatorChange",
        "Heal { sick: Exchange }",
        "Heal { sick: Replicas }",
        "Heal { sick: Topic }",
        "Heal { sick: Poison }",
        "Heal { sick: Queue }",
        "Forbid",
        "Unprivileged",
        "Burst",
        "Rollback",
        "Kill",
        "Link",
        "key_window: 3",
        "dead_letters: Some(Broker)",
        "dead_letters: Some(Stream)",
        "appenders: 2",
        "validator: true",
        "calm: true",
        "feed: true",
    ] {
        assert!(plans.iter().any(|plan| says(plan, what)), "no plan with {what}");
    }
}
