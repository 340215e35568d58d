//! The result of a history, and its judgement.

use std::collections::HashSet;
use std::fmt;
use std::time::Duration;

use bson::DateTime;

use crate::appends::{self, Append};
use crate::checker::FeedFault;
use crate::ledger::{Breach, Ledger, Tally};
use crate::plan::{Kind, Plan, SINK_PROBE_INTERVAL_MAX, Setup, Sickness};
use crate::sickness::Healings;
use crate::support::history::{Arrival, Committed, Findings, judge};
use crate::traffic::{Class, POISON, Place};

/// How many of a kind are printed.
const MAX_EXAMPLES: usize = 8;

/// The longest that a healthy record may wait where only other destinations fail, whatever their
/// faults are, and whatever operators do with records of its key.
///
/// A record that breaks its connection interrupts all others on that connection, twice before it
/// goes alone, and there may be dozens of such records. Where processes hand over partitions, a
/// record waits until the former owner has ended its lanes.
const LONGEST_WAIT: Duration = Duration::from_secs(10);

/// What the machine may add to [`longest_undisturbed_wait`]. It has two cores, for the servers, the
/// processes and the commands of operators of two histories.
const MACHINE_MARGIN: Duration = Duration::from_secs(2);

/// The fewest lanes of a process (it has two for each record of `relay.batch_size`) with which
/// every key has one: those of producers, of bursts and of appends, and records without a key.
const FEWEST_LANES: usize = 20;

/// The longest that a healthy record may wait that nothing holds up but destinations that are
/// missing, forbidden or silent: 3 to 4 seconds.
///
/// | it may wait | for |
/// |---|---|
/// | `poll_interval` | the next look, where the change stream does not bring it |
/// | `sink_probe_interval_max` | the sink: a publish to a missing or forbidden exchange closes the channel of all |
/// | [`MACHINE_MARGIN`] | the rest, which takes some milliseconds on a machine without load |
///
/// The timeout of a sink is not among them: a destination that does not confirm takes room from
/// others for 0.6 s (`relay::publisher`), which is among the rest.
///
/// Judged are records of which nothing else can be the cause of a wait:
///
/// - the history is calm: no process, link, server or privilege fails;
/// - each key has room for a lane ([`FEWEST_LANES`]), so that none waits for the load alone;
/// - the partitions were divided before the producers began, and had the same owners in the end;
/// - no record takes connections down any more ([`Sickness::Poison`]);
/// - its key has a valid partition or none: others are corrected, or read in several partitions;
/// - no record of its key that was inserted before it waited for any of that, or for an operator.
///
/// The time until MongoDB has brought the insertion to a change stream of the test's own is not
/// counted: the relay cannot know of it earlier.
fn longest_undisturbed_wait(setup: &Setup) -> Duration {
    setup.poll + SINK_PROBE_INTERVAL_MAX + MACHINE_MARGIN
}

/// The result of a history.
#[derive(Debug, Default)]
pub struct Verdict {
    pub findings: Findings,
    pub breaches: Vec<Breach>,
    /// Records that were neither done nor dead when everything had been healthy for long.
    pub stuck: Vec<String>,
    /// Acknowledged to its producer, and not stored.
    pub forgotten: Vec<String>,
    /// Processes that ended otherwise than requested.
    pub oddities: Vec<String>,
    /// Records that the change stream should have delivered, and that an audit found.
    pub unbrought: Vec<String>,
    /// What is wrong with the appends.
    pub appends: Vec<appends::Fault>,
    /// What is wrong with the feed.
    pub feed: Vec<FeedFault>,
    /// Dead records without a copy at the dead-letter destination.
    pub without_copy: Vec<String>,
    /// Each sickness, and how long its sample waited: `None` means to the end.
    pub sick: Vec<(Sickness, Option<Duration>)>,
    /// Faults of the plan that had no effect: a destination that was not sick.
    pub without_effect: Vec<String>,
    /// A record that waited for another destination than its own.
    pub held_up: Option<(Duration, String)>,
    /// The record that waited longest of those that only destinations can delay.
    pub slowest: Option<(Duration, String)>,
    pub records: usize,
    pub appended: usize,
    pub tally: Tally,
    /// From the last healing until nothing was left to do.
    pub finished_in: Duration,
}

