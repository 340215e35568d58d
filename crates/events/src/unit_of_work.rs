//! What a unit of work gathers: the user's own writes, appends and plain records.

use std::collections::HashMap;
use std::sync::Arc;

use bson::raw::RawDocumentBuf;
use mongodb::ClientSession;
use postrider_outbox::NewRecord;
use postrider_outbox::fields::{KEY, PENDING, STATUS};
use postrider_outbox::ids::RecordId;
use postrider_outbox::wakeup::ScanHint;
use postrider_store::text::chain;
use postrider_store::{DUPLICATE_KEY, StoreError};
use tracing::{Instrument, warn};

use crate::append::{Append, Appended};
use crate::context::{Kind, RequestIds};
use crate::error::{AppendError, UnitError};
use crate::heads::Head;
use crate::lane::Shared;
use crate::lookup::{self, Fate};
use crate::names::AggregateName;
use crate::prepared::{Aggregate, Place, Prepared};
use crate::rows;
use crate::transaction::{self, Ended, Guard};

/// One run of the work of [`EventStore::unit_of_work`](crate::EventStore::unit_of_work).
///
/// Appends and records are kept until the work has ended, and written then, in the order in which
/// they were given; the session's own reads do not see them.
pub struct UnitOfWork {
    shared: Shared,
    session: ClientSession,
    appends: Vec<Given>,
    heads: HashMap<Aggregate, Head>,
    rows: Vec<RawDocumentBuf>,
    /// Of each row: the record's id, where it is no event's.
    owners: Vec<Option<RecordId>>,
    /// Where the relay is to look; `None` is everywhere.
    wakes: Vec<Option<ScanHint>>,
    interruption: Option<Interruption>,
}

/// An append that was given.
struct Given {
    append: Prepared,
    answer: Appended,
    /// None: it was appended by an earlier call.
    place: Option<Place>,
}

/// Why the work is to begin again.
pub(super) enum Interruption {
    /// The collection of these aggregates is to be made first.
    Unready(AggregateName),
    /// MongoDB did not answer.
    Store(StoreError),
}

/// Why what was given is not written.
pub(super) enum Trouble {
    /// A unique index has refused an append.
    Guarded,
    /// It can't be.
    Refused(UnitError),
    /// MongoDB.
    Store(StoreError),
    /// The work has failed.
    Work(UnitError),
}

impl From<StoreError> for Trouble {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

/// What is known of a unit's requests.
pub(super) enum Known {
    /// Not one of them.
    Nothing,
    /// All of them were appended by an earlier call, which got these answers.
    All(Vec<Appended>),
    /// Some were, or another aggregate has one; this is the aggregate.
    Some(String),
}

impl UnitOfWork {
    pub(super) fn new(shared: Shared, session: ClientSession) -> Self {
        Self {
            shared,
            session,
            appends: Vec::new(),
            heads: HashMap::new(),
            rows: Vec::new(),
            owners: Vec::new(),
            wakes: Vec::new(),
            interruption: None,
        }
    }

    /// The session of the transaction: for the work's own reads and writes, on collections of the
    /// store's client. Whoever commits or aborts by it gives up that all is done, or nothing.
    pub fn session(&mut self) -> &mut ClientSession {
        &mut self.session
    }

    /// Appends events once the work has ended, and answers what will have come of it then. Several
    /// appends to one aggregate follow each other, each with a request id of its own.
    ///
    /// A request that an earlier call has appended is answered with what came of it then, and the
    /// whole unit becomes a [replay](crate::Outcome::Replayed). Append first: of work that
    /// fails, only what it has appended before tells that it is a replay.
    ///
    /// # Errors
    ///
    /// Whoever hands them on ends the unit. A conflict, or an append that is not valid, may be
    /// taken otherwise: nothing of it is in the unit. [`UnitError::Interrupted`] begins the unit
    /// again in any case.
    pub async fn append(&mut self, append: Append) -> Result<Appended, UnitError> {
        let span = append.span();
        self.plan(append).instrument(span).await
    }

    async fn plan(&mut self, append: Append) -> Result<Appended, UnitError> {
        let append = Prepared::new(append).map_err(AppendError::Invalid)?;
        if let Some(twin) = self.twin(&append) {
            return Err(AppendError::DuplicateRequest { aggregate_id: twin.to_owned() }.into());
        }
        let (name, _) = append.aggregate();
        if !self.shared.context.is_ready(Kind::Events, name.as_str()) {
            return Err(self.interrupted(Interruption::Unready(name)));
        }
        let head = self.head(&append).await?;
        let expected = append.append.expected;
        let fits = expected.fits(head.version);
        if !fits || self.is_replay() {
            let fate = lookup::fates(&self.shared.context, &[&append]).await;
            match fate.map_err(|error| self.interrupted(Interruption::Store(error)))?.remove(&0) {
                Some(Fate::Replayed(answer)) => {
                    self.appends.push(Given { append, answer: answer.clone(), place: None });
                    return Ok(answer);
                }
                Some(Fate::Elsewhere(aggregate_id)) => {
                    return Err(AppendError::DuplicateRequest { aggregate_id }.into());
                }
                None if !fits => return Err(AppendError::conflict(expected, head.version).into()),
                None => {}
            }
        }
        Ok(self.keep(append, head))
    }

