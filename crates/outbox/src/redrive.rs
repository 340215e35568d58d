//! Requeues and discards records, by order of an operator.
//!
//! Each change is one conditional write that a majority acknowledges: later reads see the record in
//! its place or not at all. A requeued record keeps its `seq`, so it precedes all undelivered
//! records of its key. If its death was skipped, later records may have been delivered; if it
//! blocked the key, none was.

use std::collections::HashMap;

use bson::raw::{RawDocument, RawDocumentBuf};
use bson::{Bson, DateTime, Document, doc};
use mongodb::options::Hint;
use postrider_store::codes::TOO_LARGE_CODES;
use postrider_store::dates::rfc3339;
use postrider_store::text::bounded;
use postrider_store::write::{self, AckLevel, Written};
use postrider_store::{ServerClock, StoreError, limits, within};

use crate::brief::{LongText, brief};
use crate::collections::Collections;
use crate::fields::{
    ATTEMPT, BLOCKS, DEAD, DEAD_AT, DEAD_REASON, DONE, DONE_AT, ERASED, ID, KEY, LEASE_CRASHES,
    LEASE_ID, LEASE_OWNER, LEASE_UNTIL, PENDING, SCHEDULED, SEQ, STATUS, VISIBLE_AT, exactly,
};
use crate::filter::{add_texts, invalid};
use crate::inspect::{DEAD_INDEX, Inspector};
use crate::lease::free;
use crate::repair::SCHEDULED_INDEX;
use crate::scope::RecordScope;
use crate::snapshot::LANE_INDEX;
use crate::undecoded::{RawId, RawWriter};

/// Maximum length of an invalid status in a message, in characters.
const MAX_STATUS_CHARS: usize = 80;

/// Records that one command changes.
const BATCH_SIZE: usize = 1_000;

/// The change to make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Redrive {
    /// Dead records become pending again, unless their content was erased.
    Requeue,
    /// The same, and delivered ones too: their consumers see them twice.
    Redeliver,
    /// Dead, scheduled, pending and invalid records are removed, unless they are leased.
    Discard,
    /// Dead records are removed; others are refused, since they would never be delivered.
    DiscardDead,
}

/// Whether a failed statement stops the statements after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    Strict,
    Any,
}

/// Selects the records of a redrive of many.
#[derive(Clone, Debug, Default)]
pub struct RedriveFilter {
    /// Of this status; dead where none is given.
    pub status: Option<RedriveStatus>,
    /// Of this key.
    pub key: Option<String>,
    /// Of this type.
    pub kind: Option<String>,
    /// With this word at the start of `deadReason`.
    pub reason: Option<String>,
}

/// Statuses of records that can be discarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RedriveStatus {
    /// Dead.
    Dead,
    /// Scheduled.
    Scheduled,
    /// Pending, and not leased.
    Pending,
}

/// Result of a redrive of many.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RedriveResult {
    /// Records selected.
    pub matched: u64,
    /// Records changed: fewer if another instance was first, or if a record cannot be changed.
    pub changed: u64,
    /// Records whose content was erased with their stream.
    pub erased: u64,
    /// Records too close to 16 MiB to be changed.
    pub too_large: u64,
    /// Records that MongoDB rejects.
    pub refused: u64,
    /// The code of the latest rejection.
    pub code: Option<i32>,
}

impl RedriveResult {
    /// Describes what was not changed and why, with the remedy; `None` if all was changed.
    pub fn left(&self) -> Option<String> {
        let erased = (self.erased > 0).then(|| {
            let count = self.erased;
            format!("{count} have no content, since their streams were erased; discard them")
        });
        let too_large = (self.too_large > 0).then(|| {
            let count = self.too_large;
            format!(
                "{count} are too close to MongoDB's limit of 16 MiB to be changed; shorten \
                 their payloads first"
            )
        });
        let refused = self.code.map(|code| {
            let count = self.refused;
            format!(
                "{count} are rejected by MongoDB (code {code}); change the validator of \
                 outbox_records to permit the change"
            )
        });
        let left: Vec<String> = erased.into_iter().chain(too_large).chain(refused).collect();
        (!left.is_empty()).then(|| left.join("; "))
    }

    fn note_failed(&mut self, code: i32) {
        if TOO_LARGE_CODES.contains(&code) {
            self.too_large += 1
        } else {
            (self.refused, self.code) = (self.refused + 1, Some(code))
        }
    }
}

/// Reason why a record was not changed.
#[derive(Clone, Debug, PartialEq)]
pub enum RedriveRefusal {
    /// No record has this id.
    Missing,
    /// An instance is delivering the record.
    Leased {
        /// When the lease ends, unless it is renewed.
        until: Option<DateTime>,
    },
    /// The change does not apply to its status: a known one, or a description of an invalid one.
    Status(String),
    /// Its content was erased with its stream.
    Erased,
    /// The document is too close to 16 MiB to be changed.
    TooLarge,
    /// The server rejects the change with this code, because of a foreign validator.
    Server(i32),
}

