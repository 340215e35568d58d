//! One transaction: the streams of several appends, and their outbox records.

use std::time::{Duration, Instant};

use bson::Document;
use bson::doc;
use bson::raw::RawDocumentBuf;
use mongodb::ClientSession;
use mongodb::error::{TRANSIENT_TRANSACTION_ERROR, UNKNOWN_TRANSACTION_COMMIT_RESULT};
use mongodb::options::ReadConcern;
use postrider_outbox::collections::{Collections, names};
use postrider_store::connect::{ask, majority, primary};
use postrider_store::failpoint;
use postrider_store::insert::{Refusal, insert};
use postrider_store::text::chain;
use postrider_store::{DUPLICATE_KEY, Meaning, StoreError, limits};
use tracing::{debug, warn};

use crate::context::{Context, Kind};
use crate::names::AggregateName;
use crate::prepared::{Place, Prepared};
use crate::rows;

/// How long an `abortTransaction` may take. The next transaction of the session, or [`end`], ends
/// what it did not reach.
const ABORT: Duration = Duration::from_secs(2);

/// How long to try to end a transaction before its failure is reported.
const ENDING: Duration = limits::BATCH;

/// Between two tries to learn whether a transaction was committed, or to end it.
const ASK_AGAIN: Duration = Duration::from_millis(100);

/// The pause before a second try, and the longest; shortened at random.
const PAUSE: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(500));

/// How a transaction ended.
#[derive(Debug)]
pub(crate) enum Ended {
    /// A majority has it.
    Committed,
    /// Nothing was written, because of this append.
    Refused { at: usize, by: Guard },
    /// Nothing was written, and the same again may succeed.
    Again(StoreError),
    /// Nothing was written, nor will be.
    Failed(StoreError),
    /// MongoDB did not say.
    Unknown(StoreError),
}

/// What has refused an append.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Guard {
    /// The unique index of versions.
    Version,
    /// The unique index of requests.
    Request,
    /// Anything else.
    Other(Refusal),
}

/// What tells the unique indexes apart (hazard 13).
pub(super) fn guard(refusal: Refusal) -> Guard {
    let is = |keys: &Document| refusal.key_pattern.as_ref() == Some(keys);
    match refusal.code {
        DUPLICATE_KEY if is(&doc! { "aggregateId": 1, "version": 1 }) => Guard::Version,
        DUPLICATE_KEY if is(&doc! { "aggregateId": 1, "requestId": 1 }) => Guard::Request,
        DUPLICATE_KEY if is(&doc! { "requestId": 1 }) => Guard::Request,
        _ => Guard::Other(refusal),
    }
}

/// Writes appends at their places: all of them, or nothing.
///
/// The transaction begins in the session that is `left`, if there is one. Afterwards `left` is the
/// session of a transaction that may still be open on the server: for the next one, or for [`end`].
pub(super) async fn write(
    context: &Context,
    outbox: &Collections,
    appends: &[(&Prepared, Place)],
    left: &mut Option<ClientSession>,
) -> Ended {
    let mut session = match begin(context, left).await {
        Ok(session) => session,
        Err(error) => return again_or_failed(error),
    };
    let ended = match fill(&mut session, context, outbox, appends).await {
        Err(error) => {
            abort(&mut session).await;
            again_or_failed(error)
        }
        Ok(Some((at, refusal))) => Ended::Refused { at, by: guard(refusal) },
        Ok(None) => commit(&mut session).await,
    };
    if !matches!(ended, Ended::Committed | Ended::Refused { .. }) {
        *left = Some(session);
    }
    ended
}

