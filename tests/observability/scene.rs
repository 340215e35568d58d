//! One scene with every fault that a real relay can have, as the rules and the dashboard see it.

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::time::Duration;

use bson::doc;
use futures_util::join;
use serde_json::json;

use crate::dashboard::{Panel, Variable, annotations, filled_in, panels, variables};
use crate::file;
use crate::processes::Processes;
use crate::prometheus::Prometheus;
use crate::rules::{RULES, Rule, rules};
use crate::support::outbox::{eventually, record};

/// Alerts whose rule becomes true in no scene of a minute, and why.
const ALERTS_NOT_SEEN: [(&str, &str); 5] = [
    ("PostriderBacklogGrows", "a backlog would have to grow for half an hour"),
    ("PostriderFeedAuditFindings", "the change stream would have to pass over an append"),
    ("PostriderFeedLate", "an append would have to wait for a minute"),
    ("PostriderSubscriptionLate", "an event would have to wait for ten minutes"),
    ("PostriderRebalancesFlap", "partitions would have to move six times within the scene"),
];

/// Rules that are true from the start, because of the outbox and the fixed partitions.
const FROM_THE_START: [&str; 7] = [
    "PostriderChangeStreamLost",
    "PostriderCountsUnknown",
    "PostriderMessagesLate",
    "PostriderNothingRelayed",
    "PostriderPartitionsUnassigned",
    "PostriderRecordsInvalid",
    "PostriderSchemaHazard",
];

/// What the scene must have shown on a panel: a value of at least this.
const PANEL_PEAKS: [(&str, f64); 32] = [
    ("Pending", 1.0),
    ("Oldest pending", 7200.0),
    ("Dead", 4.0),
    ("Delivered", 1.0),
    ("Instances", 2.0),
    ("Sinks down", 1.0),
    ("Relay", 1.0),
    ("Throughput", 1.0),
    ("Retried and dead", 1.0),
    ("Dead letters", 1.0),
    ("Records by status", 4.0),
    ("Blocked keys", 1.0),
    ("Repaired", 1.0),
    ("Kafka: requests", 0.1),
    // Messages are confirmed between two scrapes.
    ("RabbitMQ: unconfirmed", 0.0),
    ("RabbitMQ: connections opened", 1.0),
    ("RabbitMQ: returned", 1.0),
    ("Operations at MongoDB", 1.0),
    ("Failed operations at MongoDB", 1.0),
    ("MongoDB connections", 1.0),
    ("Records seen", 1.0),
    ("Memory", 1e6),
    ("Partitions owned", 256.0),
    ("Partitions live", 128.0),
    ("Rebalances", 1.0),
    ("Paused", 1.0),
    ("API requests", 0.1),
    ("Appends by outcome", 0.1),
    ("Positions", 1.0),
    ("Appends with a position", 0.1),
    ("Held by the feed", 1.0),
    ("Documents adopted", 0.1),
];

/// The results of the rules at this moment, without their `for`.
struct Alerts<'a> {
    prometheus: &'a Prometheus,
    rules: Vec<Rule>,
    /// Those that were true at some time.
    seen: Mutex<BTreeSet<String>>,
}

impl Alerts<'_> {
    async fn until(&self, name: &str) {
        for rule in self.rules.iter().filter(|rule| rule.name == name) {
            self.prometheus.until(&rule.query).await;
            self.seen.lock().unwrap().insert(name.to_owned());
        }
    }

    async fn true_now(&self) -> BTreeSet<&str> {
        let mut found = BTreeSet::new();
        for Rule { name, query, .. } in &self.rules {
            if !self.prometheus.now(query).await.is_empty() {
                found.insert(&**name);
            }
        }
        found
    }
}

