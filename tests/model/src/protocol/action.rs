//! The possible actions, and their effects.

use super::bounds::{Bounds, Clocks, MAX_RECORDS, MAX_RELAYS, Without};
use super::plan::{Plan, Set, plan};
use super::promise::Breach;
use super::relay::{Relay, Sent, Step, members};
use super::state::{Deposed, State, Stray};
use super::store::{Outcome, Record, Status};

/// An action; each names the code that does it. The first number is the relay, the second the
/// record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// A producer's transaction commits.
    Insert(usize),
    /// A scan: read and planned (`relay::scanner`).
    Look(usize),
    /// A lane has few records left and asks for more (`Lane::next`).
    AskMore(usize),
    /// Its scan reads.
    ReadMore(usize),
    /// The result is planned.
    PlanMore(usize),
    /// Without guard 1: a scan reads one more record.
    ScanOn(usize),
    /// The lease command, and a lane of what is leased (`Leaser::lease`, `relay::acquirer`).
    Lease(usize),
    /// The lease command reaches these records, and is not answered.
    LeaseUnanswered(usize, Set),
    /// A lease command without a waiting client changes one document.
    StrayLease(usize),
    /// A poison record that has exhausted its attempts is marked dead.
    MarkDead(usize),
    /// The next one is published, unless it is lost or its lease has ended. (A pause between the
    /// last look at the clock and this is a message that is in flight for long.)
    Publish(usize),
    /// The broker has it.
    Arrive(usize, usize),
    /// The broker has a message that no relay waits for.
    ArriveOrphan(usize),
    Confirm(usize, usize),
    Nack(usize, usize),
    /// The connection is lost before the confirm.
    Unknown(usize, usize),
    /// The settlement writer writes an outcome; the answer arrives when a majority has it.
    Settle(usize, usize),
    /// The same, and its answer is lost: it must be repeated.
    SettleUnanswered(usize, usize),
    /// A death that did not match is read back (`Settlements::read_back`).
    ReadBack(usize, usize),
    /// Leases are renewed (`relay::lease_renewal`).
    Renew(usize),
    /// By its own clock the lease has ended.
    BudgetEnds(usize),
    /// The lane must end: stop, sink down, lost partition.
    Interrupt(usize),
    Crash(usize),
    /// Its `leaseUntil` passes.
    Expire(usize),
    /// Its `visibleAt` passes.
    Due(usize),
    /// A majority catches up.
    Replicate,
    /// Another member becomes primary, without what a majority lacks.
    Failover,
    /// A relay learns of it.
    Hear(usize),
    Requeue(usize),
    Discard(usize),
    Redeliver(usize),
}

/// All possible actions.
pub fn enabled(state: &State, bounds: &Bounds, actions: &mut Vec<Action>) {
    if state.breach.is_some() {
        return;
    }
    for number in 0..bounds.records {
        of_record(state, number, bounds, actions);
    }
    for relay in 0..bounds.relays {
        of_relay(state, relay, bounds, actions);
    }
    if let Some(stray) = state.stray {
        actions.extend(members(stray.todo).map(Action::StrayLease));
    }
    actions.extend(members(state.orphans).map(Action::ArriveOrphan));
    if bounds.rollback {
        let written = |relay: &Relay| {
            let items = relay.lane.items.iter().flatten();
            !relay.behind && items.into_iter().any(|item| matches!(item.sent, Sent::Written(_)))
        };
        if state.primary != state.stable || state.relays.iter().any(written) {
            actions.push(Action::Replicate);
        }
        if state.deposed.is_none() && state.primary != state.stable {
            actions.push(Action::Failover);
        }
    }
}

