//! The possible actions, and their effects.

use super::{
    Action, Bounds, Phase, Process, Registry, SEEN, SLOTS, STAYS, State, TIME, WAIT, Without,
};

/// All possible actions.
pub fn enabled(state: &State, bounds: &Bounds, actions: &mut Vec<Action>) {
    if state.breach.is_some() {
        return;
    }
    if state.processes.iter().all(|process| !is_urgent(process)) {
        actions.push(Action::Tick);
    }
    let count = state.processes.iter().filter(|process| process.phase != Phase::Gone).count();
    let unknown = (0..SLOTS).find(|at| !is_known(state, *at));
    actions.extend(unknown.filter(|_| count < bounds.processes).map(Action::Start));
    for (at, process) in state.processes.iter().enumerate() {
        if process.late.is_some() {
            actions.push(Action::LateReplace(at));
        }
        // `stale_after` is longer than a look permits to act.
        let is_silent =
            process.phase == Phase::Gone || process.hangs && !bounds.has_looked(process);
        if process.has_document && is_silent {
            actions.push(Action::Forget(at));
        }
        if process.phase == Phase::Gone {
            continue;
        }
        actions.push(Action::Crash(at));
        if process.hangs {
            actions.push(Action::Wake(at));
        } else {
            actions.push(Action::Hang(at));
            steps(state, at, bounds, actions);
        }
    }
}

/// A process that does not hang does this before time passes.
fn is_urgent(process: &Process) -> bool {
    let looks = process.phase.holds() && process.look_age > 0;
    let replaces = match process.phase {
        Phase::Asks(_) => process.wait >= WAIT,
        Phase::Replaces(_) => true,
        _ => false,
    };
    process.runs() && (looks || replaces)
}

fn is_known(state: &State, at: usize) -> bool {
    let is_named = |process: &Process| {
        let phase = match process.phase {
            Phase::Saw(holder, asked) => holder == at || asked == Some(at),
            Phase::Asks(holder) | Phase::Replaces(holder) | Phase::Seizes(holder) => holder == at,
            Phase::Holds(before) | Phase::HasBeaten(before) => before == Some(at),
            _ => false,
        };
        phase || process.late == Some(at)
    };
    let Process { phase, late, has_document, .. } = state.processes[at];
    let is_itself = phase != Phase::Gone || late.is_some() || has_document;
    is_itself || state.is_holder(at) || state.processes.iter().any(is_named)
}

/// The actions of a process that does not hang.
fn steps(state: &State, at: usize, bounds: &Bounds, actions: &mut Vec<Action>) {
    let process = &state.processes[at];
    let has_looked = bounds.has_looked(process);
    match process.phase {
        Phase::Gone => {}
        Phase::Reads => actions.push(Action::Read(at)),
        Phase::Saw(holder, asked) => {
            let waited = asked.is_none() || process.wait > WAIT;
            if waited || !bounds.has(Without::QuestionStands) {
                actions.push(Action::Ask(at));
            } else {
                actions.push(Action::Read(at));
            }
            if !bounds.has(Without::AskAlways) && !state.processes[holder].has_document {
                actions.push(Action::FindNoDocument(at));
            }
        }
        Phase::Asks(_) => actions.push(Action::Check(at)),
        Phase::Replaces(_) => {
            actions.push(Action::Replace(at));
            if bounds.lost {
                actions.push(Action::ReplaceLost(at));
            }
        }
        Phase::Seizes(_) => actions.push(Action::Seize(at)),
        Phase::Holds(_) if has_looked && bounds.has(Without::BeatFirst) => {
            actions.push(Action::Beat(at));
        }
        Phase::Holds(_) if has_looked => actions.push(Action::Remove(at)),
        Phase::HasBeaten(_) if has_looked => actions.push(Action::Remove(at)),
        Phase::Acts => {
            let creates = has_looked || !bounds.has(Without::NoNewDocument);
            if !process.has_document && creates {
                actions.push(Action::Beat(at));
            }
            actions.push(Action::Stop(at));
        }
        _ => {}
    }
    if process.phase.holds() {
        actions.push(Action::Look(at));
    }
}