#[fixture::test(long)]
async fn each_fault_raises_its_alert_and_the_dashboard_has_data() {
    let file = file(RULES);
    let (prometheus, mut processes) = join!(Prometheus::start(&file), Processes::start());
    processes.watched_by(&prometheus).await;
    let rules = rules();
    assert_eq!(prometheus.rules().await, rules.len());
    let alerts = Alerts { prometheus: &prometheus, rules, seen: Mutex::default() };

    // A heartbeat may be late sometimes.
    let at_the_start = || async { alerts.true_now().await == FROM_THE_START.into() };
    eventually("only what is so from the start", at_the_start).await;
    for name in FROM_THE_START {
        alerts.until(name).await;
    }

    join!(faults_of_shop(&processes, &alerts), faults_of_lower(&processes, &alerts));
    processes.high.stop().await;
    for Rule { name, .. } in &alerts.rules {
        let seen = alerts.seen.lock().unwrap().contains(name);
        if !seen && !ALERTS_NOT_SEEN.iter().any(|(not_seen, _)| not_seen == name) {
            alerts.until(name).await;
        }
    }

    let shop = [("namespace", "(test|none)"), ("job", "(shop|bank)")];
    for Panel { title, queries, .. } in panels() {
        for query in &queries {
            for chosen in [&[][..], &shop[..]] {
                let query = filled_in(query, chosen);
                assert!(!prometheus.ever(&query).await.is_empty(), "{title} is empty: {query}");
            }
            let nowhere = filled_in(query, &[("job", "nowhere")]);
            assert!(prometheus.ever(&nowhere).await.is_empty(), "{title}: {nowhere}");
        }
    }
    for (wanted, peak) in PANEL_PEAKS {
        let panels = panels();
        let panel = panels.iter().find(|panel| panel.title == wanted).expect(wanted);
        let values = prometheus.ever(&filled_in(&panel.queries[0], &[])).await;
        let highest = values.into_iter().fold(f64::NEG_INFINITY, f64::max);
        assert!(highest >= peak, "{wanted}: {highest} instead of {peak}");
    }
    for query in annotations() {
        assert!(!prometheus.ever(&filled_in(&query, &[])).await.is_empty(), "{query}");
    }
    for Variable { name, series, label } in variables() {
        let values = prometheus.label_values(&filled_in(&series, &[]), &label).await;
        assert!(!values.is_empty(), "{name}");
    }
    processes.stop().await;
}

async fn faults_of_shop(processes: &Processes, alerts: &Alerts<'_>) {
    processes.subscribe().await;
    join!(processes.traffic(), processes.appends(), processes.adopt());
    processes.park().await;
    alerts.until("PostriderEventsParked").await;
    alerts.until("PostriderSubscriptionStopped").await;
    // One of them goes alone and has no answer; the others wait for their turn.
    processes.to_broker.freeze();
    processes.poison_records().await;
    alerts.until("PostriderKeysQuarantined").await;
    processes.to_broker.open();
    processes.to_broker_of_second.close();
    alerts.until("PostriderSinkDownOnSome").await;
    processes.to_broker_of_second.open();
    processes.to_broker.close();
    alerts.until("PostriderSinkDown").await;
    processes.to_broker.open();
    processes.switch("pause").await;
    alerts.until("PostriderPaused").await;
    processes.switch("resume").await;
    processes.shop.until_count(doc! { "status": "done" }, 69).await;
    // The series of the route began with the first appends.
    assert_eq!(processes.append(&processes.first, "5", json!("any")).await, 201);
    // The other instance takes over its partitions.
    processes.to_mongodb_of_second.close();
    alerts.until("PostriderInstanceWithoutStore").await;
    let all = "postrider_partitions_owned{job=\"shop\"} == 256";
    alerts.prometheus.until(all).await;
    // A store that works for some instances, and an outbox that is counted again.
    alerts.until("PostriderDeadRecordsRemain").await;
    let database = processes.shop.client.database(&processes.shop.database);
    let no_lease = doc! { "leaseId": { "$exists": false } };
    let validator = doc! { "$or": [{ "key": { "$ne": "refused" } }, no_lease] };
    let strict = doc! { "collMod": "outbox_records", "validator": validator };
    database.run_command(strict).await.unwrap();
    processes.shop.insert([record("refused", "refused")]).await;
    alerts.until("PostriderStoreFails").await;
}

async fn faults_of_lower(processes: &Processes, alerts: &Alerts<'_>) {
    let low = &processes.low;
    assert_eq!(processes.append(low, "1", json!("any")).await, 201);
    processes.erase().await;
    alerts.until("PostriderErasureOpen").await;
    // The series of the histogram must exist before the second one.
    let late = async {
        for number in 0.. {
            processes.insert_late(&format!("late {number}")).await;
            tokio::time::sleep(Duration::from_secs(2)).await;
        }
    };
    tokio::select! {
        () = alerts.until("PostriderDeliveryLagHigh") => {}
        () = late => {}
    }
    processes.append_behind_a_gap().await;
    alerts.until("PostriderFeedStreamsBlocked").await;
    processes.refuse_the_feed(true).await;
    alerts.until("PostriderFeedStopped").await;
    processes.refuse_the_feed(false).await;
    // The second one must wait while MongoDB does not answer.
    let proxy = &processes.to_mongodb_of_lower;
    proxy.freeze();
    let slow = async {
        let append = processes.append(low, "2", json!("any"));
        assert_eq!(append.await, 201);
    };
    let opening = async {
        tokio::time::sleep(Duration::from_millis(1500)).await;
        proxy.open();
    };
    join!(slow, opening);
    alerts.until("PostriderAppendsSlow").await;
    proxy.close();
    eventually("an append that fails", || async {
        processes.append(low, "3", json!("any")).await == 503
    })
    .await;
    alerts.until("PostriderStoreDown").await;
    // The series of the status began with the first failure.
    assert_eq!(processes.append(low, "4", json!("any")).await, 503);
    alerts.until("PostriderApiErrors").await;
    alerts.until("PostriderAppendsFail").await;
}
