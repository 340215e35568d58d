//! All states of the assignment, and the removal of each guard.

use stateright::{Model, Property};

use super::action::{Action, after, enabled};
use super::finish::settles;
use super::state::{Bounds, Document, Fleet, MAX_INSTANCES, MAX_PARTITIONS, Process, Without};
use crate::walk::walk;

const ONE: &str = "no two instances take one partition";
const SHARED: &str = "the instances that are left can share everything evenly";

/// Instances and their partitions.
#[derive(Clone)]
struct Members(Bounds);

impl Model for Members {
    type State = Fleet;
    type Action = Action;

    fn init_states(&self) -> Vec<Fleet> {
        vec![Fleet::default()]
    }

    fn actions(&self, fleet: &Fleet, actions: &mut Vec<Action>) {
        enabled(fleet, &self.0, actions);
    }

    fn next_state(&self, fleet: &Fleet, action: Action) -> Option<Fleet> {
        after(fleet, action, &self.0)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut properties = vec![
            Property::always(SHARED, |members: &Self, fleet: &Fleet| {
                let bounds = &members.0;
                if !bounds.asks_shared {
                    return true;
                }
                let runs = |at: &usize| fleet.instances[*at].process != Process::Gone;
                let running: Vec<usize> = (0..bounds.instances).filter(runs).collect();
                let alone = running.iter().all(|at| settles(fleet, &[*at], bounds));
                alone && settles(fleet, &running, bounds)
            }),
            Property::sometimes("a dead one owns a partition", |_, fleet: &Fleet| {
                let dead = |at: &usize| fleet.instances[*at].document == Document::Stale;
                fleet.owners.iter().flatten().any(dead)
            }),
            Property::sometimes("one gives what it owns", |_, fleet: &Fleet| {
                fleet.instances.iter().any(|instance| instance.revoked != 0)
            }),
            Property::sometimes("a read is outdated", |_, fleet: &Fleet| {
                let views = fleet.instances.iter().filter_map(|instance| instance.view);
                views.into_iter().any(|view| view.outdated != 0)
            }),
        ];
        let bounds = &self.0;
        if bounds.force || bounds.suspended || bounds.revival {
            properties.push(Property::sometimes("two take at once", |_, fleet: &Fleet| {
                fleet.is_taken_twice()
            }));
        } else {
            properties.push(Property::always(ONE, |_, fleet: &Fleet| !fleet.is_taken_twice()));
        }
        if bounds.has(Without::Revoking) {
            return properties;
        }
        properties.retain(|property| property.name != "one gives what it owns");
        properties
    }
}

fn orderly(instances: usize, partitions: usize) -> Bounds {
    assert!(instances <= MAX_INSTANCES && partitions <= MAX_PARTITIONS);
    Bounds {
        instances,
        partitions,
        force: false,
        suspended: false,
        revival: false,
        ends: true,
        asks_shared: true,
        without: None,
    }
}

fn holds(name: &str, run_by: &str, bounds: Bounds) {
    walk(Members(bounds)).assert_holds(name, run_by);
}

fn breaks(name: &str, without: Without, promise: &str) {
    let walk = walk(Members(Bounds { without: Some(without), ..orderly(2, 2) }));
    walk.assert_breaks(name, promise);
}

#[test]
fn two_instances_share_partitions_and_never_deliver_one_together() {
    holds("two instances, two partitions", "test", orderly(2, 2));
}

#[test]
fn partitions_rebalance_when_instances_return() {
    holds("instances that come back (2 × 1)", "test", Bounds { revival: true, ..orderly(2, 1) });
}

#[test]
fn partitions_rebalance_after_forced_takeovers() {
    holds("taking by force (2 × 2)", "test", Bounds { force: true, ..orderly(2, 2) });
}

#[test]
fn partitions_rebalance_after_suspension() {
    holds("suspended instances (2 × 1)", "test", Bounds { suspended: true, ..orderly(2, 1) });
}

#[test]
#[ignore = "minutes: make model"]
fn large_partitions_rebalance_after_suspension_and_takeover() {
    holds(
        "all of these at once (2 × 2)",
        "model",
        Bounds { force: true, suspended: true, revival: true, ..orderly(2, 2) },
    );
}

#[test]
#[ignore = "minutes: make model"]
fn large_three_instances_share_two_partitions() {
    holds(
        "three instances, two partitions; an instance ends only by not being heard",
        "model",
        Bounds { ends: false, asks_shared: false, ..orderly(3, 2) },
    );
}

#[test]
#[ignore = "minutes: make model"]
fn large_two_instances_share_three_partitions() {
    holds("two instances, three partitions", "model", orderly(2, 3));
}

#[test]
fn a_change_of_owner_names_the_epoch() {
    breaks("the epoch in the condition", Without::Epoch, ONE);
}

#[test]
fn an_instance_without_heartbeats_stops_before_its_peers_begin() {
    breaks("an own deadline before `stale_after`", Without::OwnDeadline, ONE);
}

#[test]
fn an_owner_ends_its_lanes_before_it_gives() {
    breaks("ending the lanes before giving", Without::Revoking, ONE);
}

#[test]
fn partitions_of_dead_instances_are_claimed() {
    breaks("claiming from the dead", Without::ClaimingFromTheDead, SHARED);
}