/// A session within a transaction that reads and writes as we want it, whatever the URI says.
///
/// The session is the one that is `left` of an earlier try, or a new one. MongoDB keeps one
/// transaction per session: the first statement of the new transaction ends an earlier one that is
/// still open, so that a try never meets the write conflict of the try before it.
pub(crate) async fn begin(
    context: &Context,
    left: &mut Option<ClientSession>,
) -> Result<ClientSession, StoreError> {
    let driver = |source| StoreError::Driver { action: ACTION, source: Box::new(source) };
    if let Some(session) = left {
        start(session).await.map_err(driver)?;
    }
    if let Some(session) = left.take() {
        return Ok(session);
    }
    let starting = context.client().start_session().causal_consistency(false);
    let mut session = starting.await.map_err(driver)?;
    start(&mut session).await.map_err(driver)?;
    Ok(session)
}

async fn start(session: &mut ClientSession) -> mongodb::error::Result<()> {
    session
        .start_transaction()
        .read_concern(ReadConcern::snapshot())
        .write_concern(majority())
        .selection_criteria(primary())
        .max_commit_time(limits::BATCH)
        .await
}

const ACTION: &str = "append events";

/// Inserts both; `Some` tells which append was refused.
pub(crate) async fn fill(
    session: &mut ClientSession,
    context: &Context,
    outbox: &Collections,
    appends: &[(&Prepared, Place)],
) -> Result<Option<(usize, Refusal)>, StoreError> {
    if let Some(refused) = streams(session, context, appends).await? {
        return Ok(Some(refused));
    }
    let (mut documents, mut whose) = (Vec::new(), Vec::new());
    for (at, (append, place)) in appends.iter().enumerate() {
        documents.extend(rows::documents(append, *place));
        whose.resize(documents.len(), at);
    }
    let refused = records(session, outbox, &documents).await?;
    Ok(refused.map(|refusal| (whose[refusal.index], refusal)))
}

