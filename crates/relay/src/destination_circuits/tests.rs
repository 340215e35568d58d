use super::*;

fn circuits() -> DestinationCircuits {
    DestinationCircuits::new("s".into(), Duration::ZERO)
}

fn to(name: &str) -> Address {
    Address { destination: name.into(), key: None }
}

#[test]
fn circuit_opens_for_its_destination_and_closes_on_confirm() {
    let circuits = circuits();
    let began = Instant::now();

    let fault = circuits.unconfirmed(&to("sick"), began, "no confirm", false);

    assert!(matches!(fault, Fault::Destination(_)));
    assert!(circuits.open_until(&to("sick")).is_some());
    assert_eq!(circuits.open_until(&to("well")), None);
    assert_eq!(circuits.open()[0].cause, "no confirm");
    assert!(
        !circuits.confirmed(&to("sick"), began - Duration::from_secs(1), false),
        "an earlier one"
    );
    assert!(circuits.confirmed(&to("sick"), Instant::now(), false));
    assert_eq!((circuits.open_until(&to("sick")), circuits.open()), (None, vec![]));
}

#[test]
fn main_connection_is_bypassed_while_only_probes_are_confirmed() {
    let circuits = circuits();
    let fails = |handed_over| {
        let is_bypassed = circuits.is_bypassed(&to("d"), handed_over);
        circuits.unconfirmed(&to("d"), handed_over, "x", false);
        is_bypassed
    };
    let (first, with_it, probe) = (Instant::now(), Instant::now(), Instant::now());
    assert!(!fails(first));
    assert!(circuits.confirmed(&to("d"), probe, true));

    assert!(!fails(with_it), "it was sent before the probe");
    assert!(fails(Instant::now()));
    assert!(fails(Instant::now()), "until the main connection confirms");
    circuits.confirmed(&to("d"), Instant::now(), false);
    circuits.confirmed(&to("d"), Instant::now(), true);
    assert!(!fails(Instant::now()), "a quarantined record is not a probe");
}

#[test]
fn record_is_at_fault_when_later_records_are_confirmed() {
    let circuits = circuits();
    circuits.unconfirmed(&to("d"), Instant::now(), "x", false);
    let under_way = Instant::now();
    assert!(circuits.confirmed(&to("d"), Instant::now(), false));

    let lost_with_it = circuits.unconfirmed(&to("d"), under_way, "x", false);
    let again = Instant::now();
    circuits.confirmed(&to("d"), Instant::now(), false);
    let own = circuits.unconfirmed(&to("d"), again, "x", false);

    assert!(matches!(lost_with_it, Fault::Destination(_)));
    assert_eq!(own, Fault::Record);
    assert!(circuits.open().is_empty(), "its circuit stays closed");
}

#[test]
fn record_that_breaks_isolated_connection_opens_circuit_once() {
    let circuits = circuits();
    circuits.broke(&to("d"), Instant::now(), "lost");
    assert!(circuits.open_until(&to("d")).is_some());
    assert!(circuits.confirmed(&to("d"), Instant::now(), false), "another one is confirmed");

    assert_eq!(circuits.broke(&to("d"), Instant::now(), "lost"), Fault::Record);
    assert_eq!(circuits.open_until(&to("d")), None, "its neighbours go on");

    circuits.broke(&to("d"), Instant::now(), "lost");
    assert!(circuits.open_until(&to("d")).is_some(), "nothing was confirmed since");
}

#[test]
fn publish_on_replaced_connection_opens_circuit_for_probe() {
    let circuits = circuits();
    let (early, later) = (Instant::now(), Instant::now());

    assert!(circuits.left_behind(&to("d"), early, "x").is_some());
    assert_eq!(circuits.due(), [to("d")]);
    let probed = Instant::now();
    let probe = circuits.begin_probe(&to("d"));
    assert!(circuits.left_behind(&to("d"), later, "x").is_some(), "it is being probed");
    assert!(circuits.confirmed(&to("d"), probed, false));
    drop(probe);

    assert_eq!(circuits.left_behind(&to("d"), later, "x"), None, "others were confirmed");
    assert!(circuits.all_closed());
    assert!(circuits.left_behind(&to("d"), Instant::now(), "x").is_some());
    assert!(!circuits.is_exclusive(&to("d")));
    assert!(circuits.close_guess(&to("d")) && circuits.all_closed());

    circuits.left_behind(&to("d"), Instant::now(), "x");
    circuits.unconfirmed(&to("d"), Instant::now(), "x", true);
    assert!(!circuits.close_guess(&to("d")), "a probe has failed");
}

