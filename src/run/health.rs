//! Reports the state of each part to `/readyz`.

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::change_stream::FollowerStatus;
use crate::events::feed::SequencerStatus;
use crate::ids::SinkName;
use crate::ops::{Health, HealthPart};
use crate::partition::coordinator::CoordinatorStatus;
use crate::partition::heartbeat::Pulse;
use crate::relay::Relay;
use crate::relay::destination_circuits::OpenDestination;
use crate::sink::Address;
use crate::sink::registry::AnySink;
use crate::store::pools::{POOLS, Pool};

pub(super) fn watch_store(health: &Health, pulse: watch::Receiver<Pulse>) {
    health.watch("store", move || store(&pulse.borrow()));
}

/// Combines it with the relay's results: MongoDB may acknowledge heartbeats and refuse the rest.
pub(super) fn watch_relay(health: &Health, pulse: watch::Receiver<Pulse>, relay: &Relay<AnySink>) {
    let context = relay.context();
    health.watch("store", move || match (&*pulse.borrow(), context.store_trouble()) {
        (Pulse::Alive, Some(trouble)) => HealthPart::degraded(trouble),
        (pulse, _) => store(pulse),
    });
}

fn store(pulse: &Pulse) -> HealthPart {
    match pulse {
        Pulse::Alive => HealthPart::ok(),
        Pulse::Starting => HealthPart::down("no heartbeat is acknowledged yet"),
        Pulse::Lost(why) => HealthPart::down(format!("no majority acknowledges heartbeats: {why}")),
        Pulse::Refused(why) => HealthPart::down(why),
    }
}

/// Each pool of connections to MongoDB that is starved is named.
pub(super) fn watch_pools(health: &Health) {
    health.watch("mongodb pools", || {
        let starved = POOLS.into_iter().filter_map(|pool| Some((pool, pool.starved_for()?)));
        let starved: Vec<_> = starved.collect();
        let texts: Vec<String> = starved
            .iter()
            .map(|(pool, time)| {
                format!(
                    "no operation has got a connection of the pool {} for {time:.0?}",
                    pool.name()
                )
            })
            .collect();
        if starved.iter().any(|(pool, _)| *pool == Pool::Api) {
            HealthPart::down(texts.join("; "))
        } else if !texts.is_empty() {
            HealthPart::degraded(texts.join("; "))
        } else {
            HealthPart::ok()
        }
    });
}

/// Each sink is a part of its own.
pub(super) fn watch_sinks<'a>(
    health: &Health,
    names: impl Iterator<Item = &'a SinkName>,
    relay: &Relay<AnySink>,
) {
    for name in names {
        let (context, name) = (relay.context(), name.as_str().to_owned());
        let part = format!("sink {name}");
        health.watch(&part, move || match context.sinks.get(&name) {
            Some(handle) => match handle.circuit.trouble() {
                Some(down) => HealthPart::degraded(down.detail),
                None => confirming(&handle.destinations.open()),
            },
            None => HealthPart::ok(),
        });
    }
}

/// Returns the state of a sink that is up.
fn confirming(paused: &[OpenDestination]) -> HealthPart {
    let Some(first) = paused.first() else { return HealthPart::ok() };
    let Address { destination, key } = &first.destination;
    let key = key.as_ref().map(|key| format!(" ({key:?})")).unwrap_or_default();
    let others = match paused.len() - 1 {
        0 => String::new(),
        others => format!(" (and {others} other destinations)"),
    };
    let cause = &first.cause;
    HealthPart::degraded(format!(
        "destination {destination:?}{key} does not confirm{others}: {cause}"
    ))
}

/// The relay is down from the stop on.
pub(super) fn watch_draining(health: &Health, stop: &CancellationToken) {
    let stop = stop.clone();
    health.watch("relay", move || {
        if stop.is_cancelled() {
            HealthPart::down("draining: records in flight are settled or released")
        } else {
            HealthPart::ok()
        }
    });
}

pub(super) fn watch_change_stream(health: &Health, following: watch::Receiver<FollowerStatus>) {
    health.watch("change_stream", move || match &*following.borrow() {
        FollowerStatus::Up => HealthPart::ok(),
        FollowerStatus::Starting => HealthPart::degraded("no change stream is open yet"),
        FollowerStatus::Lost(why) => HealthPart::degraded(why),
    });
}

/// Never down: readers get what has a position, and a restart does not help.
pub(super) fn watch_feed(health: &Health, status: watch::Receiver<SequencerStatus>) {
    health.watch("feed", move || match &*status.borrow() {
        SequencerStatus::Up | SequencerStatus::Standby => HealthPart::ok(),
        SequencerStatus::Starting => HealthPart::degraded("no event is read yet"),
        SequencerStatus::Scanning => HealthPart::degraded(
            "no change stream is open; scans find the appends of other processes after a second \
             or more",
        ),
        SequencerStatus::Failing(why) => {
            HealthPart::degraded(format!("failed to assign positions: {why}"))
        }
    });
}

/// Neither a lack of partitions nor a pause is a reason to restart.
pub(super) fn watch_partitions(health: &Health, status: watch::Receiver<CoordinatorStatus>) {
    health.watch("partitions", move || {
        let CoordinatorStatus { owned, differs, paused, trouble, unreadable } = &*status.borrow();
        let unreadable = unreadable.as_ref().map(|(first, count)| match count - 1 {
            0 => first.to_string(),
            others => format!("{first} (and {others} other documents)"),
        });
        match (trouble.clone().or(unreadable), differs, owned) {
            (Some(trouble), ..) => HealthPart::degraded(trouble),
            _ if *paused => {
                HealthPart::degraded("the relay is paused; resume it with `postrider relay resume`")
            }
            (None, Some(fleet), _) => HealthPart::degraded(format!(
                "owns no partition, since running instances have another configuration ({fleet})"
            )),
            (None, None, None | Some(0)) => {
                HealthPart::degraded("owns no partition yet; other instances own all")
            }
            (None, None, Some(_)) => HealthPart::ok(),
        }
    });
}
