//! Whether the sicknesses of a plan had an effect. A history with a fault without effect fails: it
//! proves less than its plan says.
//!
//! The history inserts one record for each [`Sickness`], a sample, before its producers begin. A
//! process must lease the sample, and the sample must then wait until the healing. No other record
//! that this kind of fault concerns may be done before the healing either.

use std::sync::Mutex;
use std::time::Duration;

use bson::{DateTime, Document, doc};

use crate::ledger::Ledger;
use crate::plan::Sickness;
use crate::support::outbox::record;
use crate::traffic::{MARK, POISON, Place, STREAM};

/// The shortest time from the first lease of a sample until the healing. It is more than a relay
/// takes to deliver a record without a fault.
pub const SHORTEST_WAIT: Duration = Duration::from_secs(1);

impl Sickness {
    /// The id of its sample.
    pub fn sample_id(self) -> String {
        format!("sick/{self:?}")
    }

    /// The sample; `name` is that of the history's destinations.
    pub fn sample(self, name: &str) -> Document {
        // Another key than the id: a record without a key arrives at Kafka with its id as the key.
        let mut sample = record(&self.sample_id(), &format!("sick-{self:?}"));
        let (kind, destination) = match self {
            Self::Exchange => (None, Some("sick")),
            Self::Replicas => (Some(STREAM), Some("sick")),
            Self::Topic => (Some(STREAM), Some("late")),
            Self::Queue => (None, Some("silent")),
            Self::Poison => {
                sample.insert("payload", doc! { "is": MARK });
                (Some(POISON), None)
            }
        };
        if let Some(kind) = kind {
            sample.insert("type", kind);
        }
        if let Some(destination) = destination {
            sample.insert("destination", format!("{name}-{destination}"));
        }
        sample
    }

    /// Whether it concerns records of this place and type.
    fn concerns(self, place: Place, kind: &str) -> bool {
        match self {
            Self::Exchange => place == Place::SickExchange,
            Self::Replicas => place == Place::SickTopic,
            Self::Topic => place == Place::LateTopic,
            Self::Queue => place == Place::SilentQueue,
            Self::Poison => kind.ends_with(POISON),
        }
    }
}

/// When the healing of each began.
#[derive(Debug, Default)]
pub struct Healings(Mutex<Vec<(Sickness, DateTime)>>);

impl Healings {
    /// Notes that its healing begins, unless it is healed already.
    pub fn begin(&self, sick: Sickness, at: DateTime) {
        let mut all = self.0.lock().unwrap();
        if all.iter().all(|(other, _)| *other != sick) {
            all.push((sick, at));
        }
    }

    fn of(&self, sick: Sickness) -> Option<DateTime> {
        self.0.lock().unwrap().iter().find(|(other, _)| *other == sick).map(|(_, at)| *at)
    }

    /// How long the sample of this sickness waited after its lease: `None` means to the end. The
    /// error is what contradicts the sickness.
    pub fn judge(&self, sick: Sickness, ledger: &Ledger) -> Result<Option<Duration>, String> {
        let healed = self.of(sick);
        let until = healed.unwrap_or(DateTime::MAX);
        if let Some(id) = ledger.done_before(until, |place, kind| sick.concerns(place, kind)) {
            return Err(format!("{sick:?}: {id} was done before the healing"));
        }
        let leased = ledger.first_lease(&sick.sample_id());
        let waited = leased.map(|at| until.saturating_duration_since(at));
        match waited.filter(|waited| *waited >= SHORTEST_WAIT) {
            Some(waited) => Ok(healed.map(|_| waited)),
            None => Err(format!("{sick:?}: no record was leased and waited until the healing")),
        }
    }
}
