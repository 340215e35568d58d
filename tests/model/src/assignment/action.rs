//! The possible actions, and their effects.

use super::plan::plan;
use super::state::{Bounds, Document, Fleet, Instance, MAX_INSTANCES, Process, View, Without};

/// An action of an instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    Start(usize),
    Crash(usize),
    /// SIGTERM.
    Drain(usize),
    /// It owns nothing more, and removes its document.
    Leave(usize),
    /// A majority acknowledges a heartbeat.
    Beat(usize),
    /// There was none for so long that the instance counts its partitions as lost.
    Unheard(usize),
    /// There was none for `stale_after`, by the server's clock.
    Stale(usize),
    /// The instance reads the whole state.
    Read(usize),
    /// It ends the lanes of a partition that it must give away.
    Revoke(usize, usize),
    /// It gives the partition away.
    Give(usize, usize),
    /// It claims a partition that has no owner, or a dead one.
    Claim(usize, usize),
    /// It takes a partition that a live owner has not given for too long.
    Force(usize, usize),
}

/// All possible actions.
pub fn enabled(fleet: &Fleet, bounds: &Bounds, actions: &mut Vec<Action>) {
    for at in 0..bounds.instances {
        let instance = &fleet.instances[at];
        let runs = instance.process != Process::Gone;
        if !runs {
            // An instance that starts again has a name that no instance knows.
            if !is_known(fleet, at) {
                actions.push(Action::Start(at));
            }
        } else {
            actions.push(Action::Read(at));
            if bounds.ends {
                actions.push(Action::Crash(at));
            }
            if bounds.revival || instance.document != Document::Stale {
                actions.push(Action::Beat(at));
            }
            if instance.heard && bounds.has(Without::OwnDeadline) {
                actions.push(Action::Unheard(at));
            }
            match instance.process {
                Process::Runs if bounds.ends => actions.push(Action::Drain(at)),
                Process::Drains if owns_nothing(fleet, at) => actions.push(Action::Leave(at)),
                _ => {}
            }
            moves(instance, at, bounds, actions);
        }
        let silent = !runs || !instance.heard || bounds.suspended;
        let silent = silent || !bounds.has(Without::OwnDeadline);
        if instance.document.lives() && silent {
            actions.push(Action::Stale(at));
        }
    }
}

fn is_known(fleet: &Fleet, at: usize) -> bool {
    let knows =
        |view: View| view.documents[at] != Document::Missing || view.owners.contains(&Some(at));
    fleet.instances[at].document != Document::Missing
        || !owns_nothing(fleet, at)
        || fleet.instances.iter().filter_map(|instance| instance.view).any(knows)
}

fn owns_nothing(fleet: &Fleet, at: usize) -> bool {
    !fleet.owners.contains(&Some(at))
}

/// The instance's actions that follow from the plan of its view.
fn moves(instance: &Instance, at: usize, bounds: &Bounds, actions: &mut Vec<Action>) {
    let Some(view) = instance.view else { return };
    let targets = plan(&view, bounds.partitions);
    for (partition, target) in targets.iter().enumerate().take(bounds.partitions) {
        let owner = view.owners[partition];
        if owner == *target {
            continue;
        }
        let owner_lives = owner.is_some_and(|owner| view.documents[owner].lives());
        if owner == Some(at) {
            let gives = target.is_some() || instance.process == Process::Drains;
            let is_revoked = instance.revoked & 1 << partition != 0;
            if gives && !is_revoked && bounds.has(Without::Revoking) {
                actions.push(Action::Revoke(at, partition));
            } else if gives {
                actions.push(Action::Give(at, partition));
            }
        } else if *target == Some(at) && instance.heard && instance.process == Process::Runs {
            let from_the_dead = owner.is_some();
            if !owner_lives && (!from_the_dead || bounds.has(Without::ClaimingFromTheDead)) {
                actions.push(Action::Claim(at, partition));
            } else if owner_lives && bounds.force {
                actions.push(Action::Force(at, partition));
            }
        }
    }
}

/// The effect of an action; `None` if it changes nothing.
pub fn after(last: &Fleet, action: Action, bounds: &Bounds) -> Option<Fleet> {
    let mut fleet = last.clone();
    match action {
        Action::Start(at) => {
            fleet.instances[at] = Instance { process: Process::Runs, ..Instance::default() };
        }
        Action::Crash(at) => {
            let document = fleet.instances[at].document;
            fleet.instances[at] = Instance { document, ..Instance::default() };
        }
        Action::Drain(at) => fleet.instances[at].process = Process::Drains,
        Action::Leave(at) => fleet.instances[at] = Instance::default(),
        Action::Beat(at) => {
            let instance = &mut fleet.instances[at];
            instance.heard = true;
            instance.document = match instance.process {
                Process::Drains => Document::Draining,
                _ => Document::Active,
            };
        }
        Action::Unheard(at) => {
            // Every partition counts as lost; the instance learns what it owns by another read.
            let instance = &mut fleet.instances[at];
            (instance.heard, instance.view, instance.revoked) = (false, None, 0);
        }
        Action::Stale(at) => fleet.instances[at].document = Document::Stale,
        Action::Read(at) => read(&mut fleet, at, bounds),
        Action::Revoke(at, partition) => fleet.instances[at].revoked |= 1 << partition,
        Action::Give(at, partition)
        | Action::Claim(at, partition)
        | Action::Force(at, partition) => {
            change(&mut fleet, at, partition, bounds);
        }
    }
    // The peers remove the documents of dead instances.
    for at in 0..MAX_INSTANCES {
        let instance = fleet.instances[at];
        let gone = instance.process == Process::Gone && instance.document == Document::Stale;
        if gone && owns_nothing(&fleet, at) {
            fleet.instances[at].document = Document::Missing;
        }
    }
    (fleet != *last).then_some(fleet)
}

fn read(fleet: &mut Fleet, at: usize, bounds: &Bounds) {
    let documents = std::array::from_fn(|peer| fleet.instances[peer].document);
    let view = View { owners: fleet.owners, documents, outdated: 0 };
    let targets = plan(&view, bounds.partitions);
    let instance = &mut fleet.instances[at];
    instance.view = Some(view);
    for (partition, target) in targets.iter().enumerate().take(bounds.partitions) {
        // Given away, or kept after all.
        if view.owners[partition] != Some(at) || *target == Some(at) {
            instance.revoked &= !(1 << partition);
        }
    }
}

/// One conditional write: `{_id, epoch}`. Its answer does not matter: the writer reads again like
/// all others.
fn change(fleet: &mut Fleet, at: usize, partition: usize, bounds: &Bounds) {
    let bit = 1 << partition;
    let Some(view) = fleet.instances[at].view else { return };
    let target = plan(&view, bounds.partitions)[partition];
    if let Some(view) = &mut fleet.instances[at].view {
        // Not again before another read. (Lanes that were not ended continue until then.)
        if view.owners[partition] != Some(at) || bounds.has(Without::Revoking) {
            view.owners[partition] = target.filter(|target| *target != at);
        }
    }
    if view.outdated & bit != 0 && bounds.has(Without::Epoch) {
        return;
    }
    fleet.owners[partition] = target;
    for view in fleet.instances.iter_mut().filter_map(|instance| instance.view.as_mut()) {
        view.outdated |= bit;
    }
}
