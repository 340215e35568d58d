//! One transaction: the streams of several appends, and their outbox records.

use std::time::Duration;

use bson::raw::RawDocumentBuf;
use bson::{Document, doc};
use mongodb::ClientSession;
use postrider_outbox::collections::{Collections, names};
use postrider_store::failpoint;
use postrider_store::insert::{InsertRefusal, insert};
use postrider_store::text::chain;
use postrider_store::transaction::{self, CommitOutcome, abort, is_retryable, kill_session, start};
use postrider_store::{DUPLICATE_KEY, StoreError, limits, within};
use tracing::{debug, warn};

use crate::context::{CollectionKind, Context};
use crate::ending::effects;
use crate::names::AggregateName;
use crate::prepared::{Place, PreparedAppend};
use crate::records;

/// How long ending a transaction is tried.
const END_TIMEOUT: Duration = limits::BATCH_TIMEOUT;

/// The pause between two tries to end a transaction.
const RETRY_PAUSE: Duration = Duration::from_millis(100);

/// The pause before the second try, and the longest one; each is shortened at random.
const BACKOFF_RANGE: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(500));

/// How a transaction ended.
#[derive(Debug)]
pub(crate) enum TransactionOutcome {
    /// A majority has it.
    Committed,
    /// Nothing was written: MongoDB refused this append.
    Refused { at: usize, by: RefusedBy },
    /// Nothing was written, and a retry may succeed.
    Again(StoreError),
    /// Nothing was written, and a retry would fail too.
    Failed(StoreError),
    /// Whether it was committed is unknown.
    Unknown(StoreError),
}

/// Why MongoDB refused an append.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum RefusedBy {
    /// The unique index of versions.
    Version,
    /// The unique index of requests.
    Request,
    /// Another reason.
    Other(InsertRefusal),
}

/// Which unique index refused an append. Decided by the index's keys, since messages differ between versions.
pub(super) fn refused_by(refusal: InsertRefusal) -> RefusedBy {
    let is = |keys: &Document| refusal.key_pattern.as_ref() == Some(keys);
    match refusal.code {
        DUPLICATE_KEY if is(&doc! { "aggregateId": 1, "version": 1 }) => RefusedBy::Version,
        DUPLICATE_KEY if is(&doc! { "aggregateId": 1, "requestId": 1 }) => RefusedBy::Request,
        DUPLICATE_KEY if is(&doc! { "requestId": 1 }) => RefusedBy::Request,
        _ => RefusedBy::Other(refusal),
    }
}

/// Writes appends at their places: all of them, or nothing.
///
/// `open_session` is the session of a transaction that may be open on the server, before and after: the
/// next transaction begins in it, or [`end`] ends it.
pub(super) async fn write(
    context: &Context,
    outbox: &Collections,
    appends: &[(&PreparedAppend, Place)],
    open_session: &mut Option<ClientSession>,
) -> TransactionOutcome {
    let mut session = match begin(context, open_session).await {
        Ok(session) => session,
        Err(error) => return again_or_failed(error),
    };
    let ended = match fill(&mut session, context, outbox, appends).await {
        Err(error) => {
            abort(&mut session, "abort an append").await;
            again_or_failed(error)
        }
        Ok(Some((at, refusal))) => TransactionOutcome::Refused { at, by: refused_by(refusal) },
        Ok(None) => match commit(&mut session).await {
            CommitOutcome::Committed => TransactionOutcome::Committed,
            CommitOutcome::Again(error) => TransactionOutcome::Again(error),
            CommitOutcome::Unknown(error) => TransactionOutcome::Unknown(error),
        },
    };
    if !matches!(ended, TransactionOutcome::Committed | TransactionOutcome::Refused { .. }) {
        *open_session = Some(session);
    }
    ended
}

/// A session for transactions.
pub(crate) async fn session(context: &Context) -> Result<ClientSession, StoreError> {
    let driver = |source| StoreError::Driver { action: ACTION, source: Box::new(source) };
    context.client().start_session().causal_consistency(false).await.map_err(driver)
}

/// Begins a transaction with read and write concerns of its own, whatever the URI says.
///
/// It begins in `open_session`, or in a new session. MongoDB keeps one transaction per session: the
/// first statement of the new transaction ends an earlier one that is still open, so that a try never
/// meets the write conflict of the try before it.
pub(crate) async fn begin(
    context: &Context,
    open_session: &mut Option<ClientSession>,
) -> Result<ClientSession, StoreError> {
    let driver = |source| StoreError::Driver { action: ACTION, source: Box::new(source) };
    if let Some(session) = open_session {
        start(session).await.map_err(driver)?;
    }
    if let Some(session) = open_session.take() {
        return Ok(session);
    }
    let mut session = session(context).await?;
    start(&mut session).await.map_err(driver)?;
    Ok(session)
}

const ACTION: &str = "append events";

/// Inserts the streams and records, and the effects of ends. `Some` is the position of the append that was refused.
pub(crate) async fn fill(
    session: &mut ClientSession,
    context: &Context,
    outbox: &Collections,
    appends: &[(&PreparedAppend, Place)],
) -> Result<Option<(usize, InsertRefusal)>, StoreError> {
    if let Some(refused) = streams(session, context, appends).await? {
        return Ok(Some(refused));
    }
    let (mut documents, mut owners) = (Vec::new(), Vec::new());
    for (at, (append, place)) in appends.iter().enumerate() {
        documents.extend(records::documents(append, *place));
        owners.resize(documents.len(), at);
    }
    let refused = records(session, outbox, &documents).await?;
    if let Some(refusal) = refused {
        return Ok(Some((owners[refusal.index], refusal)));
    }
    for (append, place) in appends {
        if let Some(ending) = append.ending {
            effects::write(session, context, append, *place, ending).await?;
        }
    }
    Ok(None)
}