    /// Enqueues a record without an event once the work has ended, and answers its id.
    ///
    /// # Errors
    ///
    /// A record that is not valid.
    pub fn enqueue(&mut self, record: NewRecord) -> Result<RecordId, UnitError> {
        let id = record.record_id().clone();
        let document = record.into_document()?;
        let row = RawDocumentBuf::try_from(&document).map_err(mongodb::error::Error::custom)?;
        if document.get_str(STATUS).is_ok_and(|status| status == PENDING) {
            self.wakes.push(document.get_str(KEY).ok().map(ScanHint::of_key));
        }
        self.rows.push(row);
        self.owners.push(Some(id.clone()));
        Ok(id)
    }

    /// Gives it the place behind this head.
    fn keep(&mut self, append: Prepared, head: Head) -> Appended {
        let now = self.shared.clock.now().timestamp_millis();
        let create_time = now.max(head.create_time);
        let place = Place { version: head.version + 1, create_time };
        self.heads.insert(append.aggregate(), Head { version: place.version, create_time });
        for row in rows::documents(&append, place) {
            self.rows.push(row);
            self.owners.push(None);
        }
        self.wakes.push(Some(ScanHint::of_key(append.append.id.as_str())));
        let answer = append.appended(place);
        self.appends.push(Given { append, answer: answer.clone(), place: Some(place) });
        answer
    }

    /// At which version the aggregate is, with what this unit has appended to it.
    async fn head(&mut self, append: &Prepared) -> Result<Head, UnitError> {
        let aggregate = append.aggregate();
        if let Some(head) = self.heads.get(&aggregate) {
            return Ok(*head);
        }
        // What a majority has, and not what the transaction sees: no conflict that a failover
        // takes back. The unique index sees to the rest.
        match lookup::heads(&self.shared.context, vec![aggregate]).await {
            Ok(read) => {
                let (_, head) =
                    read.into_iter().next().unwrap_or((append.aggregate(), Head::default()));
                self.heads.insert(append.aggregate(), head);
                Ok(head)
            }
            Err(error) => Err(self.interrupted(Interruption::Store(error))),
        }
    }

    /// The aggregate to which this unit has appended the same request, where they exclude each
    /// other.
    fn twin(&self, append: &Prepared) -> Option<&str> {
        let is_global = self.shared.context.settings().request_ids == RequestIds::Global;
        let ours = &append.append;
        let mut given = self.appends.iter().map(|given| &given.append.append);
        let twin = given.find(|given| {
            given.request_id == ours.request_id
                && given.name == ours.name
                && (is_global || given.id == ours.id)
        });
        twin.map(|twin| twin.id.as_str())
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

    /// What an earlier call has appended of it.
    pub(super) async fn known(&self) -> Result<Known, StoreError> {
        let appends: Vec<&Prepared> = self.appends.iter().map(|given| &given.append).collect();
        let mut fates = lookup::fates(&self.shared.context, &appends).await?;
        if fates.is_empty() {
            return Ok(Known::Nothing);
        }
        let mut answers = Vec::new();
        for position in 0..appends.len() {
            match fates.remove(&position) {
                Some(Fate::Replayed(answer)) => answers.push(answer),
                Some(Fate::Elsewhere(aggregate_id)) => return Ok(Known::Some(aggregate_id)),
                None => {}
            }
        }
        match answers.len() == appends.len() {
            true => Ok(Known::All(answers)),
            false => Ok(Known::Some(answers.swap_remove(0).aggregate_id)),
        }
    }

    /// What was answered, in the order of the appends.
    pub(super) fn answers(&self) -> Vec<Appended> {
        self.appends.iter().map(|given| given.answer.clone()).collect()
    }

    /// Writes what was given, and commits.
    pub(super) async fn write(&mut self) -> Result<(), Trouble> {
        let Shared { context, outbox, .. } = self.shared.clone();
        let given = self.appends.iter();
        let appends: Vec<(&Prepared, Place)> =
            given.filter_map(|given| Some((&given.append, given.place?))).collect();
        let refused = transaction::streams(&mut self.session, &context, &appends).await?;
        if let Some((_, refusal)) = refused {
            return Err(match transaction::guard(refusal) {
                Guard::Version | Guard::Request => Trouble::Guarded,
                Guard::Other(refusal) => Trouble::Refused(AppendError::refused(&refusal).into()),
            });
        }
        let refused = transaction::records(&mut self.session, &outbox, &self.rows).await?;
        if let Some(refusal) = refused {
            return Err(Trouble::Refused(match &self.owners[refusal.index] {
                Some(id) if refusal.code == DUPLICATE_KEY => UnitError::DuplicateRecord(id.clone()),
                _ => AppendError::refused(&refusal).into(),
            }));
        }
        match transaction::commit(&mut self.session).await {
            Ended::Committed => Ok(()),
            Ended::Unknown(error) => {
                warn!(error = chain(&error), "whether a unit of work was committed is not known");
                Err(Trouble::Refused(AppendError::Unknown(Arc::new(error)).into()))
            }
            Ended::Again(error) | Ended::Failed(error) => Err(Trouble::Store(error)),
            Ended::Refused { .. } => Err(Trouble::Guarded),
        }
    }

    /// Takes back what the session has written.
    pub(super) async fn abort(&mut self) {
        transaction::abort(&mut self.session).await;
    }

    /// The session, for another transaction.
    pub(super) fn into_session(self) -> ClientSession {
        self.session
    }

    /// Wakes the relay at what was committed.
    pub(super) fn wake(&mut self) {
        let Some(wake) = &self.shared.wake else { return };
        for hint in self.wakes.drain(..) {
            match hint {
                Some(hint) => wake.at(hint),
                // The relay has yet to give it a partition.
                None => wake.all(),
            }
        }
    }
}
