//! One transaction: the marks of a batch of documents, and their records.

use bson::raw::{RawArrayBuf, RawDocumentBuf, cstr};
use bson::{Bson, Document, doc};
use mongodb::{Client, ClientSession};
use postrider_outbox::collections::{Collections, names};
use postrider_store::insert::insert;
use postrider_store::text::chain;
use postrider_store::transaction::{
    CommitOutcome, abort, commit, is_retryable, kill_session, start,
};
use postrider_store::{DUPLICATE_KEY, StoreError, failpoint, limits, within};
use tracing::debug;
use uuid::Uuid;

use crate::mapping::Mapping;
use crate::read::{CopyCandidate, SkipReason};
use crate::state::BridgeStore;

const ACTION: &str = "copy documents";

/// What became of a batch.
#[derive(Debug)]
pub(crate) enum CopyOutcome {
    /// A majority has it.
    All,
    /// Nothing was copied: another process copies.
    NotOwner,
    /// Nothing was copied: one of the documents changed.
    Changed,
    /// Nothing was copied: MongoDB refuses this document.
    Refused { at: usize, reason: SkipReason, detail: String },
    /// Nothing is known to be copied; a retry may succeed.
    Again(StoreError),
    /// A retry would fail too.
    Failed(StoreError),
}

/// The session of the transactions of one process, kept until it ends: a successor ends the transaction that is still open in it.
pub(crate) struct CopySession {
    pub(crate) session: ClientSession,
    /// Whether a transaction may be open in it.
    pub(crate) is_open: bool,
}

impl CopySession {
    pub(crate) async fn start(client: &Client) -> Result<Self, StoreError> {
        let starting = client.start_session().causal_consistency(false);
        let session = within(ACTION, limits::BATCH_TIMEOUT, starting).await?;
        Ok(Self { session, is_open: false })
    }

    /// Ends a transaction that may still be open after an error: otherwise the writes of this process would wait for it.
    pub(crate) async fn end_open(&mut self, client: &Client) {
        if self.is_open {
            end(client, self.session.id()).await;
            self.is_open = false;
        }
    }
}

/// Who copies.
pub(crate) struct Copier<'a> {
    pub(crate) outbox: &'a Collections,
    pub(crate) mapping: &'a Mapping,
    pub(crate) store: &'a BridgeStore,
    pub(crate) owner: &'a str,
    pub(crate) epoch: i64,
}