fn of_record(state: &State, number: usize, bounds: &Bounds, actions: &mut Vec<Action>) {
    let record = &state.primary[number];
    let is_there = |earlier: usize| state.primary[earlier].status != Status::Absent;
    if record.status == Status::Absent {
        let free = bounds.overlapping && number == 1;
        if free || (0..number).all(is_there) {
            actions.push(Action::Insert(number));
        }
    }
    if may_expire(state, number, bounds) {
        actions.push(Action::Expire(number));
    }
    if copies(state).any(|records| records[number].resting) {
        actions.push(Action::Due(number));
    }
    if bounds.operator {
        if record.is_dead() {
            actions.push(Action::Requeue(number));
        }
        if record.is_dead() || (record.status == Status::Pending && !record.is_leased()) {
            actions.push(Action::Discard(number));
        }
        if record.status == Status::Done {
            actions.push(Action::Redeliver(number));
        }
    }
}

fn copies(state: &State) -> impl Iterator<Item = &super::store::Records> {
    let deposed = state.deposed.iter().flat_map(|deposed| [&deposed.primary, &deposed.stable]);
    [&state.primary, &state.stable].into_iter().chain(deposed)
}

fn may_expire(state: &State, number: usize, bounds: &Bounds) -> bool {
    let is_live = |record: &Record| record.lease != 0 && record.live;
    if !copies(state).any(|records| is_live(&records[number])) {
        return false;
    }
    let lease = state.primary[number].lease;
    let bit = 1 << number;
    let counts_on_it = |relay: &Relay| {
        let taking = relay.take.step == Step::Again && relay.take.token == lease;
        let holding = relay.lane.tokens[number] == lease && relay.lane.unsettled() & bit != 0;
        relay.budget && (taking || holding)
    };
    let knows = |relay: &Relay| {
        let taking = relay.take.step == Step::Again && relay.take.token == lease;
        taking || relay.lane.tokens[number] == lease
    };
    match bounds.clocks {
        Clocks::Any => true,
        Clocks::Orderly => !state.relays.iter().any(counts_on_it),
        Clocks::Renewed => !state.relays.iter().any(knows),
    }
}

fn of_relay(state: &State, at: usize, bounds: &Bounds, actions: &mut Vec<Action>) {
    let relay = &state.relays[at];
    let (take, lane) = (&relay.take, &relay.lane);
    match take.step {
        Step::None if !lane.active => actions.push(Action::Look(at)),
        Step::None => {
            if lane.more && !lane.ending {
                actions.push(Action::AskMore(at));
            }
        }
        Step::Asked => actions.push(Action::ReadMore(at)),
        Step::Reading if lane.active => actions.push(Action::PlanMore(at)),
        Step::Reading => actions.push(Action::ScanOn(at)),
        Step::Saw if take.plan.spent != 0 => actions.push(Action::MarkDead(at)),
        Step::Saw | Step::Again => {
            actions.push(Action::Lease(at));
            if bounds.lost_answers && (take.step == Step::Saw || bounds.clocks != Clocks::Renewed) {
                let subsets = (0..1 << MAX_RECORDS).filter(|set| set & !take.plan.run == 0);
                actions.extend(subsets.map(|set| Action::LeaseUnanswered(at, set)));
            }
        }
    }
    if lane.active {
        of_lane(state, at, bounds, actions);
    }
    let busy = take.step == Step::Again || lane.active;
    if bounds.clocks == Clocks::Orderly && relay.budget && busy {
        actions.push(Action::BudgetEnds(at));
    }
    if bounds.crash && (busy || take.step != Step::None) {
        actions.push(Action::Crash(at));
    }
    if relay.behind {
        actions.push(Action::Hear(at));
    }
}