impl RedriveRefusal {
    /// Explains why the record was not changed, with the remedy. `option` is what permits more:
    /// redelivery, or the discard of what is not dead.
    pub fn explain(&self, redrive: Redrive, option: &str) -> String {
        let permitted = match redrive {
            Redrive::Requeue => "dead records can be requeued",
            Redrive::Redeliver => "dead and done records can be redelivered",
            Redrive::Discard | Redrive::DiscardDead => {
                "dead, scheduled, pending and invalid records can be discarded"
            }
        };
        match self {
            Self::Missing => "there is no record with this id".to_owned(),
            Self::Leased { until } => {
                let until = until.and_then(rfc3339).map(|until| format!(" until {until}"));
                let until = until.unwrap_or_default();
                format!("it is leased{until} by an instance that delivers it; try again after that")
            }
            Self::Erased => {
                "its content was erased with its event stream, so it cannot be delivered again; \
                 it can be discarded, unless it is done"
                    .to_owned()
            }
            Self::TooLarge => {
                "it is too close to MongoDB's limit of 16 MiB to be changed; shorten its \
                 payload first"
                    .to_owned()
            }
            Self::Server(code) => format!(
                "MongoDB rejects the change (code {code}); change the validator of \
                 outbox_records to permit it"
            ),
            Self::Status(status) if redrive == Redrive::Requeue && status == DONE => {
                format!("it is done; use {option} to deliver it to its consumers again")
            }
            Self::Status(status) if redrive == Redrive::DiscardDead && status != DONE => {
                format!("it is {status}, not dead; use {option} if it must never be delivered")
            }
            Self::Status(status) => format!("it is {status}; only {permitted}"),
        }
    }
}

/// Requeues and discards.
#[derive(Clone, Debug)]
pub struct Redriver {
    collections: Collections,
    scope: RecordScope,
}

impl Redriver {
    /// Creates a redriver of these collections.
    pub fn new(collections: Collections) -> Self {
        Self { collections, scope: RecordScope::default() }
    }

    /// The same for single records within this scope.
    #[must_use]
    pub fn within(self, scope: RecordScope) -> Self {
        Self { scope, ..self }
    }

    fn inspector(&self) -> Inspector {
        Inspector::new(self.collections.clone()).within(self.scope.clone())
    }

    /// Changes the record with the first of these ids that exists.
    ///
    /// # Errors
    ///
    /// [`StoreError`]: the outcome is unknown, and a retry is safe.
    pub async fn redrive(
        &self,
        redrive: Redrive,
        ids: &[RawId],
    ) -> Result<Result<(), RedriveRefusal>, StoreError> {
        let inspector = self.inspector();
        // At most twice: its status may change between the read and the write.
        for _ in 0..2 {
            let Some(record) = inspector.show(ids).await? else {
                return Ok(Err(RedriveRefusal::Missing));
            };
            let written = self.write(redrive, &[vec![record.id]], Order::Any).await?;
            match (written.matched, written.failed.first()) {
                (1.., _) => return Ok(Ok(())),
                (0, Some((_, code))) => {
                    return Ok(Err(if TOO_LARGE_CODES.contains(code) {
                        RedriveRefusal::TooLarge
                    } else {
                        RedriveRefusal::Server(*code)
                    }));
                }
                _ => {}
            }
            let refusal = refusal(redrive, &record.document);
            if let Some(refusal) = refusal {
                return Ok(Err(refusal));
            }
        }
        Ok(Err(RedriveRefusal::Leased { until: None }))
    }

    /// Returns the result that [`redrive`](Self::redrive) would have now; changes nothing.
    pub async fn check(
        &self,
        redrive: Redrive,
        ids: &[RawId],
    ) -> Result<Result<(), RedriveRefusal>, StoreError> {
        let inspector = self.inspector();
        let Some(record) = inspector.show(ids).await? else {
            return Ok(Err(RedriveRefusal::Missing));
        };
        let filter =
            RawWriter::default().equal(ID, &record.id).fields(&self.filter(redrive)).finish();
        Ok(match inspector.first(&filter).await? {
            None => Err(refusal(redrive, &record.document)
                .unwrap_or(RedriveRefusal::Leased { until: None })),
            Some(_) => Ok(()),
        })
    }

    /// Returns how many records a redrive of many would change now.
    pub async fn count_matching(&self, chosen: &RedriveFilter) -> Result<u64, StoreError> {
        self.collections.count(chosen.index(), chosen.filter(), None).await
    }