impl Verdict {
    /// What is wrong, each with its count.
    fn wrong(&self) -> Vec<(&'static str, usize)> {
        let all = [
            ("lost", self.findings.losses.len()),
            ("phantom", self.findings.phantoms.len()),
            ("order", self.findings.inversions.len()),
            ("lease", self.breaches.len()),
            ("stuck", self.stuck.len()),
            ("forgotten", self.forgotten.len()),
            ("process", self.oddities.len()),
            ("unbrought", self.unbrought.len()),
            ("append", self.appends.len()),
            ("feed", self.feed.len()),
            ("without-copy", self.without_copy.len()),
            ("without-effect", self.without_effect.len()),
            ("held-up", usize::from(self.held_up.is_some())),
        ];
        all.into_iter().filter(|(_, count)| *count > 0).collect()
    }

    /// Whether nothing is wrong.
    pub fn is_good(&self) -> bool {
        self.wrong().is_empty()
    }

    /// The verdict in one word, for a file of results.
    pub fn word(&self) -> String {
        let wrong = self.wrong();
        if wrong.is_empty() {
            return "kept".to_owned();
        }
        let wrong: Vec<String> = wrong.iter().map(|(what, n)| format!("{what}={n}")).collect();
        format!("broken:{}", wrong.join(","))
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { records, appended, tally, findings, finished_in, .. } = self;
        let duplicates = findings.duplicates;
        write!(f, "{records} records, {appended} appends, {duplicates} duplicates, {tally:?}, ")?;
        write!(f, "healed after {:.1} s", finished_in.as_secs_f64())?;
        if let Some((waited, id)) = &self.slowest {
            write!(f, ", undisturbed records waited {:.2} s at most ({id})", waited.as_secs_f64())?;
        }
        for (sick, waited) in &self.sick {
            match waited {
                Some(waited) => write!(f, ", {sick:?} sick for {:.1} s", waited.as_secs_f64())?,
                None => write!(f, ", {sick:?} sick to the end")?,
            }
        }
        some(f, "lost", &self.findings.losses)?;
        some(f, "phantoms", &self.findings.phantoms)?;
        some(f, "out of order", &self.findings.inversions)?;
        some(f, "against a lease", &self.breaches)?;
        some(f, "stuck", &self.stuck)?;
        some(f, "acknowledged and not there", &self.forgotten)?;
        some(f, "processes", &self.oddities)?;
        some(f, "found by audits", &self.unbrought)?;
        some(f, "appends", &self.appends)?;
        some(f, "feed", &self.feed)?;
        some(f, "dead without a copy", &self.without_copy)?;
        some(f, "faults without effect", &self.without_effect)?;
        some(f, "held up by other destinations", self.held_up.as_slice())
    }
}

fn some<T: fmt::Debug>(f: &mut fmt::Formatter<'_>, what: &str, all: &[T]) -> fmt::Result {
    if all.is_empty() {
        return Ok(());
    }
    write!(f, "\n{what}: {} in all, {:?}", all.len(), &all[..all.len().min(MAX_EXAMPLES)])
}

/// What was observed from outside when a history had ended.
pub struct Seen<'a> {
    pub ledger: &'a Ledger,
    /// What was acknowledged to producers, and to the clients that append.
    pub acknowledged: &'a [String],
    pub appended: &'a [Append],
    /// The appends that a majority has.
    pub stored: &'a [Append],
    pub arrivals: &'a [(Place, Vec<Arrival>)],
    /// The ids of the dead letters, where they have a destination.
    pub dead_letters: Option<Vec<String>>,
    /// Since when only destinations can delay a record, if that is so at all.
    pub undisturbed: Option<DateTime>,
    pub healings: &'a Healings,
}