fn of_lane(state: &State, at: usize, bounds: &Bounds, actions: &mut Vec<Action>) {
    let lane = &state.relays[at].lane;
    let alone = lane.under_way == 0 || !bounds.has(Without::PredecessorsConfirm);
    if lane.waiting != 0 && lane.awaited == 0 && alone && !lane.ending {
        actions.push(Action::Publish(at));
    }
    for number in members(lane.under_way) {
        let bit = 1 << number;
        if lane.flight & bit != 0 {
            actions.push(Action::Arrive(at, number));
            if bounds.nack {
                actions.push(Action::Nack(at, number));
            }
        } else {
            actions.push(Action::Confirm(at, number));
        }
        if bounds.unknown {
            actions.push(Action::Unknown(at, number));
        }
    }
    for (number, item) in lane.items.iter().enumerate() {
        let Some(item) = item else { continue };
        if item.sent == Sent::No {
            actions.push(Action::Settle(at, number));
        }
        if item.sent == Sent::Unmatched {
            actions.push(Action::ReadBack(at, number));
        }
        // Before its majority has it, or as it is written.
        if bounds.lost_answers && item.sent != Sent::Unmatched {
            actions.push(Action::SettleUnanswered(at, number));
        }
    }
    if bounds.renew && lane.unsettled() != 0 {
        actions.push(Action::Renew(at));
    }
    let has_more = lane.more || state.relays[at].take.step != Step::None;
    if bounds.interrupt && !lane.ending && (lane.waiting != 0 || has_more) {
        actions.push(Action::Interrupt(at));
    }
}

/// The effect of an action; `None` if it changes nothing.
pub fn after(last: &State, action: Action, bounds: &Bounds) -> Option<State> {
    let mut state = last.clone();
    match action {
        Action::Insert(number) => state.primary[number].status = Status::Pending,
        Action::Look(at) => look(&mut state, at, bounds),
        Action::AskMore(at) => {
            state.relays[at].take.step = Step::Asked;
            state.relays[at].lane.meanwhile = 0;
        }
        Action::ReadMore(at) => {
            state.relays[at].take.seen = *state.snapshot(at);
            state.relays[at].take.step = Step::Reading;
        }
        Action::PlanMore(at) => plan_more(&mut state.relays[at], bounds),
        Action::ScanOn(at) => scan_on(&mut state, at, bounds),
        Action::Lease(at) => lease(&mut state, at, bounds),
        Action::LeaseUnanswered(at, reached) => unanswered(&mut state, at, reached, bounds),
        Action::StrayLease(number) => stray_lease(&mut state, number, bounds),
        Action::MarkDead(at) => mark_dead(&mut state, at, bounds),
        Action::Publish(at) => publish(&mut state, at, bounds),
        Action::Arrive(at, number) => {
            state.relays[at].lane.flight &= !(1 << number);
            state.arrive(number, bounds);
        }
        Action::ArriveOrphan(number) => {
            state.orphans &= !(1 << number);
            state.arrive(number, bounds);
        }
        Action::Confirm(at, number) => {
            let lane = &mut state.relays[at].lane;
            lane.under_way &= !(1 << number);
            lane.settle(number, Outcome::Done);
        }
        Action::Nack(at, number) => {
            let lane = &mut state.relays[at].lane;
            lane.flight &= !(1 << number);
            failed(&mut state, at, number, bounds);
        }
        Action::Unknown(at, number) => unknown(&mut state, at, number, bounds),
        Action::Settle(at, number) => settle(&mut state, at, number, bounds),
        Action::SettleUnanswered(at, number) => {
            settle(&mut state, at, number, bounds);
            state.relays[at].lane.items[number].as_mut()?.sent = Sent::No;
        }
        Action::ReadBack(at, number) => read_back(&mut state, at, number, bounds),
        Action::Renew(at) => renew(&mut state, at, bounds),
        Action::BudgetEnds(at) => state.relays[at].budget = false,
        Action::Interrupt(at) => end(&mut state, at, bounds),
        Action::Crash(at) => crash(&mut state, at),
        Action::Expire(number) => each_copy(&mut state, |records| records[number].live = false),
        Action::Due(number) => each_copy(&mut state, |records| records[number].resting = false),
        Action::Replicate => {
            state.replicate();
            answer_settled(&mut state, bounds);
        }
        Action::Failover => failover(&mut state, bounds),
        Action::Hear(at) => hear(&mut state, at),
        Action::Requeue(number) | Action::Redeliver(number) => {
            state.primary[number].requeue(bounds);
        }
        Action::Discard(number) => {
            state.primary[number].discard();
        }
    }
    if !bounds.rollback {
        state.replicate();
        answer_settled(&mut state, bounds);
    }
    // A repeated message looks the same.
    state.orphans &= !state.arrived;
    for relay in &mut state.relays {
        let lane = &relay.lane;
        if lane.active && lane.in_flight() == 0 && relay.take.step == Step::None {
            relay.lane = Default::default();
        }
        if !relay.lane.active && relay.take.step != Step::Again {
            relay.budget = false;
        }
    }
    if state.deposed.is_some() && !state.relays.iter().any(|relay| relay.behind) {
        state.deposed = None;
    }
    (state != *last).then_some(state)
}