/// Inserts the streams; `Some` tells which append was refused.
pub(super) async fn streams(
    session: &mut ClientSession,
    context: &Context,
    appends: &[(&Prepared, Place)],
) -> Result<Option<(usize, Refusal)>, StoreError> {
    let database = context.database(Kind::Events);
    for (name, positions) in by_name(appends) {
        let settings = context.settings();
        let documents: Vec<RawDocumentBuf> = positions
            .iter()
            .map(|at| appends[*at].0.document(&settings.name, appends[*at].1))
            .collect();
        let collection = Kind::Events.collection(name.as_str());
        let inserting = insert(session, &database, &collection, &documents);
        let refused = postrider_store::within(ACTION, limits::BATCH, inserting).await?;
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
) -> Result<Option<Refusal>, StoreError> {
    let records = outbox.name(names::RECORDS);
    let inserting = insert(session, outbox.database(), &records, documents);
    postrider_store::within(ACTION, limits::BATCH, inserting).await
}

/// The positions of the appends of each name, in their order.
fn by_name<'a>(appends: &[(&'a Prepared, Place)]) -> Vec<(&'a AggregateName, Vec<usize>)> {
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

/// Commits, and asks again while the answer is not known.
///
/// A commit that failed may leave the transaction open on the server: the driver sends no
/// `abortTransaction` after a `commitTransaction`.
pub(crate) async fn commit(session: &mut ClientSession) -> Ended {
    failpoint::hit("events::before_commit");
    let began = Instant::now();
    loop {
        let committing = async { session.commit_transaction().await };
        // Longer than the server is given, so that its words come first.
        let limit = limits::BATCH * 2;
        let error = match postrider_store::within("commit an append", limit, committing).await {
            Ok(()) => {
                failpoint::hit("events::after_commit");
                return Ended::Committed;
            }
            Err(error) => error,
        };
        if has_label(&error, UNKNOWN_TRANSACTION_COMMIT_RESULT) && began.elapsed() < limits::BATCH {
            tokio::time::sleep(ASK_AGAIN).await;
            continue;
        }
        return match has_label(&error, TRANSIENT_TRANSACTION_ERROR) {
            true => Ended::Again(error),
            false => Ended::Unknown(error),
        };
    }
}

/// Takes back what an open transaction has written. A session that is dropped does so too, but
/// others would learn of its end before.
pub(super) async fn abort(session: &mut ClientSession) {
    let aborting = session.abort_transaction().into_future();
    if let Err(error) = postrider_store::within("abort a transaction", ABORT, aborting).await {
        debug!(error = chain(&error), "a transaction was not aborted");
    }
}

/// Ends on the server the transaction of the session that is `left`, where nothing follows in it.
///
/// Otherwise nobody could write to its aggregates until `transactionLifetimeLimitSeconds`. After
/// some errors (91, 11600) the driver selects the server again only at its next heartbeat, so this
/// tries for [`ENDING`]; without success the session stays `left`. A user needs no privilege to
/// kill a session of their own.
pub(super) async fn end(left: &mut Option<ClientSession>) {
    let Some(session) = left else { return };
    let admin = session.client().database("admin");
    let killing = async {
        loop {
            let kill = doc! { "killSessions": [session.id().clone()] };
            let Err(error) = ask(&admin, "end a transaction", kill).await else { return true };
            debug!(error = chain(&error), "failed to end a transaction");
            if error.meaning() == Meaning::Permanent {
                return false;
            }
            tokio::time::sleep(ASK_AGAIN).await;
        }
    };
    if tokio::time::timeout(ENDING, killing).await == Ok(true) {
        *left = None;
    } else {
        warn!("a transaction may be open until MongoDB ends it (transactionLifetimeLimitSeconds)");
    }
}

fn again_or_failed(error: StoreError) -> Ended {
    match passes(&error) {
        true => Ended::Again(error),
        false => Ended::Failed(error),
    }
}

/// Whether another transaction may succeed where this one did not.
pub(super) fn passes(error: &StoreError) -> bool {
    has_label(error, TRANSIENT_TRANSACTION_ERROR) || error.meaning() == Meaning::Transient
}

/// How long to wait after so many failures.
pub(super) fn pause(failures: u32) -> Duration {
    let longest = (PAUSE.0 * 2_u32.saturating_pow(failures)).min(PAUSE.1);
    longest.mul_f64(rand::random_range(0.0..1.0))
}

fn has_label(error: &StoreError, label: &str) -> bool {
    matches!(error, StoreError::Driver { source, .. } if source.contains_label(label))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guards_are_told_apart_by_their_keys_and_not_by_words() {
        let refusal = |key_pattern: Option<Document>| Refusal {
            index: 0,
            code: DUPLICATE_KEY,
            key_pattern,
            message: "E11000 … aggregateId_1_version_1 … requestId_1".into(),
        };

        let version = guard(refusal(Some(doc! { "aggregateId": 1, "version": 1 })));
        let request = guard(refusal(Some(doc! { "aggregateId": 1, "requestId": 1 })));
        let global = guard(refusal(Some(doc! { "requestId": 1 })));
        let other = guard(refusal(Some(doc! { "dedupKey": 1 })));

        assert_eq!((version, request, global), (Guard::Version, Guard::Request, Guard::Request));
        assert!(matches!(other, Guard::Other(_)));
        assert!(matches!(guard(refusal(None)), Guard::Other(_)));
    }

    #[test]
    fn another_transaction_may_succeed_only_behind_what_passes() {
        let timed_out = StoreError::TimedOut { action: "commit", limit: ABORT };
        let refused = StoreError::Refused { action: "commit", code: 121 };

        assert!(passes(&timed_out));
        assert!(!passes(&refused));
    }

    #[test]
    fn pause_doubles_with_each_failure_up_to_the_longest_and_varies() {
        for (failures, longest) in [(0, 5), (1, 10), (3, 40), (6, 320), (7, 500), (99, 500)] {
            let longest = Duration::from_millis(longest);
            let pauses: Vec<Duration> = (0..1_000).map(|_| pause(failures)).collect();

            assert!(pauses.iter().all(|pause| *pause < longest), "{failures}");
            assert!(pauses.iter().any(|pause| *pause > longest / 2), "{failures}");
        }
    }
}