/// Inserts the streams. `Some` is the position of the append that was refused.
pub(super) async fn streams(
    session: &mut ClientSession,
    context: &Context,
    appends: &[(&PreparedAppend, Place)],
) -> Result<Option<(usize, InsertRefusal)>, StoreError> {
    let database = context.database(CollectionKind::Events);
    for (name, positions) in by_name(appends) {
        let settings = context.settings();
        let documents: Vec<RawDocumentBuf> = positions
            .iter()
            .map(|at| appends[*at].0.document(&settings.name, appends[*at].1))
            .collect();
        let collection = CollectionKind::Events.collection(name.as_str());
        let inserting = insert(session, &database, &collection, &documents);
        let refused = within(ACTION, limits::BATCH_TIMEOUT, inserting).await?;
        if let Some(refusal) = refused {
            return Ok(Some((positions[refusal.index], refusal)));
        }
    }
    Ok(None)
}

/// Inserts outbox records, in their order.
pub(super) async fn records(
    session: &mut ClientSession,
    outbox: &Collections,
    documents: &[RawDocumentBuf],
) -> Result<Option<InsertRefusal>, StoreError> {
    let records = outbox.name(names::RECORDS);
    let inserting = insert(session, outbox.database(), &records, documents);
    within(ACTION, limits::BATCH_TIMEOUT, inserting).await
}

/// The positions of the appends of each name, in their order.
fn by_name<'a>(appends: &[(&'a PreparedAppend, Place)]) -> Vec<(&'a AggregateName, Vec<usize>)> {
    let mut names: Vec<(&AggregateName, Vec<usize>)> = Vec::new();
    for (at, (append, _)) in appends.iter().enumerate() {
        let name = &append.append.name;
        match names.iter_mut().find(|(known, _)| *known == name) {
            Some((_, positions)) => positions.push(at),
            None => names.push((name, vec![at])),
        }
    }
    names
}

/// Commits a transaction of appends, and retries while the outcome is unknown.
pub(crate) async fn commit(session: &mut ClientSession) -> CommitOutcome {
    failpoint::hit("events::before_commit");
    let outcome = transaction::commit(session, "commit an append").await;
    if matches!(outcome, CommitOutcome::Committed) {
        failpoint::hit("events::after_commit");
    }
    outcome
}

/// Ends the transaction of `open_session` on the server, when no other transaction follows in it.
///
/// Without success `open_session` is kept.
pub(crate) async fn end(open_session: &mut Option<ClientSession>) {
    let Some(session) = open_session else { return };
    if end_transaction(session).await {
        *open_session = None;
    }
}

/// Ends the transaction of a session on the server. Returns whether it has ended.
///
/// Else no client could write to its aggregates until `transactionLifetimeLimitSeconds`. After
/// some errors (91, 11600) the driver selects the server again only at its next heartbeat, so this
/// tries for [`END_TIMEOUT`].
pub(crate) async fn end_transaction(session: &ClientSession) -> bool {
    let client = session.client();
    let killing = async {
        loop {
            let Err(error) = kill_session(&client, session.id()).await else { return true };
            debug!(error = chain(&error), "failed to end a transaction");
            if error.is_permanent() {
                return false;
            }
            tokio::time::sleep(RETRY_PAUSE).await;
        }
    };
    let is_ended = tokio::time::timeout(END_TIMEOUT, killing).await == Ok(true);
    if !is_ended {
        warn!(
            "a transaction may stay open until MongoDB aborts it \
             (transactionLifetimeLimitSeconds)"
        );
    }
    is_ended
}

fn again_or_failed(error: StoreError) -> TransactionOutcome {
    if is_retryable(&error) {
        TransactionOutcome::Again(error)
    } else {
        TransactionOutcome::Failed(error)
    }
}

/// The pause after this many failures.
pub(crate) fn backoff(failures: u32) -> Duration {
    let longest = (BACKOFF_RANGE.0 * 2_u32.saturating_pow(failures)).min(BACKOFF_RANGE.1);
    longest.mul_f64(rand::random_range(0.0..1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unique_indexes_are_distinguished_by_their_keys() {
        let refusal = |key_pattern: Option<Document>| InsertRefusal {
            index: 0,
            code: DUPLICATE_KEY,
            key_pattern,
            message: "E11000 … aggregateId_1_version_1 … requestId_1".into(),
        };

        let version = refused_by(refusal(Some(doc! { "aggregateId": 1, "version": 1 })));
        let request = refused_by(refusal(Some(doc! { "aggregateId": 1, "requestId": 1 })));
        let global = refused_by(refusal(Some(doc! { "requestId": 1 })));
        let other = refused_by(refusal(Some(doc! { "dedupKey": 1 })));

        assert_eq!(
            (version, request, global),
            (RefusedBy::Version, RefusedBy::Request, RefusedBy::Request)
        );
        assert!(matches!(other, RefusedBy::Other(_)));
        assert!(matches!(refused_by(refusal(None)), RefusedBy::Other(_)));
    }

    #[test]
    fn backoff_doubles_up_to_its_limit_and_varies() {
        for (failures, longest) in [(0, 5), (1, 10), (3, 40), (6, 320), (7, 500), (99, 500)] {
            let longest = Duration::from_millis(longest);
            let pauses: Vec<Duration> = (0..1_000).map(|_| backoff(failures)).collect();

            assert!(pauses.iter().all(|pause| *pause < longest), "{failures}");
            assert!(pauses.iter().any(|pause| *pause > longest / 2), "{failures}");
        }
    }
}