fn each_copy(state: &mut State, change: impl Fn(&mut super::store::Records)) {
    change(&mut state.primary);
    change(&mut state.stable);
    if let Some(deposed) = &mut state.deposed {
        change(&mut deposed.primary);
        change(&mut deposed.stable);
    }
}

fn look(state: &mut State, at: usize, bounds: &Bounds) {
    if !bounds.has(Without::OneMoment) {
        return scan_on(state, at, bounds);
    }
    let seen =
        if bounds.has(Without::MajorityRead) { *state.snapshot(at) } else { *state.local(at) };
    let plan = plan(&seen, 0, bounds);
    saw(&mut state.relays[at], plan, &seen);
}

fn saw(relay: &mut Relay, plan: Plan, seen: &super::store::Records) {
    relay.take.clear();
    if plan.run | plan.spent == 0 {
        return;
    }
    relay.take.plan = plan;
    relay.take.step = Step::Saw;
    if let Some(number) = members(plan.spent).next() {
        relay.take.plan = Plan { spent: plan.spent, ..Plan::default() };
        relay.take.token = seen[number].lease;
    }
}

fn scan_on(state: &mut State, at: usize, bounds: &Bounds) {
    let number = usize::from(state.relays[at].take.read);
    let record = state.snapshot(at)[number];
    let take = &mut state.relays[at].take;
    take.step = Step::Reading;
    take.seen[number] = record;
    take.read += 1;
    if usize::from(take.read) == bounds.records {
        let seen = take.seen;
        saw(&mut state.relays[at], plan(&seen, 0, bounds), &seen);
    }
}

fn plan_more(relay: &mut Relay, bounds: &Bounds) {
    let seen = relay.take.seen;
    let plan = plan(&seen, relay.lane.in_flight() | relay.lane.meanwhile, bounds);
    relay.take.clear();
    relay.lane.more = false;
    // A poison record's turn does not come while its key is in flight.
    if plan.run == 0 || plan.alone {
        relay.lane.meanwhile = 0;
        return;
    }
    relay.take.plan = plan;
    relay.take.step = Step::Saw;
}

fn lease(state: &mut State, at: usize, bounds: &Bounds) {
    let run = state.relays[at].take.plan.run;
    send_lease(state, at, run, bounds);
    let token = state.relays[at].take.token;
    let held = members(run)
        .filter(|number| state.local(at)[*number].holds(token))
        .fold(0, |set, number| set | 1 << number);
    let front = if bounds.has(Without::HeldFront) { leading(run, held) } else { held };
    // The release is one command; the records that it does not reach stay leased until the lease
    // ends.
    for number in members(held & !front) {
        state.store(at)[number].settle(token, Outcome::Released, bounds);
    }
    let relay = &mut state.relays[at];
    let lane = &mut relay.lane;
    lane.meanwhile = 0;
    if front != 0 {
        relay.budget = bounds.clocks == Clocks::Orderly;
        lane.active = true;
        lane.alone = relay.take.plan.alone;
        lane.more = relay.take.plan.more && bounds.refill;
        lane.waiting |= front;
        for number in members(front) {
            lane.tokens[number] = token;
            lane.attempts[number] = relay.take.plan.attempts[number];
        }
    }
    relay.take.clear();
    if state.relays[at].lane.ending {
        end(state, at, bounds);
    }
}

/// The part of the run before the first record that is not leased.
fn leading(run: Set, held: Set) -> Set {
    members(run).take_while(|number| held & 1 << number != 0).fold(0, |set, one| set | 1 << one)
}