impl Seen<'_> {
    /// Judges all of it except the processes.
    pub fn judge(&self, plan: &Plan) -> Verdict {
        let Self { ledger, acknowledged, appended, .. } = self;
        let committed = ledger.committed();
        let known: HashSet<&str> = committed.iter().map(|record| record.id.as_str()).collect();
        let forgotten = acknowledged.iter().filter(|id| !known.contains(id.as_str()));
        let all: Vec<Arrival> =
            self.arrivals.iter().flat_map(|(_, arrivals)| arrivals.clone()).collect();
        Verdict {
            findings: self.order(plan),
            breaches: ledger.breaches.clone(),
            stuck: ledger.open(),
            forgotten: forgotten.cloned().collect(),
            appends: appends::judge(
                self.stored,
                appended,
                &ledger.events(),
                &ledger.exempt(),
                &all,
            ),
            without_copy: self.without_copy(plan),
            sick: self.sick(plan).filter_map(Result::ok).collect(),
            without_effect: self.sick(plan).filter_map(Result::err).collect(),
            held_up: self.held_up(plan),
            slowest: self.slowest(plan),
            records: committed.len(),
            appended: appended.len(),
            tally: ledger.tally,
            ..Verdict::default()
        }
    }

    /// Checks the promise at each destination.
    fn order(&self, plan: &Plan) -> Findings {
        let refused = match plan.setup.mixed_options.key_window {
            1 => None,
            _ => Some(self.ledger.refused_keys()),
        };
        let is_exempt = |key: &str| {
            let class = class(plan, key);
            let may_be_refused = class.as_ref().is_some_and(|class| !class.is_healthy);
            class.is_some_and(|class| !class.is_ordered())
                || refused.as_ref().is_some_and(|keys| may_be_refused || keys.contains(key))
        };
        let mut all = Findings::default();
        for place in Place::ALL {
            let mut committed: Vec<Committed> = self.ledger.committed_for(place);
            for record in &mut committed {
                record.exempt |= record.key.as_deref().is_some_and(is_exempt);
            }
            let arrived = self.arrivals.iter().find(|(at, _)| *at == place);
            let arrived = arrived.map_or(&[][..], |(_, arrived)| arrived);
            let found = judge(&committed, arrived);
            all.losses.extend(found.losses);
            all.phantoms.extend(found.phantoms);
            all.inversions.extend(found.inversions);
            all.duplicates += found.duplicates;
        }
        all
    }

    /// Records that died because of the broker's answer, and of which no copy has arrived, where
    /// brokers confirm: a copy that is not confirmed is sent a limited number of times. A poison
    /// record's copy breaks its connection as well.
    fn without_copy(&self, plan: &Plan) -> Vec<String> {
        let copies = self.dead_letters.as_ref().filter(|_| plan.setup.mixed_options.calm);
        let Some(copies) = copies else { return Vec::new() };
        let copies: HashSet<&str> = copies.iter().map(String::as_str).collect();
        let is_sent = |reason: &str| {
            ["attempts exhausted", "refused:"].iter().any(|begin| reason.starts_with(begin))
        };
        let deaths = self.ledger.deaths().into_iter();
        let missing = deaths.filter(|death| {
            is_sent(&death.reason)
                && !death.kind.ends_with(POISON)
                && !copies.contains(death.id.as_str())
        });
        missing.map(|death| format!("{}: {}", death.id, death.reason)).collect()
    }

    /// Each sickness of the plan, and how long it lasted, or why it had no effect.
    fn sick<'a>(
        &'a self,
        plan: &'a Plan,
    ) -> impl Iterator<Item = Result<(Sickness, Option<Duration>), String>> + 'a {
        let sick = plan.setup.mixed_options.sick.iter();
        sick.map(|sick| Ok((*sick, self.healings.judge(*sick, self.ledger)?)))
    }

    fn held_up(&self, plan: &Plan) -> Option<(Duration, String)> {
        let is_healthy = |key: &str| class(plan, key).is_some_and(|class| class.is_healthy);
        let slowest = self.ledger.slowest(is_healthy).filter(|_| plan.setup.mixed_options.calm);
        let limit = longest_undisturbed_wait(&plan.setup);
        let undisturbed = self.slowest(plan).filter(|(waited, _)| *waited > limit);
        slowest.filter(|(waited, _)| *waited > LONGEST_WAIT).or(undisturbed)
    }

    fn slowest(&self, plan: &Plan) -> Option<(Duration, String)> {
        let is_judged = |key: &str| {
            class(plan, key).is_some_and(|class| class.is_healthy && class.has_own_partition())
        };
        let has_room = 2 * plan.setup.batch_size >= FEWEST_LANES;
        let from = self.undisturbed.filter(|_| has_room)?;
        self.ledger.slowest_undisturbed(from, is_judged)
    }
}

/// The class of a producer's key.
fn class(plan: &Plan, key: &str) -> Option<Class> {
    let is_mixed = plan.setup.kind == Kind::Mixed;
    (is_mixed && key.starts_with('p')).then(|| Class::of(plan, key))
}