    /// Changes all records that match now, in the order of `seq`. Records that match only later
    /// (such as a requeued record that dies again) are not changed.
    ///
    /// # Errors
    ///
    /// [`StoreError`]; what was changed stays changed, and a retry is safe.
    pub async fn redrive_matching(
        &self,
        redrive: Redrive,
        chosen: &RedriveFilter,
    ) -> Result<RedriveResult, StoreError> {
        let records = self.collections.records();
        let mut filter = chosen.filter();
        if chosen.status() == RedriveStatus::Dead {
            let now = ServerClock::asked(self.collections.database()).await?;
            let newer = doc! { "$gt": [format!("${DEAD_AT}"), now] };
            filter.insert("$expr", doc! { "$not": [newer] });
        }
        let find = records
            .find(filter)
            // (Long keys count as one: their records are in successive statements too.)
            .projection(doc! { ID: 1, KEY: brief(KEY, LongText::Mark), ERASED: 1 })
            .sort(doc! { SEQ: 1 })
            .allow_disk_use(true)
            .batch_size(u32::try_from(BATCH_SIZE).unwrap_or(u32::MAX))
            .hint(Hint::Name(chosen.index().to_owned()));
        let found = within("select records", limits::REPORT_TIMEOUT, find);
        let mut cursor = self.collections.by_index(chosen.index(), found).await?;
        let mut redriven = RedriveResult::default();
        loop {
            let (mut rounds, before) = (Rounds::default(), redriven.erased);
            while rounds.count < BATCH_SIZE
                && within("select records", limits::REPORT_TIMEOUT, cursor.advance()).await?
            {
                if redrive.spares(cursor.current()) {
                    redriven.erased += 1;
                } else {
                    rounds.add(cursor.current());
                }
            }
            redriven.matched += rounds.count as u64 + redriven.erased - before;
            if rounds.count == 0 {
                return Ok(redriven);
            }
            self.write_all(redrive, &rounds.ids, &mut redriven).await?;
        }
    }

    /// Writes a batch. A rejected record does not stop the others.
    async fn write_all(
        &self,
        redrive: Redrive,
        mut rounds: &[Vec<RawId>],
        redriven: &mut RedriveResult,
    ) -> Result<(), StoreError> {
        while !rounds.is_empty() {
            let written = self.write(redrive, rounds, Order::Strict).await?;
            redriven.changed += written.matched;
            let Some((stopped, _)) = written.failed.first() else { return Ok(()) };
            let (tried, rest) = rounds.split_at((*stopped + 1).min(rounds.len()));
            // The server stops within a statement and does not report where.
            let each: Vec<Vec<RawId>> =
                tried.last().into_iter().flatten().map(|id| vec![id.clone()]).collect();
            let written = self.write(redrive, &each, Order::Any).await?;
            redriven.changed += (each.len() - written.failed.len()) as u64;
            written.failed.iter().for_each(|(_, code)| redriven.note_failed(*code));
            rounds = rest;
        }
        Ok(())
    }

    /// Matches records that can be changed, within the scope.
    fn filter(&self, redrive: Redrive) -> Document {
        let mut filter = redrive.filter();
        filter.extend(self.scope.condition());
        filter
    }

    /// Sends one statement per list of ids, in order.
    async fn write(
        &self,
        redrive: Redrive,
        rounds: &[Vec<RawId>],
        order: Order,
    ) -> Result<Written, StoreError> {
        let change = doc! {
            "u": {
                "$set": { STATUS: PENDING, ATTEMPT: 0 },
                "$unset": {
                    DEAD_AT: "", DEAD_REASON: "", DONE_AT: "", BLOCKS: "", VISIBLE_AT: "",
                    LEASE_ID: "", LEASE_UNTIL: "", LEASE_OWNER: "", LEASE_CRASHES: "",
                },
            },
            "multi": true,
        };
        let (action, command, effect) = match redrive {
            Redrive::Discard | Redrive::DiscardDead => {
                ("discard records", "delete", doc! { "limit": 0 })
            }
            _ => ("requeue records", "update", change),
        };
        let list: Vec<RawDocumentBuf> = rounds
            .iter()
            .map(|ids| {
                let among = RawWriter::default().list("$in", ids).finish();
                let within_reach =
                    RawWriter::default().document(ID, &among).fields(&self.filter(redrive));
                RawWriter::default().document("q", &within_reach.finish()).fields(&effect).finish()
            })
            .collect();
        let mut options = write::options(AckLevel::Majority);
        options.insert("ordered", order == Order::Strict);
        let command = RawWriter::writes(&self.collections, command, &list, &options);
        write::send(self.collections.database(), action, command).await
    }
}