/// The command itself, on those of its records that it reaches.
fn send_lease(state: &mut State, at: usize, reached: Set, bounds: &Bounds) {
    let fresh = state.fresh();
    let take = &mut state.relays[at].take;
    if take.step == Step::Saw || !bounds.has(Without::SameLeaseId) {
        take.token = fresh;
    }
    let token = take.token;
    for number in members(reached) {
        let (_, breach) = state.store(at)[number].take(token, bounds);
        state.breach = state.breach.or(breach);
    }
}

/// It is sent twice at most.
fn unanswered(state: &mut State, at: usize, reached: Set, bounds: &Bounds) {
    send_lease(state, at, reached, bounds);
    let relay = &mut state.relays[at];
    let stray = Stray { token: relay.take.token, todo: relay.take.plan.run & !reached };
    match relay.take.step {
        Step::Saw => relay.take.step = Step::Again,
        _ => {
            relay.take.clear();
            relay.lane.meanwhile = 0;
        }
    }
    if bounds.strays && stray.todo != 0 && state.stray.is_none() && !relay.behind {
        state.stray = Some(stray);
    }
}

fn stray_lease(state: &mut State, number: usize, bounds: &Bounds) {
    let Some(stray) = &mut state.stray else { return };
    let token = stray.token;
    stray.todo &= !(1 << number);
    if stray.todo == 0 {
        state.stray = None;
    }
    let (_, breach) = state.primary[number].take(token, bounds);
    state.breach = breach;
}

fn mark_dead(state: &mut State, at: usize, bounds: &Bounds) {
    let take = &state.relays[at].take;
    let (spent, seen) = (take.plan.spent, take.token);
    for number in members(spent) {
        state.store(at)[number].mark_dead(seen, bounds);
    }
    state.relays[at].take.clear();
}

fn publish(state: &mut State, at: usize, bounds: &Bounds) {
    let relay = &mut state.relays[at];
    let lane = &mut relay.lane;
    let Some(number) = members(lane.waiting).next() else { return };
    let bit = 1 << number;
    if lane.lost & bit != 0 {
        lane.drop_lost(bit);
        if bounds.has(Without::LostEndsLane) {
            end(state, at, bounds);
        }
        return;
    }
    let spent = bounds.clocks == Clocks::Orderly && !relay.budget;
    if spent && bounds.has(Without::Budget) {
        return end(state, at, bounds);
    }
    lane.waiting &= !bit;
    lane.under_way |= bit;
    lane.flight |= bit;
    let record = &state.primary[number];
    let foreign = record.is_leased() && record.lease != state.relays[at].lane.tokens[number];
    if foreign && bounds.clocks != Clocks::Any {
        state.breach = Some(Breach::LateStart);
    }
}

/// `Delivery::Failed`: again later, or dead at the limit.
fn failed(state: &mut State, at: usize, number: usize, bounds: &Bounds) {
    let lane = &mut state.relays[at].lane;
    let bit = 1 << number;
    lane.under_way &= !bit;
    if lane.attempts[number] < bounds.max_attempts {
        lane.settle(number, Outcome::Retry);
        return end(state, at, bounds);
    }
    lane.settle(number, Outcome::Dead);
    if bounds.has(Without::DeathAwaited) {
        lane.awaited = bit;
    }
}

fn unknown(state: &mut State, at: usize, number: usize, bounds: &Bounds) {
    let bit = 1 << number;
    let lane = &mut state.relays[at].lane;
    state.orphans |= lane.flight & bit;
    lane.flight &= !bit;
    if lane.alone {
        return failed(state, at, number, bounds);
    }
    if !bounds.has(Without::ConfirmForDone) {
        lane.under_way &= !bit;
        return lane.settle(number, Outcome::Done);
    }
    // It is released like those behind it.
    lane.under_way &= !bit;
    lane.waiting |= bit;
    end(state, at, bounds);
}

