//! The possible actions, and their effects.

use super::{
    Action, Bounds, Command, Document, Evidence, Heartbeat, INSTANCES, Instance, LAPSED, Lease,
    OwnerId, STALE, State, View, Without,
};

/// All possible actions.
pub fn enabled(state: &State, bounds: &Bounds, actions: &mut Vec<Action>) {
    actions.push(Action::Tick);
    if state.lease.is_some() {
        actions.push(Action::LeaseEnds);
    }
    for at in 0..INSTANCES {
        let instance = &state.instances[at];
        if instance.late.is_some() {
            actions.push(Action::LateBeat(at));
        }
        if instance.document.is_some_and(|document| document.age >= STALE) {
            actions.push(Action::RemoveStale(at));
        }
        if instance.command.is_some() {
            actions.push(Action::LeaseCarriedOut(at));
        }
        if !instance.has_ended {
            actions.push(Action::Crash(at));
            let counts = instance.is_announced && instance.age < bounds.lapsed();
            if counts || !bounds.voids_views {
                actions.push(Action::View(at));
            }
            steps(instance, at, bounds, actions);
        }
    }
}

/// The actions of an instance.
fn steps(instance: &Instance, at: usize, bounds: &Bounds, actions: &mut Vec<Action>) {
    match instance.heartbeat {
        // Its heartbeats are always in time.
        _ if bounds.lapses[at] == 0 => {}
        None => actions.push(Action::Beat(at)),
        Some(heartbeat) => {
            actions.push(if heartbeat.is_carried_out {
                Action::BeatAcknowledged(at)
            } else {
                Action::BeatCarriedOut(at)
            });
            actions.push(Action::BeatGivenUp(at));
        }
    }
    if bounds.takes_over[at] {
        actions.push(Action::See(at));
    }
    let Some(view) = instance.view else { return };
    let has_lapsed = instance.age >= bounds.lapsed();
    if view.owner == Some(at) {
        actions.push(Action::Give(at));
        let is_announced = instance.is_announced || !bounds.has(Without::Announcement);
        if instance.command.is_none() && !has_lapsed && is_announced {
            actions.push(Action::SendLease(at));
        }
        return;
    }
    match view.owner {
        _ if has_lapsed || view.is_outdated => {}
        Some(owner) if view.fresh[owner].is_some() && !bounds.force => {}
        Some(owner) if view.fresh[owner].is_some() => actions.push(Action::Force(at)),
        _ => actions.push(Action::Claim(at)),
    }
}

/// The effect of an action; `None` if it changes nothing.
pub fn after(last: &State, action: Action, bounds: &Bounds) -> Option<State> {
    let mut state = last.clone();
    let fresh = last.fresh();
    match action {
        Action::Tick => tick(&mut state, bounds),
        Action::Crash(at) => end(&mut state, at),
        Action::Beat(at) => {
            let instance = &mut state.instances[at];
            let heartbeat = Heartbeat { id: instance.id, age: 0, is_carried_out: false };
            instance.heartbeat = Some(heartbeat);
        }
        Action::BeatCarriedOut(at) => {
            let heartbeat = state.instances[at].heartbeat.as_mut()?;
            heartbeat.is_carried_out = true;
            let Heartbeat { id, age, .. } = *heartbeat;
            write(&mut state.instances[at], id, age, bounds);
        }
        Action::BeatAcknowledged(at) => {
            let instance = &mut state.instances[at];
            let heartbeat = instance.heartbeat.take()?;
            instance.age = if bounds.has(Without::AgeFromSending) { heartbeat.age } else { 0 };
            instance.is_announced |= heartbeat.id == instance.id;
        }
        Action::BeatGivenUp(at) => give_up(&mut state.instances[at], bounds),
        Action::LateBeat(at) => {
            let id = state.instances[at].late.take()?;
            write(&mut state.instances[at], id, 0, bounds);
        }
        Action::RemoveStale(at) => state.instances[at].document = None,
        Action::View(at) => {
            let instance = &mut state.instances[at];
            instance.view = Some(View { owner: state.owner, fresh, is_outdated: false });
            instance.is_view_later = instance.seen.is_some();
        }
        Action::Claim(at) | Action::Force(at) => assign(&mut state, at, Some(at), bounds),
        Action::Give(at) => assign(&mut state, at, None, bounds),
        Action::See(at) => {
            let instance = &mut state.instances[at];
            let (seen, mine) = (state.lease.map(|lease| lease.owner), (at, instance.id));
            instance.seen = seen.filter(|seen| *seen != mine);
            instance.is_view_later = false;
        }
        Action::SendLease(at) => {
            let instance = &mut state.instances[at];
            let lease = Lease { owner: (at, instance.id), is_current: true };
            let dead = instance.seen.filter(|seen| is_dead(instance, *seen, bounds));
            instance.command = Some(Command { lease, dead });
        }
        Action::LeaseCarriedOut(at) => {
            let command = state.instances[at].command.take()?;
            lease(&mut state, command);
        }
        Action::LeaseEnds => state.lease = None,
    }
    (state != *last).then_some(state)
}

