//! A unit of work: the user's own writes, appends and records in one transaction.

use std::collections::HashMap;
use std::sync::Arc;

use bson::raw::RawDocumentBuf;
use mongodb::ClientSession;
use postrider_outbox::NewRecord;
use postrider_outbox::fields::{KEY, PENDING, STATUS};
use postrider_outbox::ids::RecordId;
use postrider_outbox::wakeup::ScanHint;
use postrider_store::text::chain;
use postrider_store::transaction::{CommitOutcome, abort};
use postrider_store::{DUPLICATE_KEY, StoreError};
use tracing::{Instrument, warn};

use crate::append::{Append, Appended};
use crate::context::{CollectionKind, RequestIds};
use crate::error::{AppendError, UnitError};
use crate::lane::StoreParts;
use crate::lookup::{self, Certainty, PriorAppend};
use crate::names::{AggregateKey, AggregateName};
use crate::prepared::{Place, PreparedAppend};
use crate::records;
use crate::state::StreamState;
use crate::transaction::{self, RefusedBy};
use crate::version_cache::LatestVersion;

/// One run of the work of [`EventStore::unit_of_work`](crate::EventStore::unit_of_work).
///
/// Appends and records are written when the work has ended, in the order of the calls; reads of the
/// session do not see them.
pub struct UnitOfWork {
    parts: StoreParts,
    session: ClientSession,
    appends: Vec<PlannedAppend>,
    latest_versions: HashMap<AggregateKey, LatestVersion>,
    documents: Vec<RawDocumentBuf>,
    /// The id of each record, unless it is an event's.
    owners: Vec<Option<RecordId>>,
    /// What the relay should scan after the commit; `None` is everything.
    wakes: Vec<Option<ScanHint>>,
    interruption: Option<Interruption>,
}

/// An append of the unit.
struct PlannedAppend {
    append: PreparedAppend,
    answer: Appended,
    /// Not set when an earlier call has appended it.
    place: Option<Place>,
}

/// Why the work must begin again.
pub(super) enum Interruption {
    /// The collection of these aggregates must be created first.
    Unready(AggregateName),
    /// MongoDB did not answer.
    Store(StoreError),
}

/// Why the unit was not committed.
pub(super) enum UnitFailure {
    /// A unique index refused an append.
    Guarded,
    /// MongoDB refused a document for another reason.
    Refused(UnitError),
    /// MongoDB.
    Store(StoreError),
    /// The work failed.
    Work(UnitError),
}

impl From<StoreError> for UnitFailure {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

/// Which requests of a unit an earlier call has appended.
pub(super) enum PriorUnit {
    /// None of them.
    Nothing,
    /// All of them, with these answers.
    All(Vec<Appended>),
    /// Some of them, or another aggregate has one: the aggregate.
    Some(String),
}

impl UnitOfWork {
    pub(super) fn new(parts: StoreParts, session: ClientSession) -> Self {
        Self {
            parts,
            session,
            appends: Vec::new(),
            latest_versions: HashMap::new(),
            documents: Vec::new(),
            owners: Vec::new(),
            wakes: Vec::new(),
            interruption: None,
        }
    }

    /// The session of the transaction: for the work's own reads and writes, on collections of the
    /// store's client. The work must not commit or abort it.
    pub fn session(&mut self) -> &mut ClientSession {
        &mut self.session
    }

    /// Appends events when the work has ended, and returns the answer in advance. Several appends to
    /// one aggregate follow each other, each with a request id of its own.
    ///
    /// A request that an earlier call has appended gets the answer of that call, and the whole unit
    /// becomes a [replay](crate::UnitOutcome::Replayed). The work should append first: when it fails, only
    /// its appends before can identify it as a replay.
    ///
    /// # Errors
    ///
    /// [`UnitError`]. The work may return it, which ends the unit, or continue after a conflict or an
    /// invalid append, of which nothing is in the unit. [`UnitError::Interrupted`] begins the unit again
    /// in any case.
    pub async fn append(&mut self, append: Append) -> Result<Appended, UnitError> {
        let span = append.span();
        self.plan(append).instrument(span).await
    }

