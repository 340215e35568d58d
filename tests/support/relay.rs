//! A relay in this process, with the test's own database and sink.

use std::collections::BTreeMap;
use std::time::Duration;

use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use postrider::ids::{InstanceId, SinkName};
use postrider::outbox::collections::Collections;
use postrider::outbox::lease::OwnerId;
use postrider::partition::owned::OwnedPartitions;
use postrider::partition::suspension::SuspensionDetector;
use postrider::relay::backoff::{Backoff, BackoffKind};
use postrider::relay::settings::Settings;
use postrider::relay::{Relay, RelayError, RelayParts};
use postrider::routing::{Route, Router, SinkRules, Template};
use postrider::sink::Sink;
use postrider::wakeup::Wakeup;
use postrider_settings::Glob;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::outbox::{TestOutbox, eventually, record};
use super::sink::TestSink;

/// Defaults with short waits.
pub fn settings() -> Settings {
    Settings {
        poll_interval: Duration::from_millis(100),
        backoff: Backoff {
            kind: BackoffKind::Fixed,
            initial: Duration::from_millis(50),
            max: Duration::from_secs(1),
            jitter: 0.0,
            ..Backoff::default()
        },
        shutdown_timeout: Duration::from_secs(20),
        sink_probe_interval_max: Duration::from_millis(200),
        ..Settings::default()
    }
}

/// Routes everything to the first sink, under the record's type, except records whose type is the
/// name of another sink.
pub fn router(sinks: &[&str]) -> Router {
    let rules = || SinkRules {
        destination: Template::parse("").unwrap(),
        key: Some(Template::parse("{type}").unwrap()),
        allowed_destinations: vec![Glob::new("*")],
        source: None,
    };
    let route = |sink: &&str| Route {
        kind: Some(Glob::new(sink)),
        sink: Some(SinkName::from(*sink)),
        destination: None,
        key: None,
        headers: BTreeMap::new(),
    };
    let routes = sinks.iter().map(route).collect();
    let rules = sinks.iter().map(|sink| (SinkName::from(*sink), rules())).collect();
    Router::new(routes, rules, Some(SinkName::from(sinks[0])))
}

/// A running relay; `stop` stops it cleanly, a drop abandons it as a crash would.
pub struct Running {
    stop: CancellationToken,
    task: Option<JoinHandle<Result<(), RelayError>>>,
    pub wake: Wakeup,
    _owned: watch::Sender<OwnedPartitions>,
}

impl Running {
    /// Stops it as SIGTERM would, and expects it to have settled everything.
    pub async fn stop(mut self) {
        self.stop.cancel();
        self.task.take().unwrap().await.unwrap().unwrap();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(task) = &self.task {
            task.abort();
        }
    }
}

/// The parts of a relay with one sink.
pub fn parts<S: Sink>(
    collections: &Collections,
    sink: S,
    settings: Settings,
    share: watch::Receiver<OwnedPartitions>,
    wakeup: Wakeup,
) -> RelayParts<S> {
    parts_with(collections, [("test", sink)], settings, share, wakeup)
}

/// The same with several sinks.
pub fn parts_with<S: Sink, const N: usize>(
    collections: &Collections,
    sinks: [(&str, S); N],
    settings: Settings,
    share: watch::Receiver<OwnedPartitions>,
    wakeup: Wakeup,
) -> RelayParts<S> {
    let names: Vec<&str> = sinks.iter().map(|(name, _)| *name).collect();
    RelayParts {
        settings,
        collections: collections.clone(),
        owner: OwnerId::new(InstanceId::fresh()),
        router: router(&names),
        sinks: sinks.into_iter().map(|(name, sink)| (name.to_owned(), sink)).collect(),
        owned: share,
        wakeup,
        delete_done: false,
        suspension: SuspensionDetector::new(),
        predecessor: None,
    }
}

/// Starts a relay that owns every partition.
pub fn start<S: Sink>(collections: &Collections, sink: S, settings: Settings) -> Running {
    let (owner, share) = watch::channel(OwnedPartitions::of(0..=255));
    let wake = Wakeup::default();
    run(parts(collections, sink, settings, share, wake), owner)
}

/// The same, with its metrics.
pub fn start_counted<S: Sink>(
    collections: &Collections,
    sink: S,
    settings: Settings,
) -> (Running, PrometheusHandle) {
    let recorder = PrometheusBuilder::new().build_recorder();
    let relay = metrics::with_local_recorder(&recorder, || start(collections, sink, settings));
    (relay, recorder.handle())
}

/// Starts a relay with several sinks, of which the first is the default one.
pub fn start_with<S: Sink, const N: usize>(
    collections: &Collections,
    sinks: [(&str, S); N],
    settings: Settings,
) -> Running {
    let (owner, share) = watch::channel(OwnedPartitions::of(0..=255));
    let parts = parts_with(collections, sinks, settings, share, Wakeup::default());
    run(parts, owner)
}

/// Starts a relay from these parts, with partitions from `owner`.
pub fn run<S: Sink>(parts: RelayParts<S>, owner: watch::Sender<OwnedPartitions>) -> Running {
    let stop = CancellationToken::new();
    let wake = parts.wakeup.clone();
    let relay = Relay::new(parts, stop.clone());
    Running { stop, task: Some(tokio::spawn(relay.run())), wake, _owned: owner }
}

/// Lets the relay read everything a few times, so that it has begun all possible deliveries: three
/// records of new keys arrive one after the other.
pub async fn rounds(outbox: &TestOutbox, sink: &TestSink) {
    for _ in 0..3 {
        let id = format!("round {}", uuid::Uuid::new_v4());
        outbox.insert([record(&id, &id)]).await;
        sink.until("a record of a new key", |arrived| {
            arrived.iter().any(|message| message.id == id)
        })
        .await;
    }
}

/// What arrived, without the records of [`rounds`].
pub fn arrived(sink: &TestSink) -> Vec<String> {
    sink.ids().into_iter().filter(|id| !id.starts_with("round ")).collect()
}

/// Waits until this record arrived.
pub async fn until_arrived(sink: &TestSink, id: &str) {
    sink.until(id, |arrived| arrived.iter().any(|message| message.id == id)).await;
}

/// Waits until the publish of this record has begun.
pub async fn until_under_way(sink: &TestSink, id: &str) {
    eventually("a publish is under way", || async { sink.is_under_way(id) }).await;
}
