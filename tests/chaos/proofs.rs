//! Proves the ledger: it must catch what is seeded, and nothing else. Also proves the rule by which
//! a supervisor starts a process again.

use std::time::{Duration, Instant};

use bson::{Binary, Bson, DateTime, Document, Timestamp, Uuid, doc, spec::BinarySubtype};

use crate::commands::Settles;
use crate::ledger::{Breach, Change, Ledger, What};
use crate::privileges::Withdrawals;
use crate::support::process::Ended;

const MINE: Uuid = Uuid::from_bytes([1; 16]);
const OTHERS: Uuid = Uuid::from_bytes([2; 16]);

fn at(millis: i64) -> DateTime {
    DateTime::from_millis(millis)
}

fn binary(lease: Uuid) -> Bson {
    Bson::Binary(Binary { subtype: BinarySubtype::Uuid, bytes: lease.bytes().to_vec() })
}

/// A ledger of one record, and the commands that were sent.
struct Book {
    ledger: Ledger,
    settles: Settles,
}

impl Book {
    fn new(status: &str) -> Self {
        let mut book = Self { ledger: Ledger::default(), settles: Settles::default() };
        let seq = Timestamp { time: 1, increment: 1 };
        let record = doc! { "key": "k", "seq": seq, "status": status };
        book.note(0, What::Inserted(record));
        book
    }

    fn note(&mut self, millis: i64, what: What) {
        let change = Change { id: "k1".to_owned(), at: at(millis), brought: at(millis), what };
        self.ledger.note(change, &self.settles);
    }

    fn update(mut self, millis: i64, set: Document, unset: &[&str]) -> Self {
        let unset = unset.iter().map(|field| (*field).to_owned()).collect();
        self.note(millis, What::Updated { set, unset });
        self
    }

    fn lease(self, millis: i64, lease: Uuid, until: i64) -> Self {
        self.update(millis, doc! { "leaseId": binary(lease), "leaseUntil": at(until) }, &[])
    }

    fn lease_of(self, owner: Uuid, millis: i64, lease: Uuid, until: i64) -> Self {
        let lease = doc! {
            "leaseId": binary(lease), "leaseUntil": at(until), "leaseOwner": binary(owner),
        };
        self.update(millis, lease, &[])
    }

    fn settle(self, millis: i64, to: &str) -> Self {
        let set = if to == "pending" {
            doc! {}
        } else {
            doc! { "status": to }
        };
        self.update(millis, set, &["leaseId", "leaseUntil", "leaseOwner"])
    }

    fn observe(self, millis: i64, lease: Uuid) -> Self {
        self.settles.note("k1", lease, at(millis));
        self
    }

    fn breaches(&self) -> &[Breach] {
        &self.ledger.breaches
    }
}

fn unfenced(lease: Option<Uuid>, to: &str) -> Breach {
    Breach::Unfenced { id: "k1".to_owned(), lease, to: to.to_owned() }
}

#[test]
fn a_settlement_that_names_the_lease_in_force_is_accepted() {
    for to in ["done", "dead", "pending"] {
        let book = Book::new("pending").lease(10, MINE, 100).observe(20, MINE).settle(21, to);

        assert_eq!(book.breaches(), []);
    }
}

#[test]
fn a_settlement_after_the_lease_is_accepted_without_another_owner() {
    let book = Book::new("pending").lease(10, MINE, 100).observe(150, MINE).settle(151, "done");

    assert_eq!(book.breaches(), []);
}

#[test]
fn a_seeded_settlement_by_a_lost_lease_is_caught() {
    let book = Book::new("pending").lease(10, MINE, 100).lease(110, OTHERS, 200);

    let book = book.observe(120, MINE).settle(121, "done");

    assert_eq!(book.breaches(), [unfenced(Some(OTHERS), "done")]);
}

#[test]
fn a_seeded_settlement_before_its_command_is_caught() {
    let book = Book::new("pending").lease(10, MINE, 100).settle(20, "pending").observe(30, MINE);

    assert_eq!(book.breaches(), [unfenced(Some(MINE), "pending")]);
}

#[test]
fn a_seeded_settlement_of_an_unleased_record_is_caught() {
    let book = Book::new("pending").update(20, doc! { "status": "done" }, &[]);

    assert_eq!(book.breaches(), [unfenced(None, "done")]);
}

#[test]
fn a_poison_record_may_die_only_after_its_lease() {
    let leased = || Book::new("pending").lease(10, MINE, 100);

    assert_eq!(leased().settle(100, "dead").breaches(), []);
    assert_eq!(leased().settle(99, "dead").breaches(), [unfenced(Some(MINE), "dead")]);
}