impl Redrive {
    /// Matches records that can be changed.
    fn filter(self) -> Document {
        match self {
            Self::Requeue => doc! { STATUS: exactly(DEAD), ERASED: { "$ne": true } },
            Self::DiscardDead => doc! { STATUS: exactly(DEAD) },
            Self::Redeliver => doc! {
                "$or": [{ STATUS: exactly(DEAD) }, { STATUS: exactly(DONE) }],
                ERASED: { "$ne": true },
            },
            Self::Discard => doc! { "$or": [
                { STATUS: exactly(DEAD) },
                { STATUS: exactly(SCHEDULED) },
                unleased(),
                invalid(),
            ] },
        }
    }

    /// Whether it does not change this record, because its content was erased.
    fn spares(self, record: &RawDocument) -> bool {
        self != Self::Discard && matches!(record.get_bool(ERASED), Ok(true))
    }
}

/// Matches pending records that no instance delivers.
pub(crate) fn unleased() -> Document {
    doc! { STATUS: exactly(PENDING), "$or": free() }
}

impl RedriveFilter {
    fn status(&self) -> RedriveStatus {
        self.status.unwrap_or(RedriveStatus::Dead)
    }

    fn filter(&self) -> Document {
        let mut filter = match self.status() {
            RedriveStatus::Dead => doc! { STATUS: exactly(DEAD) },
            RedriveStatus::Scheduled => doc! { STATUS: exactly(SCHEDULED) },
            RedriveStatus::Pending => unleased(),
        };
        let (key, kind, reason) = (self.key.as_ref(), self.kind.as_ref(), self.reason.as_ref());
        add_texts(&mut filter, key, kind, reason);
        filter
    }

    fn index(&self) -> &'static str {
        match self.status() {
            RedriveStatus::Dead => DEAD_INDEX,
            RedriveStatus::Scheduled => SCHEDULED_INDEX,
            RedriveStatus::Pending => LANE_INDEX,
        }
    }
}

/// Returns why this record was not changed; `None` if nothing prevents it.
fn refusal(redrive: Redrive, record: &Document) -> Option<RedriveRefusal> {
    let status = match record.get(STATUS) {
        Some(Bson::String(status)) => status.as_str(),
        _ => {
            return (redrive != Redrive::Discard)
                .then(|| RedriveRefusal::Status("without a status".to_owned()));
        }
    };
    let is_erased = matches!(record.get_bool(ERASED), Ok(true));
    match (redrive, status) {
        (Redrive::Requeue | Redrive::Redeliver, DEAD | DONE) if is_erased => {
            Some(RedriveRefusal::Erased)
        }
        (Redrive::Discard, PENDING) => {
            Some(RedriveRefusal::Leased { until: record.get_datetime(LEASE_UNTIL).ok().copied() })
        }
        (Redrive::Requeue | Redrive::Redeliver | Redrive::DiscardDead, DEAD)
        | (Redrive::Redeliver, DONE) => None,
        (Redrive::Discard, status) if status != DONE => None,
        (_, PENDING | SCHEDULED | DONE | DEAD) => Some(RedriveRefusal::Status(status.to_owned())),
        _ => {
            let status = bounded(status, MAX_STATUS_CHARS);
            Some(RedriveRefusal::Status(format!("in the invalid status {status:?}")))
        }
    }
}

/// Splits a batch into statements: the first record of each key, then the second of each, and so
/// on. A statement proceeds by `_id`, and a concurrent relay must not see a record of a key without
/// its predecessors.
#[derive(Default)]
struct Rounds {
    ids: Vec<Vec<RawId>>,
    seen: HashMap<RawId, usize>,
    count: usize,
}

impl Rounds {
    fn add(&mut self, record: &RawDocument) {
        let key = RawId::field(record, KEY);
        let round = if key.is_null() {
            0
        } else {
            let next = self.seen.entry(key).or_default();
            *next += 1;
            *next - 1
        };
        if self.ids.len() <= round {
            self.ids.push(Vec::new());
        }
        self.ids[round].push(RawId::of(record));
        self.count += 1;
    }
}

#[cfg(test)]
mod tests {
    use bson::rawdoc;

    use super::*;

    #[test]
    fn rounds_put_records_of_a_key_in_successive_statements() {
        let mut rounds = Rounds::default();
        for (id, key) in [(1, "a"), (2, "b"), (3, "a"), (4, "a"), (5, "b")] {
            rounds.add(&rawdoc! { "_id": id, "key": key });
        }
        rounds.add(&rawdoc! { "_id": 6 });

        let expected = [vec![1, 2, 6], vec![3, 5], vec![4]]
            .map(|ids| ids.into_iter().map(|id| RawId::from(&Bson::Int32(id))).collect::<Vec<_>>());
        assert_eq!(rounds.ids, expected);
        assert_eq!(rounds.count, 6);
    }
}