impl Copier<'_> {
    /// Copies the batch in its order: all of it, or nothing. `token` is the resume token behind it.
    pub(crate) async fn copy(
        &self,
        copies: &mut CopySession,
        batch: &[CopyCandidate],
        token: Option<&Bson>,
    ) -> CopyOutcome {
        copies.end_open(self.outbox.client()).await;
        let session = &mut copies.session;
        if let Err(source) = start(session).await {
            return again_or_failed(StoreError::Driver {
                action: ACTION,
                source: Box::new(source),
            });
        }
        copies.is_open = true;
        let copy = Uuid::new_v4().to_string();
        match self.fill(session, batch, &copy, token).await {
            Ok(CopyOutcome::All) => {
                failpoint::hit("adopt::before_commit");
                match commit(session, "commit copies").await {
                    CommitOutcome::Committed => {
                        copies.is_open = false;
                        failpoint::hit("adopt::after_commit");
                        CopyOutcome::All
                    }
                    CommitOutcome::Again(error) => CopyOutcome::Again(error),
                    CommitOutcome::Unknown(error) => {
                        debug!(error = chain(&error), "the outcome of a copy is unknown");
                        copies.end_open(self.outbox.client()).await;
                        match self.store.is_copied(self.owner, self.epoch, &copy).await {
                            Ok(true) => CopyOutcome::All,
                            Ok(false) => CopyOutcome::Again(error),
                            Err(error) => CopyOutcome::Failed(error),
                        }
                    }
                }
            }
            // (It may still be open then: the driver does not report that an abort failed.)
            ended => {
                abort(session, "abort copies").await;
                ended.unwrap_or_else(again_or_failed)
            }
        }
    }

    async fn fill(
        &self,
        session: &mut ClientSession,
        batch: &[CopyCandidate],
        copy: &str,
        token: Option<&Bson>,
    ) -> Result<CopyOutcome, StoreError> {
        // First: of two owners, one meets a write conflict here and has written nothing.
        if !self.store.advance(session, self.owner, self.epoch, copy, token).await? {
            return Ok(CopyOutcome::NotOwner);
        }
        if self.mapping.has_state() && !batch.is_empty() {
            let outcome = self.mark(session, batch).await?;
            if !matches!(outcome, CopyOutcome::All) {
                return Ok(outcome);
            }
        }
        let records: Vec<RawDocumentBuf> =
            batch.iter().map(|candidate| candidate.record.clone()).collect();
        let name = self.outbox.name(names::RECORDS);
        let inserting = insert(session, self.outbox.database(), &name, &records);
        let refusal = within(ACTION, limits::BATCH_TIMEOUT, inserting).await?;
        Ok(match refusal {
            None => CopyOutcome::All,
            Some(refusal) if refusal.code == DUPLICATE_KEY => CopyOutcome::Refused {
                at: refusal.index,
                reason: SkipReason::Duplicate,
                detail: "the outbox has a record of this id".to_owned(),
            },
            Some(refusal) => CopyOutcome::Refused {
                at: refusal.index,
                reason: SkipReason::Refused,
                detail: format!(
                    "MongoDB rejects the record (code {}); check the validator of outbox_records",
                    refusal.code
                ),
            },
        })
    }

    /// Marks the documents, each if it has the status that was read.
    async fn mark(
        &self,
        session: &mut ClientSession,
        batch: &[CopyCandidate],
    ) -> Result<CopyOutcome, StoreError> {
        let Some(status) = &self.mapping.status else { return Ok(CopyOutcome::All) };
        let mut statements = RawArrayBuf::new();
        for candidate in batch {
            let read = candidate.status.clone().unwrap_or(Bson::Null);
            let mark = mark_like(&status.mark, &read);
            let mut set = doc! { &status.path: doc! { "$literal": mark } };
            if let Some((path, after)) = &status.done_at {
                let millis = i64::try_from(after.as_millis()).unwrap_or(i64::MAX);
                set.insert(path, doc! { "$add": ["$$NOW", millis] });
            }
            let statement = doc! {
                // (As values: a status that looks like an operator is none.)
                "q": { "_id": { "$eq": &candidate.id }, &status.path: { "$eq": read } },
                "u": [{ "$set": set }],
            };
            statements.push(RawDocumentBuf::try_from(&statement).map_err(unreadable)?);
        }
        let mut command = RawDocumentBuf::new();
        command.append(cstr!("update"), self.mapping.collection.as_str());
        command.append(cstr!("updates"), statements);
        let database = self.outbox.client().database(&self.mapping.database);
        let updating = async { database.run_raw_command(command).session(&mut *session).await };
        let answer = within(ACTION, limits::BATCH_TIMEOUT, updating).await?;
        if let Some(error) = answer.get_array("writeErrors").ok().and_then(|errors| errors.first())
        {
            let number = |field| error.as_document().and_then(|error| error.get_i32(field).ok());
            let code = number("code").unwrap_or_default();
            return Ok(CopyOutcome::Refused {
                at: usize::try_from(number("index").unwrap_or_default()).unwrap_or_default(),
                reason: SkipReason::Refused,
                detail: format!(
                    "MongoDB rejects the mark (code {code}); check the validator of the source"
                ),
            });
        }
        let matched = answer.get_i32("n").ok().and_then(|n| usize::try_from(n).ok());
        Ok(if matched == Some(batch.len()) { CopyOutcome::All } else { CopyOutcome::Changed })
    }
}

/// The mark in the type of the status that was read.
fn mark_like(mark: &str, read: &Bson) -> Bson {
    let typed = match read {
        Bson::Boolean(_) => mark.parse().ok().map(Bson::Boolean),
        Bson::Int32(_) => mark.parse().ok().map(Bson::Int32),
        Bson::Int64(_) => mark.parse().ok().map(Bson::Int64),
        _ => None,
    };
    typed.unwrap_or_else(|| mark.into())
}

/// Ends the transaction that may be open in this session.
pub(crate) async fn end(client: &Client, session: &Document) {
    if let Err(error) = kill_session(client, session).await {
        // MongoDB ends it later (transactionLifetimeLimitSeconds).
        debug!(error = chain(&error), "failed to end a transaction");
    }
}

fn again_or_failed(error: StoreError) -> CopyOutcome {
    if is_retryable(&error) { CopyOutcome::Again(error) } else { CopyOutcome::Failed(error) }
}

fn unreadable(error: bson::error::Error) -> StoreError {
    StoreError::Answer { action: ACTION, detail: error.to_string() }
}
