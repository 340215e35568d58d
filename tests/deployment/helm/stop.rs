//! The grace period of a pod.

use std::time::Duration;

use postrider::config::Config;
use postrider_settings::units::HumanDuration;
use serde_json::{Value, json};

use super::chart::Chart;

/// The grace period and the sleep before SIGTERM.
fn stop(settings: &[&str]) -> (u64, Option<u64>) {
    let rendered = Chart::running().set(settings).render();
    let relay = rendered.relay();
    let sleep = relay.ours()[0].pointer("/lifecycle/preStop/sleep/seconds").and_then(Value::as_u64);
    (relay.spec["terminationGracePeriodSeconds"].as_u64().unwrap(), sleep)
}

const API: [&str; 2] = ["config.api.enabled=true", "secrets.keys.api\\.tokens=tokens"];

#[test]
#[ignore = "long: make test-all"]
fn a_pod_outlives_the_shutdown_timeout() {
    assert_eq!(Config::default().relay.shutdown_timeout, Duration::from_secs(25));
    assert_eq!(stop(&[]), (30, None));
    assert_eq!(stop(&["config.relay.shutdown_timeout=1m30s"]), (95, None));
    assert_eq!(stop(&["terminationGracePeriodSeconds=26"]), (26, None));
}

#[test]
#[ignore = "long: make test-all"]
fn an_api_gets_no_more_requests_when_it_stops() {
    assert_eq!(stop(&API), (35, Some(5)));
    assert_eq!(stop(&[API[0], API[1], "preStopSleepSeconds=0"]), (30, None));
    assert_eq!(stop(&["preStopSleepSeconds=10"]), (40, Some(10)));
    assert_eq!(
        stop(&[API[0], "config.api.listen=127.0.0.1:8080"]),
        (30, None),
        "reached by no Service"
    );
}

#[test]
#[ignore = "long: make test-all"]
fn a_duration_is_read_as_postrider_reads_it() {
    for text in
        ["25s", "1m30s", "1 m 30 s", "1500ms", "2min", "1h", "90secs", "1ms", "2m 1ms", "0s"]
    {
        let seconds = HumanDuration::parse(text).unwrap().as_millis().div_ceil(1000);
        let grace = u64::try_from(seconds).unwrap() + 5;

        assert_eq!(
            stop(&[&format!("config.relay.shutdown_timeout={text}")]),
            (grace, None),
            "{text}"
        );
    }
}

#[test]
#[ignore = "long: make test-all"]
fn a_grace_period_shorter_than_the_stop_is_refused() {
    for (settings, words) in [
        (vec!["terminationGracePeriodSeconds=25"], "shutdown_timeout (25s)"),
        (vec!["terminationGracePeriodSeconds=25"], "terminationGracePeriodSeconds 25 is too short"),
        ([&API[..], &["terminationGracePeriodSeconds=30"]].concat(), "preStopSleepSeconds (5)"),
        (vec!["config.relay.shutdown_timeout=1d"], "config.relay.shutdown_timeout"),
    ] {
        let said = Chart::running().set(&settings).refused();
        assert!(said.contains(words), "{settings:?}: {said}");
    }
    let rendered = Chart::running().set(&["terminationGracePeriodSeconds=31"]).render();
    assert_eq!(rendered.relay().spec["terminationGracePeriodSeconds"], json!(31));
}
