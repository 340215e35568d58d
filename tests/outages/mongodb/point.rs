//! One relay at one point of a record's path, when MongoDB becomes unreachable.

use std::time::Duration;

use bson::{DateTime, Document, doc};
use postrider::outbox::collections::Collections;
use postrider::relay::settings::Settings;
use postrider::sink::PublishFailure;
use tokio::time::{Instant, sleep_until};

use crate::mongodb::proxy_to_mongodb;
use crate::support::fault_proxy::ProxyFault;
use crate::support::history::{arrivals, judge, read_back};
use crate::support::outbox::{TestOutbox, eventually, insert_raw, record};
use crate::support::relay::{settings, start};
use crate::support::sink::{Fault, TestSink};

/// When MongoDB becomes unreachable.
#[derive(Clone, Copy)]
enum When {
    /// At the first request with this text, which it never receives.
    Before(&'static str),
    /// When it answers the first request with this text.
    AtAnswerTo(&'static str),
    /// While `a1` is being published.
    Publishing,
    /// At the renewal of the lease under which `a1` is being published.
    Renewal,
}

/// A point of the path, how MongoDB fails there, and the permitted results.
pub struct Point {
    pub name: &'static str,
    when: When,
    then: ProxyFault,
    lease: Duration,
    /// The fault of the first publish of `a1`.
    fault: Option<Fault>,
    /// How long after MongoDB's failure the broker answers what it holds back.
    answers_after: Duration,
    /// The records in addition to `a1`, `a2`, `a3` of one key and `b1` of another.
    more: Vec<Document>,
    /// No publish of these begins before MongoDB is back.
    not_meanwhile: &'static [&'static str],
    dead: &'static [&'static str],
    /// The most attempts that a record has in the end.
    counted: i32,
}

impl Point {
    /// By default only MongoDB fails, and each record has its one attempt.
    fn new(name: &'static str, when: When, then: ProxyFault) -> Self {
        Self {
            name,
            when,
            then,
            lease: Duration::from_secs(30),
            fault: None,
            answers_after: Duration::ZERO,
            more: Vec::new(),
            not_meanwhile: &[],
            dead: &[],
            counted: 1,
        }
    }

    /// Runs a relay with these settings through it, while MongoDB is unreachable for this long.
    pub async fn pass(self, away: Duration) {
        let outbox = TestOutbox::new().await;
        let mut records = ["a1", "a2", "a3"].map(|id| record(id, "a")).to_vec();
        records.push(record("b1", "b"));
        outbox.insert(records).await;
        for record in self.more {
            insert_raw(&outbox.collections, record).await;
        }
        let all = outbox.count(doc! {}).await;
        let proxy = proxy_to_mongodb().await;
        match self.when {
            When::Before(text) => proxy.on_request(text, self.then),
            When::AtAnswerTo(text) => proxy.on_answer_to(text, self.then),
            When::Publishing | When::Renewal => {}
        }
        let client = postrider::store::connect::client(&proxy.mongodb_uri("")).await.unwrap();
        let collections = Collections::new(client, &outbox.database, "");
        let sink = TestSink::default();
        sink.script("a1", self.fault);
        let poll_interval = Duration::from_millis(500);
        let settings = Settings { lease: self.lease, poll_interval, ..settings() };
        let relay = start(&collections, sink.clone(), settings);
        if let When::Publishing | When::Renewal = self.when {
            eventually("a1 to be under way", || async { sink.is_under_way("a1") }).await;
            match self.when {
                When::Renewal => proxy.on_request("leaseUntil", self.then),
                _ => proxy.close(),
            }
        }
        eventually(self.name, || async { proxy.has_caught() }).await;
        let since = Instant::now();

        sleep_until(since + self.answers_after.min(away)).await;
        sink.release();
        sleep_until(since + away).await;

        for id in self.not_meanwhile {
            assert_eq!(sink.tries(id), 0, "{}: {id} was published meanwhile", self.name);
        }
        proxy.open();
        let wanted = doc! { "$or": [
            { "status": "done", "_id": { "$nin": self.dead } },
            { "status": "dead", "_id": { "$in": self.dead } },
        ] };
        outbox.until_count(wanted, all).await;
        assert_eq!(outbox.count(doc! { "leaseId": { "$exists": true } }).await, 0, "{}", self.name);
        let found = judge(&read_back(&outbox.collections).await, &arrivals(&sink.arrived()));
        found.assert_kept();
        // No lease of ours ended during a publish that another scan could repeat.
        assert_eq!(found.duplicates, 0, "{}: {:?}", self.name, sink.ids());
        let counted = outbox.count(doc! { "attempt": { "$gt": self.counted } }).await;
        assert_eq!(counted, 0, "{}: counted more than {}", self.name, self.counted);
        relay.stop().await;
    }
}