/// The effect of an action; `None` if it changes nothing.
pub fn after(last: &State, action: Action, bounds: &Bounds) -> Option<State> {
    let mut state = last.clone();
    match action {
        Action::Tick => tick(&mut state, bounds),
        Action::Start(at) => {
            state.processes[at] = Process { phase: Phase::Reads, ..Process::default() };
        }
        Action::Crash(at) => end(&mut state, at),
        Action::Hang(at) => {
            let process = &mut state.processes[at];
            (process.hangs, process.has_hung) = (true, true);
        }
        Action::Wake(at) => wake(&mut state.processes[at], bounds),
        Action::Forget(at) => state.processes[at].has_document = false,
        Action::Stop(at) => {
            state.registry = state.registry.filter(|registry| registry.holder != at);
            state.processes[at].has_document = false;
            end(&mut state, at);
        }
        Action::Read(at) => read(&mut state, at, bounds),
        Action::Ask(at) => ask(&mut state, at, bounds),
        Action::Check(at) => check(&mut state, at)?,
        Action::Replace(at) => {
            let Phase::Replaces(holder) = state.processes[at].phase else { return None };
            state.processes[at].phase = Phase::Reads;
            if replace(&mut state, at, holder, bounds) {
                hold(&mut state, at, Some(holder), bounds);
            }
        }
        Action::ReplaceLost(at) => {
            let Phase::Replaces(holder) = state.processes[at].phase else { return None };
            let process = &mut state.processes[at];
            (process.phase, process.late) = (Phase::Reads, Some(holder));
        }
        Action::LateReplace(at) => {
            let holder = state.processes[at].late.take()?;
            replace(&mut state, at, holder, bounds);
        }
        Action::FindNoDocument(at) => {
            let Phase::Saw(holder, _) = state.processes[at].phase else { return None };
            state.processes[at].phase = Phase::Seizes(holder);
        }
        Action::Seize(at) => {
            let Phase::Seizes(holder) = state.processes[at].phase else { return None };
            state.processes[at].phase = Phase::Reads;
            if state.is_holder(holder) {
                let replaced = &state.processes[holder];
                if replaced.phase.holds() && replaced.runs() && !replaced.has_hung {
                    state.break_promise(STAYS, bounds);
                }
                state.registry = Some(Registry { holder: at, ..Registry::default() });
                hold(&mut state, at, Some(holder), bounds);
            }
        }
        Action::Beat(at) => {
            let process = &mut state.processes[at];
            process.has_document = true;
            if let Phase::Holds(before) = process.phase {
                process.phase = Phase::HasBeaten(before);
            }
        }
        Action::Remove(at) => remove(&mut state, at, bounds),
        Action::Look(at) => look(&mut state, at, bounds),
    }
    (state != *last).then_some(state)
}

fn tick(state: &mut State, bounds: &Bounds) {
    for process in state.processes.iter_mut() {
        if process.phase.holds() {
            process.look_age = (process.look_age + 1).min(bounds.look_holds());
        }
        match process.phase {
            Phase::Saw(_, Some(_)) => process.wait = (process.wait + 1).min(WAIT + 1),
            Phase::Asks(_) => process.wait = (process.wait + 1).min(WAIT),
            _ => {}
        }
    }
}

/// Ends a process; its question no longer counts.
fn end(state: &mut State, at: usize) {
    let has_document = state.processes[at].has_document;
    state.processes[at] = Process { has_document, ..Process::default() };
    if let Some(registry) = &mut state.registry {
        registry.asked = registry.asked.filter(|asked| *asked != at);
        registry.answers = registry.answers.filter(|answers| *answers != at);
    }
    for process in &mut state.processes {
        if let Phase::Saw(holder, Some(asked)) = process.phase
            && asked == at
        {
            process.phase = Phase::Saw(holder, None);
            process.wait = 0;
        }
    }
}

/// A new holder that hung starts again.
fn wake(process: &mut Process, bounds: &Bounds) {
    process.hangs = false;
    if bounds.has_looked(process) {
        return;
    }
    process.phase = match process.phase {
        Phase::HasBeaten(before) => Phase::Holds(before),
        Phase::HasRemoved => Phase::Holds(None),
        phase => phase,
    };
}

fn read(state: &mut State, at: usize, bounds: &Bounds) {
    let Some(registry) = state.registry else {
        // It inserts the document; one of two inserts fails.
        state.registry = Some(Registry { holder: at, ..Registry::default() });
        let process = &mut state.processes[at];
        (process.phase, process.look_age, process.wait) = (Phase::Holds(None), 0, 0);
        return;
    };
    let process = &mut state.processes[at];
    if registry.holder == at {
        // By a compare-and-set whose answer was lost.
        (process.phase, process.wait, process.late) = (Phase::Holds(None), 0, None);
        return look(state, at, bounds);
    }
    let saw = Phase::Saw(registry.holder, registry.asked.filter(|asked| *asked != at));
    if process.phase != saw {
        (process.phase, process.wait) = (saw, 0);
    }
}

