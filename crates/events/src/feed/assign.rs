//! One transaction: the next positions of a batch of appends, and the head.

use bson::raw::{RawArrayBuf, RawBson, RawDocumentBuf, cstr};
use bson::{Document, rawdoc};
use mongodb::ClientSession;
use postrider_store::transaction::{CommitOutcome, abort, commit, is_retryable};
use postrider_store::{StoreError, failpoint, limits, within};

use crate::commits::CommittedAppend;
use crate::context::{CollectionKind, Context};
use crate::feed::collections::StreamCollections;
use crate::feed::lookup::{Early, early};
use crate::feed::recent::Recent;
use crate::feed::state::{FeedState, StateStore};
use crate::integer::integral;
use crate::names::AggregateName;
use crate::transaction::begin;

const ACTION: &str = "assign positions";

/// What became of a batch.
#[derive(Debug)]
pub(super) enum Assigned {
    /// A majority has it; the head is this, with the names of the last positions.
    All(i64, Recent),
    /// Nothing was assigned: the head, its id or its owner has changed.
    StateChanged,
    /// Nothing was assigned: one of the appends has a position, or is gone.
    StreamsChanged,
    /// Nothing was assigned: what precedes these appends has no position, or does not exist.
    TooEarly(Vec<Early>),
    /// Nothing was assigned: MongoDB does not change this document, because of a validator for example.
    Refused { at: usize, error: StoreError },
    /// Nothing was assigned, and a retry may succeed.
    Again(StoreError),
    /// Whether it was assigned is not known.
    Unknown(StoreError),
}

/// Assigns the positions after the head of `state`, in the order of the batch: all of them, or none.
///
/// Four conditions hold in the transaction itself, whatever the caller knows: the head is that of
/// `state`, `owner` has the right to move it, what precedes each append in its stream has a position or is
/// in front of it in the batch, and no append of the batch has a position.
pub(super) async fn assign(
    context: &Context,
    store: &StateStore,
    collections: &StreamCollections,
    (owner, state, recent): (&str, &FeedState, &Recent),
    batch: &[CommittedAppend],
    open_session: &mut Option<ClientSession>,
) -> Assigned {
    let mut session = match begin(context, open_session).await {
        Ok(session) => session,
        Err(error) => return again_or_unknown(error),
    };
    let known = (owner, state, recent);
    let filled = fill(&mut session, context, store, collections, known, batch).await;
    let outcome = match filled {
        Ok(Filled::All(head, recent)) => {
            failpoint::hit("feed::before_commit");
            match commit(&mut session, ACTION).await {
                CommitOutcome::Committed => {
                    failpoint::hit("feed::after_commit");
                    Assigned::All(head, recent)
                }
                CommitOutcome::Again(error) => Assigned::Again(error),
                CommitOutcome::Unknown(error) => Assigned::Unknown(error),
            }
        }
        Ok(Filled::StateChanged) => {
            abort(&mut session, ACTION).await;
            Assigned::StateChanged
        }
        Ok(Filled::StreamsChanged) => {
            abort(&mut session, ACTION).await;
            Assigned::StreamsChanged
        }
        Ok(Filled::TooEarly(early)) => {
            abort(&mut session, ACTION).await;
            Assigned::TooEarly(early)
        }
        Ok(Filled::Refused { at, error }) => {
            abort(&mut session, ACTION).await;
            Assigned::Refused { at, error }
        }
        Err(error) => {
            abort(&mut session, ACTION).await;
            again_or_unknown(error)
        }
    };
    *open_session = Some(session);
    outcome
}

/// What the statements of the transaction have found.
enum Filled {
    All(i64, Recent),
    StateChanged,
    StreamsChanged,
    TooEarly(Vec<Early>),
    Refused { at: usize, error: StoreError },
}