/// The lane ends: what waits is released.
///
/// At once: until then its lease protects it, which may end at any moment in any case.
fn end(state: &mut State, at: usize, bounds: &Bounds) {
    let lane = &mut state.relays[at].lane;
    lane.ending = true;
    let (waiting, tokens) = (std::mem::take(&mut lane.waiting), lane.tokens);
    lane.lost = 0;
    for number in members(waiting) {
        state.relays[at].lane.forget(number);
        let settled = state.store(at)[number].settle(tokens[number], Outcome::Released, bounds);
        state.breach = state.breach.or(settled.breach);
    }
}

fn settle(state: &mut State, at: usize, number: usize, bounds: &Bounds) {
    let token = state.relays[at].lane.tokens[number];
    let Some(item) = state.relays[at].lane.items[number] else { return };
    if item.sent != Sent::No {
        return;
    }
    let settled = state.store(at)[number].settle(token, item.outcome, bounds);
    let done = settled.matched && item.outcome == Outcome::Done;
    state.breach =
        if done && state.arrived & 1 << number == 0 { Some(Breach::Loss) } else { settled.breach };
    if let Some(item) = &mut state.relays[at].lane.items[number] {
        item.sent = Sent::Written(settled.matched);
    }
}

fn read_back(state: &mut State, at: usize, number: usize, bounds: &Bounds) {
    let lane = &state.relays[at].lane;
    let read =
        if bounds.has(Without::MajorityReadBack) { state.snapshot(at) } else { state.local(at) };
    let ours = read[number].is_dead_after(lane.attempts[number]);
    settled(state, at, number, ours, bounds);
}

/// A majority has the written outcomes, and the relays get the answers.
fn answer_settled(state: &mut State, bounds: &Bounds) {
    for at in 0..bounds.relays {
        for number in 0..bounds.records {
            if state.relays[at].behind {
                continue;
            }
            let Some(item) = &mut state.relays[at].lane.items[number] else { continue };
            match item.sent {
                Sent::No | Sent::Unmatched => {}
                // Whether another outcome was lost matters only to the metrics.
                Sent::Written(false) if item.outcome == Outcome::Dead => {
                    item.sent = Sent::Unmatched;
                }
                Sent::Written(matched) => settled(state, at, number, matched, bounds),
            }
        }
    }
}

fn settled(state: &mut State, at: usize, number: usize, ours: bool, bounds: &Bounds) {
    let relay = &mut state.relays[at];
    let lane = &mut relay.lane;
    let bit = 1 << number;
    lane.forget(number);
    if relay.take.step != Step::None {
        lane.meanwhile |= bit;
    }
    if lane.awaited & bit != 0 {
        lane.awaited = 0;
        let known = ours || !bounds.has(Without::DeathMatched);
        if !known || bounds.block {
            end(state, at, bounds);
        }
    }
}

fn renew(state: &mut State, at: usize, bounds: &Bounds) {
    let members_of = state.relays[at].lane.unsettled();
    let tokens = state.relays[at].lane.tokens;
    for number in members(members_of) {
        if !state.store(at)[number].renew(tokens[number]) {
            let lane = &mut state.relays[at].lane;
            lane.lost |= lane.waiting & 1 << number;
        }
    }
    state.relays[at].budget = bounds.clocks == Clocks::Orderly;
}

fn crash(state: &mut State, at: usize) {
    let relay = std::mem::take(&mut state.relays[at]);
    state.orphans |= relay.lane.flight;
}

fn failover(state: &mut State, bounds: &Bounds) {
    if bounds.deposed {
        state.deposed = Some(Deposed { primary: state.primary, stable: state.stable });
        for relay in &mut state.relays[..bounds.relays] {
            relay.behind = true;
        }
    }
    state.primary = state.stable;
    state.stray = None;
    if !bounds.deposed {
        (0..MAX_RELAYS).for_each(|at| hear(state, at));
    }
}

/// What was not answered is sent to the new primary.
fn hear(state: &mut State, at: usize) {
    let relay = &mut state.relays[at];
    relay.behind = false;
    for item in relay.lane.items.iter_mut().flatten() {
        if matches!(item.sent, Sent::Written(_)) {
            item.sent = Sent::No;
        }
    }
}