#[test]
fn destination_is_probed_alone_after_several_losses() {
    let circuits = circuits();
    let lost = Instant::now();
    circuits.suspected(&to("d"), lost, "connection lost");

    assert_eq!(circuits.due(), [to("d")]);
    assert!(circuits.open_until(&to("d")).is_some() && circuits.is_exclusive(&to("d")));
    let probed = Instant::now();
    let probe = circuits.begin_probe(&to("d"));
    assert!(circuits.confirmed(&to("d"), probed, false), "it was not its doing");
    drop(probe);

    circuits.suspected(&to("d"), lost, "connection lost");
    assert!(circuits.all_closed(), "others were confirmed since");
    circuits.suspected(&to("d"), Instant::now(), "connection lost");
    assert!(matches!(circuits.broke(&to("d"), Instant::now(), "lost"), Fault::Destination(_)));
    assert!(!circuits.close_guess(&to("d")), "a probe has failed");
}

#[test]
fn circuit_admits_one_probe_at_a_time() {
    let circuits = circuits();
    assert!(circuits.begin_probe(&to("d")).is_none(), "nothing is open");
    circuits.unconfirmed(&to("d"), Instant::now(), "x", false);

    let probe = circuits.begin_probe(&to("d"));
    assert!(probe.is_some() && circuits.begin_probe(&to("d")).is_none());
    drop(probe);

    assert!(circuits.begin_probe(&to("d")).is_some());
}

#[test]
fn silent_destination_takes_no_records_until_it_answers() {
    let circuits = circuits();
    let slow = circuits.begin_slow_publish(&to("d"));
    assert!(!slow.is_silent(Duration::from_secs(60)) && circuits.all_closed());

    assert!(slow.is_silent(Duration::ZERO));
    assert!(circuits.open_until(&to("d")).is_some() && circuits.open_until(&to("other")).is_none());
    assert!(!circuits.all_closed() && !circuits.wants_probe(&to("d")), "it is not open");

    assert!(circuits.confirmed(&to("d"), Instant::now(), false));
    assert!(circuits.open_until(&to("d")).is_none() && circuits.all_closed());
    assert!(slow.is_silent(Duration::ZERO), "silent once more");
    assert!(circuits.note_answer(&to("d")), "a nack is an answer");
    assert!(!slow.end());
}

#[test]
fn silence_ends_with_the_last_waiting_publish() {
    let circuits = circuits();
    let (first, last) =
        (circuits.begin_slow_publish(&to("d")), circuits.begin_slow_publish(&to("d")));
    assert!(first.is_silent(Duration::ZERO) && last.is_silent(Duration::ZERO));

    assert!(!first.end() && circuits.open_until(&to("d")).is_some());
    drop(last);

    assert!(circuits.all_closed() && circuits.open_until(&to("d")).is_none());
    circuits.expire();
    assert!(circuits.is_quiet());
}

#[test]
fn due_probes_are_one_per_destination_up_to_the_limit() {
    let circuits = circuits();
    let names: Vec<Address> = (0..MAX_PROBES + 5).map(|n| to(&format!("{n:03}"))).collect();
    for name in &names {
        circuits.unconfirmed(name, Instant::now(), "x", false);
    }
    let probe = circuits.begin_probe(&names[0]);

    let due = circuits.due();
    assert_eq!(due.len(), MAX_PROBES - 1);
    assert!(!due.contains(&names[0]), "it is being probed");
    assert_eq!(circuits.due().len(), 5, "the others, since those were asked a moment ago");

    let probes: Vec<_> = due.iter().map(|name| circuits.begin_probe(name)).collect();
    assert!(probes.iter().all(Option::is_some));
    assert!(circuits.due().is_empty() && !circuits.wants_probe(&names[MAX_PROBES + 4]));
    drop((probe, probes));
    assert_eq!(circuits.probing.load(Ordering::Relaxed), 0);
}

#[test]
fn only_unconfirmed_destinations_share_isolated_connection() {
    let circuits = circuits();
    assert!(circuits.is_exclusive(&to("d")));
    circuits.unconfirmed(&to("d"), Instant::now(), "x", false);
    assert!(!circuits.is_exclusive(&to("d")));

    circuits.broke(&to("d"), Instant::now(), "lost");

    assert!(circuits.is_exclusive(&to("d")));
    circuits.unconfirmed(&to("d"), Instant::now(), "x", true);
    assert!(!circuits.is_exclusive(&to("d")), "this time the connection has outlived it");
}