    async fn plan(&mut self, append: Append) -> Result<Appended, UnitError> {
        let append = PreparedAppend::new(append).map_err(AppendError::Invalid)?;
        if let Some(duplicate) = self.duplicate(&append) {
            return Err(AppendError::DuplicateRequest { aggregate_id: duplicate.to_owned() }.into());
        }
        let (name, _) = append.aggregate();
        if !self.parts.context.is_ready(CollectionKind::Events, name.as_str()) {
            return Err(self.interrupted(Interruption::Unready(name)));
        }
        let expected = append.append.expected;
        let fits = |latest: &LatestVersion| {
            latest.state.permits(append.ending) && expected.fits(latest.version)
        };
        let mut latest_version = self.latest_version(&append).await?;
        if !fits(&latest_version) && !self.appends_to(&append) {
            latest_version = self.read_version(&append, Certainty::Confirmed).await?;
        }
        let (is_permitted, fits) =
            (latest_version.state.permits(append.ending), fits(&latest_version));
        if !fits || self.is_replay() {
            let certainty = if fits { Certainty::Majority } else { Certainty::Confirmed };
            let prior = lookup::prior_appends(&self.parts.context, &[&append], certainty).await;
            let mut prior = prior.map_err(|error| self.interrupted(Interruption::Store(error)))?;
            match prior.remove(&0) {
                Some(PriorAppend::Replayed(first)) => {
                    let answer = first.clone();
                    self.appends.push(PlannedAppend { append, answer, place: None });
                    return Ok(first);
                }
                Some(PriorAppend::Elsewhere(aggregate_id)) => {
                    return Err(AppendError::DuplicateRequest { aggregate_id }.into());
                }
                None if !is_permitted => {
                    let version = latest_version.version;
                    return Err(AppendError::StreamEnded { version }.into());
                }
                None if !fits => {
                    return Err(AppendError::conflict(expected, latest_version.version).into());
                }
                None => {}
            }
        }
        Ok(self.plan_at(append, latest_version))
    }

    /// Enqueues a record without an event when the work has ended. Returns its id.
    ///
    /// # Errors
    ///
    /// An invalid record.
    pub fn enqueue(&mut self, record: NewRecord) -> Result<RecordId, UnitError> {
        let id = record.record_id().clone();
        let document = record.into_document().map_err(mongodb::error::Error::from)?;
        let raw = RawDocumentBuf::try_from(&document).map_err(mongodb::error::Error::custom)?;
        if document.get_str(STATUS).is_ok_and(|status| status == PENDING) {
            self.wakes.push(document.get_str(KEY).ok().map(ScanHint::of_key));
        }
        self.documents.push(raw);
        self.owners.push(Some(id.clone()));
        Ok(id)
    }

    /// Plans an append behind the latest version.
    fn plan_at(&mut self, append: PreparedAppend, latest_version: LatestVersion) -> Appended {
        let now = self.parts.clock.now().timestamp_millis();
        let create_time = now.max(latest_version.create_time);
        let place = Place { version: latest_version.version + 1, create_time };
        let state = StreamState::after(append.ending);
        self.latest_versions.insert(
            append.aggregate(),
            LatestVersion { version: place.version, create_time, state },
        );
        self.documents.extend(records::documents(&append, place));
        self.owners.resize(self.documents.len(), None);
        self.wakes.push(Some(ScanHint::of_key(append.append.id.as_str())));
        let answer = append.appended(place);
        self.appends.push(PlannedAppend { append, answer: answer.clone(), place: Some(place) });
        answer
    }

    /// The version of the aggregate, with the appends of this unit.
    async fn latest_version(
        &mut self,
        append: &PreparedAppend,
    ) -> Result<LatestVersion, UnitError> {
        let aggregate = append.aggregate();
        if let Some(latest_version) = self.latest_versions.get(&aggregate) {
            return Ok(*latest_version);
        }
        self.read_version(append, Certainty::Majority).await
    }

    /// Reads it from a majority, not by the transaction: a failover reverts no reported conflict. The
    /// unique index refuses the rest.
    async fn read_version(
        &mut self,
        append: &PreparedAppend,
        certainty: Certainty,
    ) -> Result<LatestVersion, UnitError> {
        let aggregate = append.aggregate();
        let read = lookup::latest_version(&self.parts.context, &aggregate, certainty).await;
        let latest_version = read.map_err(|error| self.interrupted(Interruption::Store(error)))?;
        self.latest_versions.insert(aggregate, latest_version);
        Ok(latest_version)
    }

    /// Whether this unit has appended to the aggregate.
    fn appends_to(&self, append: &PreparedAppend) -> bool {
        let aggregate = append.aggregate();
        let mut written = self.appends.iter().filter(|given| given.place.is_some());
        written.any(|given| given.append.aggregate() == aggregate)
    }