/// Every point, for a MongoDB that is unreachable for `away`: longer than one of the leases here,
/// and shorter than the other.
pub fn points(away: Duration) -> Vec<Point> {
    let short = away / 2;
    let long = away + Duration::from_secs(10);
    let early = away / 10;
    // Nothing of the short lease is left by then.
    let late = away * 3 / 4;
    let hold = Some(Fault::Hold);
    let new = Point::new;
    let mut points = vec![
        new("before the first look", When::Before("lane_idx"), ProxyFault::Close),
        new("before the first look, frozen", When::Before("lane_idx"), ProxyFault::Freeze),
        new("between read and lease", When::Before("leaseOwner"), ProxyFault::Close),
        // The relay does not know this lease: it expires.
        Point {
            counted: 2,
            lease: short,
            ..new("the lease's answer is lost", When::AtAnswerTo("leaseOwner"), ProxyFault::Close)
        },
        Point {
            counted: 2,
            lease: long,
            ..new(
                "a long lease's answer is lost",
                When::AtAnswerTo("leaseOwner"),
                ProxyFault::Close,
            )
        },
        // The server executes the frozen request after the thaw.
        Point {
            counted: 2,
            lease: away / 6,
            ..new("the lease is frozen", When::Before("leaseOwner"), ProxyFault::Freeze)
        },
        Point {
            fault: hold.clone(),
            lease: short,
            answers_after: early,
            ..new("confirmed soon", When::Publishing, ProxyFault::Close)
        },
        Point {
            fault: hold.clone(),
            lease: short,
            answers_after: late,
            not_meanwhile: &["a2", "a3"],
            ..new("confirmed after the lease", When::Publishing, ProxyFault::Close)
        },
        Point {
            fault: hold.clone(),
            lease: long,
            answers_after: late,
            ..new("confirmed within a long lease", When::Publishing, ProxyFault::Close)
        },
        Point {
            fault: hold.clone(),
            lease: away / 5,
            answers_after: late,
            not_meanwhile: &["a2", "a3"],
            ..new("the renewal", When::Renewal, ProxyFault::Close)
        },
        Point {
            fault: hold,
            lease: away / 5,
            answers_after: late,
            not_meanwhile: &["a2", "a3"],
            ..new("the renewal, frozen", When::Renewal, ProxyFault::Freeze)
        },
        new("confirmed, not settled", When::Before("doneAt"), ProxyFault::Close),
        new("confirmed, not settled, frozen", When::Before("doneAt"), ProxyFault::Freeze),
        new("settled, and nobody heard", When::AtAnswerTo("doneAt"), ProxyFault::Close),
    ];
    for (name, when) in [
        ("a retry", When::Before("lastErrorAt")),
        ("a retry that nobody heard of", When::AtAnswerTo("lastErrorAt")),
    ] {
        let fault = Some(Fault::Answer(PublishFailure::Retryable));
        let not_meanwhile = &["a2", "a3"];
        points.push(Point {
            fault,
            not_meanwhile,
            counted: 2,
            ..new(name, when, ProxyFault::Close)
        });
    }
    for (name, when) in [
        ("a death", When::Before("deadReason")),
        ("a death that nobody heard of", When::AtAnswerTo("deadReason")),
    ] {
        let fault = Some(Fault::Answer(PublishFailure::Rejected));
        let (not_meanwhile, dead) = (&["a2", "a3"], &["a1"]);
        points.push(Point { fault, not_meanwhile, dead, ..new(name, when, ProxyFault::Close) });
    }
    for (name, when) in [
        ("a promotion", When::Before("timestamp")),
        ("a promotion that nobody heard of", When::AtAnswerTo("timestamp")),
    ] {
        let mut due = record("scheduled", "s");
        due.extend(doc! { "status": "scheduled", "visibleAt": DateTime::from_millis(1_000) });
        // Promotions run in parallel with scans: the answer to a lease may be lost together with
        // this one's.
        points.push(Point { more: vec![due], counted: 2, ..new(name, when, ProxyFault::Close) });
    }
    for (name, when) in [
        ("a correction", When::Before("$nor")),
        ("a correction that nobody heard of", When::AtAnswerTo("$nor")),
    ] {
        let mut misplaced = record("misplaced", "u");
        misplaced.insert("partition", -1);
        points.push(Point { more: vec![misplaced], ..new(name, when, ProxyFault::Close) });
    }
    let mut no_seq = record("repaired", "r");
    no_seq.remove("seq");
    points.push(Point {
        more: vec![no_seq],
        ..new("a repair", When::Before("timestamp"), ProxyFault::Close)
    });
    let mut poison = record("suspect", "w");
    poison.extend(doc! {
        "attempt": 2,
        "leaseCrashes": 1,
        "leaseId": bson::Uuid::new(),
        "leaseUntil": DateTime::from_millis(1_000),
        "leaseOwner": bson::Uuid::new(),
    });
    points.push(Point {
        more: vec![poison],
        counted: 3,
        ..new("one that goes alone", When::Before("leaseOwner"), ProxyFault::Close)
    });
    points
}
