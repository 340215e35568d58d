//! Which records to list, and in which order.

use std::time::Duration;

use bson::{Bson, DateTime, Document, Timestamp, doc};
use serde::Deserialize;

use crate::fields::{
    ATTEMPT, DEAD, DEAD_AT, DONE, DONE_AT, PENDING, SCHEDULED, SEQ, STATUS, VISIBLE_AT, exactly,
};
use crate::filter::{add_texts, invalid};
use crate::inspect::{DEAD_INDEX, DONE_TTL_INDEX};
use crate::repair::SCHEDULED_INDEX;
use crate::snapshot::LANE_INDEX;

/// The status of a record; invalid: none of the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub enum StatusFilter {
    /// To be delivered.
    Pending,
    /// Not due yet.
    Scheduled,
    /// Delivered.
    Done,
    /// Given up.
    Dead,
    /// Of a status that is none of the others: never delivered.
    Invalid,
}

/// What a list of records is sorted by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub enum Sort {
    /// `_id`.
    Id,
    /// Pending records by their place in line, oldest first.
    Seq,
    /// Dead records, the longest dead first.
    DeadAt,
    /// Scheduled records, the next one due first.
    VisibleAt,
    /// Pending or dead records, most attempts first.
    Attempt,
}

/// Which records to list.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    /// Of this status.
    pub status: Option<StatusFilter>,
    /// Of this key.
    pub key: Option<String>,
    /// Of this type.
    pub kind: Option<String>,
    /// Dead, and whose `deadReason` begins so.
    pub reason: Option<String>,
    /// Pending, dead or done for longer than this, or overdue for longer.
    pub older_than: Option<Duration>,
    /// By age where it is not given and the status has one; else by id.
    pub sort: Option<Sort>,
}

/// Invalid list request: the name of the parameter, and the error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListError(pub &'static str, pub String);

impl StatusFilter {
    /// The words for them.
    pub const WORDS: [&str; 5] = [PENDING, SCHEDULED, DONE, DEAD, "invalid"];

    /// The one of this word.
    pub fn of(word: &str) -> Option<Self> {
        let all = [Self::Pending, Self::Scheduled, Self::Done, Self::Dead, Self::Invalid];
        all.into_iter().find(|chapter| chapter.word() == word)
    }

    fn word(self) -> &'static str {
        Self::WORDS[self as usize]
    }

    pub(super) fn filter(self) -> Document {
        match self {
            Self::Invalid => invalid(),
            of => doc! { STATUS: exactly(of.word()) },
        }
    }

    /// Returns the index of its records, and the field that gives their age.
    pub(super) fn index(self) -> Option<(&'static str, &'static str)> {
        match self {
            Self::Pending => Some((LANE_INDEX, SEQ)),
            Self::Scheduled => Some((SCHEDULED_INDEX, VISIBLE_AT)),
            Self::Done => Some((DONE_TTL_INDEX, DONE_AT)),
            Self::Dead => Some((DEAD_INDEX, DEAD_AT)),
            Self::Invalid => None,
        }
    }
}

impl Sort {
    /// The words for them.
    pub const WORDS: [&str; 5] = [ID_WORD, SEQ, DEAD_AT, VISIBLE_AT, ATTEMPT];

    /// The one of this word.
    pub fn of(word: &str) -> Option<Self> {
        let all = [Self::Id, Self::Seq, Self::DeadAt, Self::VisibleAt, Self::Attempt];
        all.into_iter().find(|sort| sort.word() == word)
    }

    pub(super) fn word(self) -> &'static str {
        Self::WORDS[self as usize]
    }
}

const ID_WORD: &str = "id";

impl Filter {
    /// Returns the sort of the list.
    ///
    /// # Errors
    ///
    /// Parameters that contradict each other.
    pub(super) fn judge(&self) -> Result<Sort, ListError> {
        let wrong = |name, detail: &str| Err(ListError(name, detail.to_owned()));
        if self.reason.is_some() && !matches!(self.status, None | Some(StatusFilter::Dead)) {
            return wrong("reason", "applies only to dead records");
        }
        let status = self.status();
        if self.older_than.is_some() && status.and_then(StatusFilter::index).is_none() {
            return wrong("olderThan", "requires the status pending, scheduled, done or dead");
        }
        let sort = self.sort.unwrap_or(match status {
            Some(StatusFilter::Pending) => Sort::Seq,
            Some(StatusFilter::Dead) => Sort::DeadAt,
            Some(StatusFilter::Scheduled) => Sort::VisibleAt,
            _ => Sort::Id,
        });
        match (sort, status) {
            (Sort::Seq, status) if status != Some(StatusFilter::Pending) => {
                wrong("sort", "seq requires the status pending")
            }
            (Sort::DeadAt, status) if status != Some(StatusFilter::Dead) => {
                wrong("sort", "deadAt requires the status dead")
            }
            (Sort::VisibleAt, status) if status != Some(StatusFilter::Scheduled) => {
                wrong("sort", "visibleAt requires the status scheduled")
            }
            (Sort::Attempt, status)
                if !matches!(status, Some(StatusFilter::Pending | StatusFilter::Dead)) =>
            {
                wrong("sort", "attempt requires the status pending or dead")
            }
            _ => Ok(sort),
        }
    }

    pub(super) fn status(&self) -> Option<StatusFilter> {
        self.status.or_else(|| self.reason.as_ref().map(|_| StatusFilter::Dead))
    }

    /// Returns the conditions, at this server time.
    pub(super) fn conditions(&self, now: DateTime) -> Document {
        let mut conditions = self.status().map(StatusFilter::filter).unwrap_or_default();
        let (key, kind, reason) = (self.key.as_ref(), self.kind.as_ref(), self.reason.as_ref());
        add_texts(&mut conditions, key, kind, reason);
        if let (Some(age), Some((_, field))) =
            (self.older_than, self.status().and_then(StatusFilter::index))
        {
            let age = i64::try_from(age.as_millis()).unwrap_or(i64::MAX);
            let before = now.timestamp_millis().saturating_sub(age);
            let before = match field {
                SEQ => {
                    let time = u32::try_from(before.max(0) / 1_000).unwrap_or(u32::MAX);
                    Bson::Timestamp(Timestamp { time, increment: 0 })
                }
                _ => Bson::DateTime(DateTime::from_millis(before)),
            };
            conditions.insert(field, doc! { "$lt": before });
        }
        conditions
    }
}