fn ask(state: &mut State, at: usize, bounds: &Bounds) {
    let Phase::Saw(holder, asked) = state.processes[at].phase else { return };
    if !bounds.has(Without::Question) {
        state.processes[at].phase = Phase::Replaces(holder);
        return;
    }
    state.processes[at].phase = Phase::Reads;
    let Some(registry) = state.registry.as_mut().filter(|registry| registry.holder == holder)
    else {
        return;
    };
    let others = registry.asked.filter(|asked| *asked != at);
    if others != asked && bounds.has(Without::QuestionStands) {
        return;
    }
    (registry.asked, registry.answers) = (Some(at), registry.answers.filter(|to| *to != at));
    let knew = Phase::Saw(holder, Some(at));
    for process in state.processes.iter_mut().filter(|process| process.phase == knew) {
        // It had read an earlier question.
        process.phase = Phase::Reads;
    }
    if let Some(other) = others {
        let Process { phase, hangs, has_hung, .. } = state.processes[other];
        let waits = phase == Phase::Asks(holder) || phase == Phase::Replaces(holder);
        if waits && !hangs && !has_hung {
            state.break_promise(TIME, bounds);
        }
    }
    let hangs = state.processes[holder].hangs;
    state.processes[holder].has_hung = hangs;
    let process = &mut state.processes[at];
    (process.phase, process.wait, process.has_hung) = (Phase::Asks(holder), 0, false);
    process.late = process.late.filter(|_| !bounds.has(Without::FreshQuestion));
}

fn check(state: &mut State, at: usize) -> Option<()> {
    let Phase::Asks(holder) = state.processes[at].phase else { return None };
    let registry = state.registry.filter(|registry| registry.holder == holder);
    let process = &mut state.processes[at];
    match registry {
        // It ends with an error, or tries another name.
        Some(registry) if registry.answers == Some(at) => end(state, at),
        Some(registry) if registry.asked == Some(at) && process.wait < WAIT => {}
        Some(registry) if registry.asked == Some(at) => {
            (process.phase, process.wait) = (Phase::Replaces(holder), 0);
        }
        _ => (process.phase, process.wait) = (Phase::Reads, 0),
    }
    Some(())
}

/// One compare-and-set; whether it matched.
fn replace(state: &mut State, at: usize, holder: usize, bounds: &Bounds) -> bool {
    let is_asked = state.registry.is_some_and(|registry| registry.asked == Some(at));
    let compares_question = bounds.has(Without::CompareQuestion) && bounds.has(Without::Question);
    let matches = state.is_holder(holder) && (is_asked || !compares_question);
    if !matches && bounds.has(Without::CompareAndSet) {
        return false;
    }
    if let Some(Registry { holder, .. }) = state.registry {
        let replaced = &state.processes[holder];
        if holder != at && replaced.phase.holds() && replaced.runs() && !replaced.has_hung {
            state.break_promise(STAYS, bounds);
        }
    }
    state.registry = Some(Registry { holder: at, ..Registry::default() });
    true
}

fn hold(state: &mut State, at: usize, before: Option<usize>, bounds: &Bounds) {
    let process = &mut state.processes[at];
    let before = before.filter(|_| !bounds.has(Without::RemoveAll));
    (process.phase, process.look_age, process.has_hung) = (Phase::Holds(before), 0, false);
    process.wait = 0;
}

fn remove(state: &mut State, at: usize, bounds: &Bounds) {
    let before = match state.processes[at].phase {
        Phase::Holds(before) | Phase::HasBeaten(before) => before,
        _ => None,
    };
    let goes =
        |other: usize| other != at && (bounds.has(Without::RemoveAll) || before == Some(other));
    let removed = (0..SLOTS).filter(|other| goes(*other) && state.processes[*other].has_document);
    if removed.count() > 0 && !state.processes[at].has_document {
        state.break_promise(SEEN, bounds);
    }
    for other in (0..SLOTS).filter(|other| goes(*other)) {
        state.processes[other].has_document = false;
    }
    state.processes[at].phase = Phase::HasRemoved;
}

/// A look at the registry, and the answer to a question.
fn look(state: &mut State, at: usize, bounds: &Bounds) {
    let registry = state.registry.as_mut().filter(|registry| registry.holder == at);
    let Some(registry) = registry else { return end(state, at) };
    if let Some(asked) = registry.asked {
        registry.answers = Some(asked);
        registry.asked = registry.asked.filter(|_| !bounds.has(Without::AnswerEndsQuestion));
    }
    let process = &mut state.processes[at];
    process.look_age = 0;
    if process.phase == Phase::HasRemoved {
        process.phase = Phase::Acts;
    }
}