#[test]
fn a_takeover_is_accepted_only_after_the_lease() {
    let leased = || Book::new("pending").lease(10, MINE, 100);
    let renewed = || leased().update(90, doc! { "leaseUntil": at(200) }, &[]);
    let stolen = [Breach::Stolen { id: "k1".to_owned(), from: MINE, by: OTHERS }];

    assert_eq!(leased().lease(100, OTHERS, 300).breaches(), []);
    assert_eq!(leased().lease(99, OTHERS, 300).breaches(), stolen);
    assert_eq!(renewed().lease(100, OTHERS, 300).breaches(), stolen);
}

#[test]
fn an_early_takeover_is_accepted_only_from_a_dead_owner() {
    let [one, other] =
        [Uuid::from_bytes(u128::to_be_bytes(11)), Uuid::from_bytes(u128::to_be_bytes(12))];
    let taken_over = || {
        let leased = Book::new("pending").lease_of(one, 10, MINE, 100);
        leased.lease_of(other, 50, OTHERS, 150)
    };
    let leases_on = |count: u128| {
        (0..count).fold(taken_over(), |book, n| {
            let millis = 1_000 * (1 + i64::try_from(n).unwrap());
            book.lease_of(one, millis, Uuid::from_bytes(u128::to_be_bytes(100 + n)), millis + 1)
        })
    };

    assert_eq!(taken_over().breaches(), []);
    assert_eq!(leases_on(3).breaches(), [], "commands that were under way");
    let robbed = Breach::Robbed { id: "k1".to_owned(), owner: one };
    assert_eq!(leases_on(4).breaches(), [robbed]);
    let own = Book::new("pending").lease_of(one, 10, MINE, 100).lease_of(one, 50, OTHERS, 150);
    let stolen = Breach::Stolen { id: "k1".to_owned(), from: MINE, by: OTHERS };
    assert_eq!(own.breaches(), [stolen], "an owner that is alive waits for its own lease");
}

#[test]
fn a_seeded_lease_of_a_record_that_is_not_pending_is_caught() {
    for status in ["scheduled", "dead"] {
        let book = Book::new(status).lease(10, MINE, 100);

        let status = status.to_owned();
        assert_eq!(book.breaches(), [Breach::OutOfTurn { id: "k1".to_owned(), status }]);
    }
}

#[test]
fn a_seeded_change_of_a_record_that_is_done_is_caught() {
    let book = Book::new("pending").lease(10, MINE, 100).observe(20, MINE).settle(21, "done");

    let book = book.update(30, doc! { "status": "pending" }, &[]);

    assert_eq!(book.breaches(), [Breach::Revived { id: "k1".to_owned() }]);
}

#[test]
fn changes_by_operators_and_the_clock_are_not_breaches() {
    let die = |blocks: bool| {
        let book = Book::new("pending").lease(10, MINE, 100).observe(20, MINE);
        let dead = doc! { "status": "dead", "blocks": blocks };
        book.update(21, dead, &["leaseId"]).update(30, doc! { "status": "pending" }, &["blocks"])
    };
    let mut discarded = Book::new("pending");
    discarded.note(10, What::Deleted);
    let promoted = Book::new("scheduled").update(10, doc! { "status": "pending" }, &[]);

    for (book, exempt) in
        [(die(true), false), (die(false), true), (discarded, true), (promoted, true)]
    {
        assert_eq!(book.breaches(), []);
        assert_eq!(book.ledger.committed()[0].exempt, exempt);
    }
}

#[test]
fn a_process_may_end_only_without_its_privileges() {
    let start = Instant::now();
    let second = |second| start + Duration::from_secs(second);
    let refused = r#"{"message":"ended with a failure","error":"MongoDB rejects this instance; correct the"}"#;
    let explains = |withdrawals: &Withdrawals, code, said: &str, since, until| {
        let ended = Ended { code, stdout: String::new(), stderr: said.to_owned() };
        withdrawals.explain(&ended, second(since), second(until))
    };
    let never = Withdrawals::default();
    let withdrawals = Withdrawals::default();
    withdrawals.begin(second(10));

    assert!(!explains(&never, Some(1), refused, 5, 12));
    // Started before, meanwhile and, where they are not granted again, at any time later.
    assert!(explains(&withdrawals, Some(1), refused, 5, 12));
    assert!(explains(&withdrawals, Some(1), refused, 11, 12));
    assert!(explains(&withdrawals, Some(1), refused, 30, 31));
    withdrawals.end(second(20));
    assert!(explains(&withdrawals, Some(1), refused, 19, 21));
    assert!(!explains(&withdrawals, Some(1), refused, 5, 9));
    assert!(!explains(&withdrawals, Some(1), refused, 21, 31));
    // Ended for another reason, with another code, or by a signal.
    let logged = "{\"message\":\"MongoDB rejects this instance\"}\n\
                  {\"message\":\"ended with a failure\",\"error\":\"the heartbeat ended unexpectedly\"}";
    assert!(!explains(&withdrawals, Some(1), logged, 11, 12));
    for code in [Some(0), Some(101), None] {
        assert!(!explains(&withdrawals, code, refused, 11, 12));
    }
}