    /// The aggregate to which this unit appends the same request, if the request ids must differ.
    fn duplicate(&self, append: &PreparedAppend) -> Option<&str> {
        let is_global = self.parts.context.settings().request_ids == RequestIds::Global;
        let ours = &append.append;
        let mut given = self.appends.iter().map(|given| &given.append.append);
        let duplicate = given.find(|given| {
            given.request_id == ours.request_id
                && given.name == ours.name
                && (is_global || given.id == ours.id)
        });
        duplicate.map(|duplicate| duplicate.id.as_str())
    }

    pub(super) fn is_replay(&self) -> bool {
        self.appends.iter().any(|given| given.place.is_none())
    }

    fn interrupted(&mut self, interruption: Interruption) -> UnitError {
        self.interruption = Some(interruption);
        UnitError::Interrupted
    }

    pub(super) fn interruption(&mut self) -> Option<Interruption> {
        self.interruption.take()
    }

    /// Looks up which requests an earlier call has appended.
    pub(super) async fn find_prior(&self, certainty: Certainty) -> Result<PriorUnit, StoreError> {
        let appends: Vec<&PreparedAppend> =
            self.appends.iter().map(|given| &given.append).collect();
        let mut prior_appends =
            lookup::prior_appends(&self.parts.context, &appends, certainty).await?;
        if prior_appends.is_empty() {
            return Ok(PriorUnit::Nothing);
        }
        let mut answers = Vec::new();
        for position in 0..appends.len() {
            match prior_appends.remove(&position) {
                Some(PriorAppend::Replayed(answer)) => answers.push(answer),
                Some(PriorAppend::Elsewhere(aggregate_id)) => {
                    return Ok(PriorUnit::Some(aggregate_id));
                }
                None => {}
            }
        }
        if answers.len() == appends.len() {
            Ok(PriorUnit::All(answers))
        } else {
            Ok(PriorUnit::Some(answers.swap_remove(0).aggregate_id))
        }
    }

    /// The answers, in the order of the appends.
    pub(super) fn answers(&self) -> Vec<Appended> {
        self.appends.iter().map(|given| given.answer.clone()).collect()
    }

    /// Writes the appends and records, and commits.
    pub(super) async fn write(&mut self) -> Result<(), UnitFailure> {
        let StoreParts { context, outbox, .. } = self.parts.clone();
        let given = self.appends.iter();
        let appends: Vec<(&PreparedAppend, Place)> =
            given.filter_map(|given| Some((&given.append, given.place?))).collect();
        let refused = transaction::streams(&mut self.session, &context, &appends).await?;
        if let Some((_, refusal)) = refused {
            return Err(match transaction::refused_by(refusal) {
                RefusedBy::Version | RefusedBy::Request => UnitFailure::Guarded,
                RefusedBy::Other(refusal) => {
                    UnitFailure::Refused(AppendError::refused(&refusal).into())
                }
            });
        }
        let refused = transaction::records(&mut self.session, &outbox, &self.documents).await?;
        if let Some(refusal) = refused {
            return Err(UnitFailure::Refused(match &self.owners[refusal.index] {
                Some(id) if refusal.code == DUPLICATE_KEY => UnitError::DuplicateRecord(id.clone()),
                _ => AppendError::refused(&refusal).into(),
            }));
        }
        match transaction::commit(&mut self.session).await {
            CommitOutcome::Committed => Ok(()),
            CommitOutcome::Unknown(error) => {
                warn!(error = chain(&error), "unknown whether a unit of work was committed");
                Err(UnitFailure::Refused(AppendError::Unknown(Arc::new(error)).into()))
            }
            CommitOutcome::Again(error) => Err(UnitFailure::Store(error)),
        }
    }

    /// Aborts the transaction.
    pub(super) async fn abort(&mut self) {
        abort(&mut self.session, "abort an append").await;
    }

    /// The session, for another transaction.
    pub(super) fn into_session(self) -> ClientSession {
        self.session
    }

    /// Reports the committed appends, and wakes the relay for the records.
    pub(super) fn wake(&mut self) {
        let placed = self.appends.iter();
        let placed = placed.filter_map(|given| Some(given.append.committed(given.place?)));
        self.parts.context.commits().report(placed);
        let Some(wake) = &self.parts.wake else { return };
        for hint in self.wakes.drain(..) {
            match hint {
                Some(hint) => wake.at(hint),
                // The record has no key.
                None => wake.all(),
            }
        }
    }
}