async fn fill(
    session: &mut ClientSession,
    context: &Context,
    store: &StateStore,
    collections: &StreamCollections,
    (owner, state, recent): (&str, &FeedState, &Recent),
    batch: &[CommittedAppend],
) -> Result<Filled, StoreError> {
    let (positions, head) = positions(state.head, batch);
    let names = batch.iter().map(|append| &append.aggregate.0).collect();
    let known = recent.moved(state.head, head, names);
    // First: of two sequencers, one meets a write conflict here and has written nothing.
    let advancing = store.advance(session, owner, state, (head, recent.update(&known)));
    if !within(ACTION, limits::BATCH_TIMEOUT, advancing).await? {
        return Ok(Filled::StateChanged);
    }
    let early = early(session, context, collections, batch).await?;
    if !early.is_empty() {
        return Ok(Filled::TooEarly(early));
    }
    let database = context.database(CollectionKind::Events);
    for (name, members) in by_name(batch) {
        let mut statements = RawArrayBuf::new();
        for at in &members {
            statements.push(statement(&batch[*at], positions[*at])?);
        }
        let mut command = RawDocumentBuf::new();
        command.append(cstr!("update"), CollectionKind::Events.collection(name.as_str()));
        command.append(cstr!("updates"), statements);
        let updating = async { database.run_raw_command(command).session(&mut *session).await };
        let answer = within(ACTION, limits::BATCH_TIMEOUT, updating).await?;
        if let Some((index, error)) = refusal(&answer) {
            let at = members.get(index).copied().unwrap_or_default();
            return Ok(Filled::Refused { at, error });
        }
        if modified(&answer)? != members.len() {
            return Ok(Filled::StreamsChanged);
        }
    }
    Ok(Filled::All(head, known))
}

/// The position of each append's last event, and the head behind them.
fn positions(head: i64, batch: &[CommittedAppend]) -> (Vec<i64>, i64) {
    let last = batch.iter().scan(head, |last, append| {
        *last += append.events;
        Some(*last)
    });
    let positions: Vec<i64> = last.collect();
    let head = positions.last().copied().unwrap_or(head);
    (positions, head)
}

/// The update of one append: its position, unless it has one.
///
/// By the id alone: MongoDB plans no query for that. A second condition costs 10 us of each append.
fn statement(append: &CommittedAppend, position: i64) -> Result<RawDocumentBuf, StoreError> {
    let wrong = |error: bson::error::Error| StoreError::Answer {
        action: ACTION,
        detail: error.to_string(),
    };
    let mut statement = RawDocumentBuf::new();
    let id = RawBson::try_from(append.id.clone()).map_err(wrong)?;
    statement.append(cstr!("q"), rawdoc! { "_id": id });
    if append.has_null_position {
        let mut value = RawArrayBuf::new();
        value.push("$position");
        value.push(position);
        let mut update = RawArrayBuf::new();
        update.push(rawdoc! { "$set": { "position": { "$ifNull": value } } });
        statement.append(cstr!("u"), update);
    } else {
        // An earlier position is less than this one, and stays. (A pipeline costs a quarter more.)
        statement.append(cstr!("u"), rawdoc! { "$min": { "position": position } });
    }
    Ok(statement)
}

/// The index of the statement that MongoDB refuses, and why.
fn refusal(answer: &Document) -> Option<(usize, StoreError)> {
    let error = answer.get_array("writeErrors").ok()?.first()?.as_document()?;
    let number = |field| error.get(field).and_then(integral).unwrap_or(0);
    let code = i32::try_from(number("code")).unwrap_or(0);
    let index = usize::try_from(number("index")).unwrap_or(0);
    Some((index, StoreError::Refused { action: ACTION, code }))
}

fn modified(answer: &Document) -> Result<usize, StoreError> {
    let wrong = |detail: String| StoreError::Answer { action: ACTION, detail };
    let modified = answer.get_i32("nModified").map_err(|error| wrong(error.to_string()))?;
    Ok(usize::try_from(modified).unwrap_or(0))
}

/// The indexes of the appends of each name, in their order.
fn by_name(batch: &[CommittedAppend]) -> Vec<(&AggregateName, Vec<usize>)> {
    let mut names: Vec<(&AggregateName, Vec<usize>)> = Vec::new();
    for (at, append) in batch.iter().enumerate() {
        let name = &append.aggregate.0;
        match names.iter_mut().find(|(known, _)| *known == name) {
            Some((_, members)) => members.push(at),
            None => names.push((name, vec![at])),
        }
    }
    names
}

fn again_or_unknown(error: StoreError) -> Assigned {
    // A permanent error is one too: the sequencer reports it, and tries again later.
    if is_retryable(&error) { Assigned::Again(error) } else { Assigned::Unknown(error) }
}

#[cfg(test)]
mod tests {
    use bson::Bson;

    use super::*;
    use crate::names::AggregateId;

    #[test]
    fn position_of_an_append_is_that_of_its_last_event() {
        let append = |events| CommittedAppend {
            aggregate: (AggregateName::new("order").unwrap(), AggregateId::new("1").unwrap()),
            id: Bson::Null,
            version: 1,
            create_time: 0,
            events,
            has_null_position: false,
        };

        assert_eq!(
            positions(7, &[append(1), append(3), append(0), append(2)]),
            (vec![8, 11, 11, 13], 13)
        );
        assert_eq!(positions(7, &[]), (vec![], 7));
    }
}