/// Whether the view of an instance shows that an owner id is dead.
fn is_dead(instance: &Instance, seen: OwnerId, bounds: &Bounds) -> bool {
    let Some(view) = instance.view else { return false };
    let is_later = instance.is_view_later
        || bounds.evidence == Evidence::ViewAfterClaim
        || !bounds.has(Without::LaterView);
    let is_fresh = view.fresh[seen.0] == Some(seen.1);
    is_later && (!is_fresh || !bounds.has(Without::Freshness))
}

/// One conditional update: free, or of a dead owner.
fn lease(state: &mut State, command: Command) {
    if let Some(lease) = state.lease {
        if command.dead != Some(lease.owner) {
            return;
        }
        let is_live = !state.instances[lease.owner.0].has_ended && lease.is_current;
        state.is_robbed |= is_live && lease.owner.0 != command.lease.owner.0;
    }
    state.lease = Some(command.lease);
}

fn write(instance: &mut Instance, id: u8, age: u8, bounds: &Bounds) {
    let is_older = instance.document.is_some_and(|document| document.id > id);
    if !is_older || !bounds.has(Without::Order) {
        instance.document = Some(Document { id, age });
    }
}

fn give_up(instance: &mut Instance, bounds: &Bounds) {
    let Some(heartbeat) = instance.heartbeat.take() else { return };
    if bounds.late && !heartbeat.is_carried_out {
        instance.late = Some(heartbeat.id);
    }
}

fn end(state: &mut State, at: usize) {
    let Instance { document, late, command, id, .. } = state.instances[at];
    let has_ended = true;
    state.instances[at] =
        Instance { has_ended, document, late, command, id, ..Instance::default() };
}

fn tick(state: &mut State, bounds: &Bounds) {
    for at in 0..INSTANCES {
        let instance = &mut state.instances[at];
        if bounds.lapses[at] == 0 && !instance.has_ended {
            continue;
        }
        if let Some(document) = &mut instance.document {
            document.age = (document.age + 1).min(STALE);
        }
        if instance.has_ended {
            continue;
        }
        let had_lapsed = instance.age >= bounds.lapsed();
        instance.age = (instance.age + 1).min(STALE + 1);
        if let Some(heartbeat) = &mut instance.heartbeat {
            heartbeat.age += 1;
            // Its sender waits no longer than that.
            if heartbeat.age > LAPSED {
                give_up(instance, bounds);
            }
        }
        if state.instances[at].age >= bounds.lapsed() && !had_lapsed {
            lapse(state, at, bounds);
        }
    }
}

/// An instance counts its partitions as lost; each of its steps compares its clock first.
fn lapse(state: &mut State, at: usize, bounds: &Bounds) {
    if state.instances[at].id >= bounds.lapses[at] && bounds.has(Without::NewId) {
        return end(state, at);
    }
    for lease in [&mut state.lease].into_iter().flatten() {
        lease.is_current &= lease.owner.0 != at;
    }
    let instance = &mut state.instances[at];
    if let Some(command) = &mut instance.command {
        command.lease.is_current = false;
    }
    (instance.view, instance.seen, instance.is_view_later) = (None, None, false);
    if bounds.has(Without::NewId) {
        instance.id += 1;
        instance.is_announced = false;
    }
}

/// One conditional write that names the epoch.
fn assign(state: &mut State, at: usize, owner: Option<usize>, bounds: &Bounds) {
    let Some(view) = state.instances[at].view else { return };
    if !view.is_outdated {
        state.owner = owner;
        let views = state.instances.iter_mut().filter_map(|instance| instance.view.as_mut());
        views.for_each(|view| view.is_outdated = true);
    }
    // It reads again before it leases; otherwise it uses the heartbeats that it has read.
    let by_claim = bounds.evidence == Evidence::ViewAfterClaim;
    let believes = by_claim && !bounds.has(Without::LaterView) && !view.is_outdated;
    let believed = Some(View { owner, is_outdated: true, ..view });
    state.instances[at].view = believed.filter(|_| believes && owner.is_some());
}
