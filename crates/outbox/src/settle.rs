//! Settles leased records: writes the outcome, only while the lease holds.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use bson::{Bson, Document, doc};
use postrider_store::StoreError;
use postrider_store::codes::{TOO_LARGE_CODES, TRANSIENT_CODES};
use postrider_store::write::{AckLevel, Written, delete, update};

use crate::collections::{Collections, Find, ID_INDEX, names};
use crate::fields::{
    ATTEMPT, ATTEMPT_LIMIT, BLOCKS, DEAD, DEAD_AT, DEAD_REASON, DONE, DONE_AT, ID, LAST_ERROR,
    LAST_ERROR_AT, LEASE_ID, LEASE_OWNER, LEASE_UNTIL, PENDING, STATUS, VISIBLE_AT,
};
use crate::ids::{LeaseId, RecordId};
use crate::lease::{held, no_lease};
use crate::reason::{DeadReason, shortened};
use crate::undecoded::decode_valid_fields;

/// Outcome of one attempt.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// The broker confirmed it.
    Done,
    /// It failed and counts as an attempt; it is due again after `delay`, by the server's clock.
    Retry {
        /// Time until it is due again.
        delay: Duration,
        /// The last failure, for `lastError`.
        error: String,
    },
    /// It is dead.
    Dead {
        /// Why.
        reason: DeadReason,
        /// Whether it blocks its key until it is requeued or discarded (`on_dead = "block"`).
        blocks: bool,
    },
    /// Released and not counted; any instance can lease it at once.
    Released,
}

impl Outcome {
    /// Returns the outcome as the label of `postrider_deliveries_total`.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Retry { .. } => "retry",
            Self::Dead { .. } => "dead",
            Self::Released => "released",
        }
    }
}

/// One settlement: the record, its lease, and the outcome.
#[derive(Clone, Debug)]
pub struct Settlement {
    /// The record.
    pub id: RecordId,
    /// The lease.
    pub lease: LeaseId,
    /// Attempts counted, including this one. A later lease counts another, so its writes cannot be
    /// mistaken for ours.
    pub attempt: u32,
    /// The outcome to write.
    pub outcome: Outcome,
}

/// Records of a batch that were not written.
#[derive(Debug, Default, PartialEq)]
pub struct Unsettled {
    /// Records that the lease no longer holds: their outcome is final or up to another instance.
    pub lost: HashSet<RecordId>,
    /// Records that the server rejects, with its code, because of a foreign validator. They are
    /// unchanged; the same write succeeds once the validator permits it.
    pub refused: HashMap<RecordId, i32>,
}

impl Unsettled {
    /// Returns whether all records were written.
    pub fn is_empty(&self) -> bool {
        self.lost.is_empty() && self.refused.is_empty()
    }
}

/// Writes outcomes in batches.
#[derive(Clone, Debug)]
pub struct Settlements {
    collections: Collections,
    delete_done: bool,
}

impl Settlements {
    /// Creates a writer for `collections`; `delete_done` deletes done records at once (retention
    /// `"0s"`).
    pub fn new(collections: Collections, delete_done: bool) -> Self {
        Self { collections, delete_done }
    }

    /// Writes `batch` in one or two commands. Returns which records are *lost* (no longer held by
    /// their lease) and which the server rejects. A rejected record does not stop the others.
    ///
    /// Safe to retry after a lost response: a read recognises what the first try has settled. A
    /// majority acknowledges the writes.
    ///
    /// # Errors
    ///
    /// [`StoreError`]: the outcome of the batch is unknown; retry it.
    pub async fn write(&self, batch: &[Settlement]) -> Result<Unsettled, StoreError> {
        let (gone, kept): (Vec<_>, Vec<_>) = batch
            .iter()
            .partition(|settlement| self.delete_done && settlement.outcome == Outcome::Done);
        let mut unclear = Vec::new();
        let mut refused = HashMap::new();
        if !kept.is_empty() {
            unclear.extend(self.update(&kept, &mut refused).await?);
        }
        if !gone.is_empty() {
            unclear.extend(self.delete(&gone).await?);
        }
        let lost =
            if unclear.is_empty() { HashSet::new() } else { self.read_back(&unclear).await? };
        Ok(Unsettled { lost, refused })
    }

    /// Returns the settlements of statements that did not match completely, without those in
    /// `refused`.
    async fn update<'a>(
        &self,
        batch: &[&'a Settlement],
        refused: &mut HashMap<RecordId, i32>,
    ) -> Result<Vec<&'a Settlement>, StoreError> {
        let (statements, members) = statements(batch);
        let written = self.send(statements).await?;
        let mut matched = written.matched;
        let mut singly: Vec<&Settlement> = Vec::new();
        for (index, code) in written.failed {
            match members[index].as_slice() {
                [settlement] => matched += self.after_failure(settlement, code, refused).await?,
                several => {
                    check_transient(code)?;
                    singly.extend(several);
                }
            }
        }
        if !singly.is_empty() {
            let statements = singly.iter().map(|one| statement(one, change(&one.outcome)));
            let written = self.send(statements.collect()).await?;
            matched += written.matched;
            for (index, code) in written.failed {
                matched += self.after_failure(singly[index], code, refused).await?;
            }
        }
        if matched + refused.len() as u64 == batch.len() as u64 {
            return Ok(Vec::new());
        }
        let is_unclear = |one: &&&Settlement| !refused.contains_key(&one.id);
        Ok(batch.iter().filter(is_unclear).copied().collect())
    }

    /// Handles a failed statement: a record near 16 MiB is written in ever smaller forms; any other
    /// is rejected. Returns how many records matched.
    async fn after_failure(
        &self,
        settlement: &Settlement,
        mut code: i32,
        refused: &mut HashMap<RecordId, i32>,
    ) -> Result<u64, StoreError> {
        check_transient(code)?;
        if TOO_LARGE_CODES.contains(&code) {
            for slimmer in slimmer(&settlement.outcome) {
                let written = self.send(vec![statement(settlement, slimmer)]).await?;
                match written.failed.first() {
                    None => return Ok(written.matched),
                    Some((_, next)) => code = *next,
                }
            }
            check_transient(code)?;
        }
        refused.insert(settlement.id.clone(), code);
        Ok(0)
    }

    async fn send(&self, statements: Vec<Document>) -> Result<Written, StoreError> {
        let name = self.collections.name(names::RECORDS);
        let database = self.collections.database();
        update(database, &name, "settle records", statements, AckLevel::Majority).await
    }

    async fn delete<'a>(
        &self,
        batch: &[&'a Settlement],
    ) -> Result<Vec<&'a Settlement>, StoreError> {
        let held = by_lease(batch.iter().copied()).into_iter();
        let statements = held.map(|(held, _)| doc! { "q": held, "limit": 0 }).collect();
        let name = self.collections.name(names::RECORDS);
        let database = self.collections.database();
        let action = "delete delivered records";
        let written = delete(database, &name, action, statements, AckLevel::Majority).await?;
        let all = written.failed.is_empty() && written.matched == batch.len() as u64;
        Ok(if all { Vec::new() } else { batch.to_vec() })
    }

    /// Separates what the first try has settled from what is lost.
    ///
    /// Uses a majority read, which includes the first try since the second was acknowledged. After
    /// a failover that undoes our lease, another instance's death of the record may look like ours;
    /// one that the next failover undoes must not release later records of the key.
    async fn read_back(&self, unclear: &[&Settlement]) -> Result<HashSet<RecordId>, StoreError> {
        let ids: Vec<Bson> = unclear.iter().map(|settlement| Bson::from(&settlement.id)).collect();
        let written = doc! { ID: { "$in": ids } };
        let find = Find {
            fields: doc! { ID: 1, STATUS: 1, ATTEMPT: 1, LEASE_ID: 1, LAST_ERROR: 1 },
            ..Find::whole("read back settled records", ID_INDEX, written)
        };
        let mut states: HashMap<RecordId, Document> = HashMap::new();
        for state in self.collections.find(find).await? {
            let (mut state, _) = decode_valid_fields(&state);
            if let Some(id) = state.remove(ID) {
                states.insert(RecordId::from(id), state);
            }
        }
        let lost = unclear
            .iter()
            .filter(|settlement| !is_written(settlement, states.remove(&settlement.id)))
            .map(|settlement| settlement.id.clone())
            .collect();
        Ok(lost)
    }
}

/// Returns whether the stored state is the one that this settlement writes; `None` if the record is
/// gone.
fn is_written(settlement: &Settlement, state: Option<Document>) -> bool {
    let Some(state) = state else {
        // Deleted on delivery, or by retention.
        return settlement.outcome == Outcome::Done;
    };
    let status = state.get_str(STATUS).unwrap_or_default();
    let leased = state.contains_key(LEASE_ID);
    // The lease stores an int within the limit.
    let counted = i32::try_from(settlement.attempt).unwrap_or(ATTEMPT_LIMIT);
    let counted = counted.min(ATTEMPT_LIMIT);
    let has_attempt = |attempt| state.get_i32(ATTEMPT).is_ok_and(|found| found == attempt);
    match &settlement.outcome {
        Outcome::Done => status == DONE && has_attempt(counted),
        Outcome::Dead { .. } => status == DEAD && has_attempt(counted),
        Outcome::Released => status == PENDING && !leased && has_attempt(counted - 1),
        Outcome::Retry { error, .. } => {
            status == PENDING
                && !leased
                && has_attempt(counted)
                && state.get_str(LAST_ERROR).is_ok_and(|last| last == shortened(error))
        }
    }
}

/// Returns an error for a transient code: the batch is retried unchanged.
fn check_transient(code: i32) -> Result<(), StoreError> {
    if TRANSIENT_CODES.contains(&code) {
        Err(StoreError::Answer {
            action: "settle records",
            detail: format!("a statement failed with code {code}"),
        })
    } else {
        Ok(())
    }
}

/// Groups settlements by their lease. A group matches while its lease holds its records.
fn by_lease<'a>(
    batch: impl IntoIterator<Item = &'a Settlement>,
) -> Vec<(Document, Vec<&'a Settlement>)> {
    let mut groups: Vec<Vec<&Settlement>> = Vec::new();
    for settlement in batch {
        match groups.iter_mut().find(|group| group[0].lease == settlement.lease) {
            Some(group) => group.push(settlement),
            None => groups.push(vec![settlement]),
        }
    }
    let held = |group: &[&Settlement]| held(group[0].lease, group.iter().map(|one| &one.id));
    groups.into_iter().map(|group| (held(&group), group)).collect()
}

/// Builds the statements of a batch with their settlements: one for all done records of a lease,
/// one for all released ones, one for each failed one.
fn statements<'a>(batch: &[&'a Settlement]) -> (Vec<Document>, Vec<Vec<&'a Settlement>>) {
    let mut statements = Vec::new();
    let mut members = Vec::new();
    for alike in [Outcome::Done, Outcome::Released] {
        let same = batch.iter().copied().filter(|settlement| settlement.outcome == alike);
        for (held, of_lease) in by_lease(same) {
            statements.push(doc! { "q": held, "u": change(&alike), "multi": true });
            members.push(of_lease);
        }
    }
    for settlement in batch {
        if !matches!(settlement.outcome, Outcome::Done | Outcome::Released) {
            statements.push(statement(settlement, change(&settlement.outcome)));
            members.push(vec![*settlement]);
        }
    }
    (statements, members)
}

fn statement(settlement: &Settlement, change: Bson) -> Document {
    doc! { "q": held(settlement.lease, [&settlement.id]), "u": change, "multi": false }
}

fn change(outcome: &Outcome) -> Bson {
    let document = match outcome {
        Outcome::Done => doc! {
            "$set": { STATUS: DONE },
            "$currentDate": { DONE_AT: true },
            "$unset": no_lease(),
        },
        Outcome::Released => doc! { "$inc": { ATTEMPT: -1 }, "$unset": no_lease() },
        Outcome::Dead { reason, blocks } => {
            return dead(&shortened(&reason.to_string()), reason.last_error(), *blocks);
        }
        Outcome::Retry { delay, error } => return retry(*delay, Some(error)),
    };
    Bson::Document(document)
}

fn retry(delay: Duration, error: Option<&str>) -> Bson {
    let millis = i64::try_from(delay.as_millis()).unwrap_or(i64::MAX);
    let mut set = doc! { VISIBLE_AT: { "$add": ["$$NOW", millis] }, LAST_ERROR_AT: "$$NOW" };
    if let Some(error) = error {
        set.insert(LAST_ERROR, doc! { "$literal": shortened(error) });
    }
    bson::bson!([{ "$set": set }, { "$unset": [LEASE_ID, LEASE_UNTIL, LEASE_OWNER] }])
}

fn dead(reason: &str, last_error: Option<&str>, blocks: bool) -> Bson {
    let mut set = doc! { STATUS: DEAD, DEAD_REASON: reason };
    let mut dates = doc! { DEAD_AT: true };
    if let Some(error) = last_error {
        set.insert(LAST_ERROR, shortened(error));
        dates.insert(LAST_ERROR_AT, true);
    }
    if blocks {
        set.insert(BLOCKS, true);
    }
    Bson::Document(doc! { "$set": set, "$currentDate": dates, "$unset": no_lease() })
}

/// Returns ever smaller forms of an outcome, for a document near the size limit.
fn slimmer(outcome: &Outcome) -> Vec<Bson> {
    match outcome {
        Outcome::Retry { delay, .. } => vec![retry(*delay, None)],
        Outcome::Dead { reason, blocks } => smallest_deaths(reason, *blocks),
        Outcome::Done | Outcome::Released => Vec::new(),
    }
}

/// Returns ever smaller forms of a death; the last one makes the document smaller.
pub(crate) fn smallest_deaths(reason: &DeadReason, blocks: bool) -> Vec<Bson> {
    let word = format!("{}:", reason.word());
    let mut bare = doc! { STATUS: DEAD };
    if blocks {
        bare.insert(BLOCKS, true);
    }
    vec![
        dead(&shortened(&reason.to_string()), None, blocks),
        dead(&word, None, blocks),
        Bson::Document(doc! { "$set": bare, "$unset": no_lease() }),
        Bson::Document(doc! { "$set": { STATUS: DEAD }, "$unset": no_lease() }),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settlement(id: i64, lease: LeaseId, outcome: Outcome) -> Settlement {
        Settlement { id: RecordId::Int(id), lease, attempt: 3, outcome }
    }

    fn retry_of(error: &str) -> Outcome {
        Outcome::Retry { delay: Duration::from_secs(1), error: error.into() }
    }

    fn death() -> Outcome {
        Outcome::Dead { reason: DeadReason::Refused("no".into()), blocks: false }
    }

    #[test]
    fn read_back_recognises_only_our_own_writes() {
        let lease = LeaseId::fresh();
        let is_ours = |outcome: Outcome, state: Document| {
            is_written(&settlement(1, lease, outcome), Some(state))
        };

        for (outcome, status) in [(Outcome::Done, "done"), (death(), "dead")] {
            assert!(is_ours(outcome.clone(), doc! { "status": status, "attempt": 3 }));
            assert!(!is_ours(outcome.clone(), doc! { "status": status, "attempt": 4 }));
            assert!(!is_ours(outcome.clone(), doc! { "status": status }));
            assert!(!is_ours(outcome, doc! { "status": "pending", "attempt": 3 }));
        }
        let released = |status: &str, attempt: i32| doc! { "status": status, "attempt": attempt };
        assert!(is_ours(Outcome::Released, released("pending", 2)));
        assert!(!is_ours(Outcome::Released, released("pending", 3)));
        assert!(!is_ours(Outcome::Released, released("dead", 2)));
        let leased = doc! { "status": "pending", "attempt": 2, "leaseId": LeaseId::fresh() };
        assert!(!is_ours(Outcome::Released, leased));

        let failed = |status: &str, attempt: i32, error: &str| {
            doc! { "status": status, "attempt": attempt, "lastError": error }
        };
        assert!(is_ours(retry_of("x"), failed("pending", 3, "x")));
        assert!(!is_ours(retry_of("x"), failed("pending", 3, "y")));
        assert!(!is_ours(retry_of("x"), failed("pending", 2, "x")));
        assert!(!is_ours(retry_of("x"), failed("dead", 3, "x")));
        let mut leased = failed("pending", 3, "x");
        leased.insert("leaseId", LeaseId::fresh());
        assert!(!is_ours(retry_of("x"), leased));
    }

    #[test]
    fn missing_record_counts_as_delivered() {
        let lease = LeaseId::fresh();
        let is_ours = |outcome| is_written(&settlement(1, lease, outcome), None);

        assert!(is_ours(Outcome::Done));
        assert!(!is_ours(Outcome::Released) && !is_ours(death()) && !is_ours(retry_of("x")));
    }

    #[test]
    fn attempt_above_the_limit_counts_as_the_limit() {
        let mut settled = settlement(1, LeaseId::fresh(), Outcome::Done);
        settled.attempt = u32::MAX;

        assert!(is_written(&settled, Some(doc! { "status": "done", "attempt": ATTEMPT_LIMIT })));
    }

    #[test]
    fn statements_group_by_lease_and_outcome() {
        let (one, other) = (LeaseId::fresh(), LeaseId::fresh());
        let batch = [
            settlement(1, one, Outcome::Done),
            settlement(2, one, retry_of("x")),
            settlement(3, other, Outcome::Done),
            settlement(4, one, Outcome::Done),
            settlement(5, other, Outcome::Released),
            settlement(6, other, death()),
        ];
        let (statements, members) = statements(&batch.iter().collect::<Vec<_>>());

        let ids: Vec<Vec<RecordId>> = members
            .iter()
            .map(|members| members.iter().map(|one| one.id.clone()).collect())
            .collect();
        let of = |ids: &[i64]| ids.iter().map(|id| RecordId::Int(*id)).collect::<Vec<_>>();
        assert_eq!(ids, [of(&[1, 4]), of(&[3]), of(&[5]), of(&[2]), of(&[6])]);
        let leases = [one, other, other, one, other];
        for ((statement, ids), lease) in statements.iter().zip(&ids).zip(leases) {
            assert_eq!(statement.get_document("q").unwrap(), &held(lease, ids));
        }
        let multi: Vec<bool> =
            statements.iter().map(|statement| statement.get_bool("multi").unwrap()).collect();
        assert_eq!(multi, [true, true, true, false, false]);
    }

    #[test]
    fn outcome_is_written_smaller_when_it_does_not_fit() {
        let without_words = slimmer(&retry_of("long"));
        assert_eq!(without_words, [retry(Duration::from_secs(1), None)]);
        assert!(slimmer(&Outcome::Done).is_empty() && slimmer(&Outcome::Released).is_empty());
        let deaths = slimmer(&death());
        assert_eq!(deaths.len(), 4);
        let sizes: Vec<usize> = deaths
            .iter()
            .map(|change| bson::serialize_to_vec(&doc! { "u": change }).unwrap().len())
            .collect();
        assert!(sizes.is_sorted_by(|one, next| one >= next), "{sizes:?}");
        let last = deaths.last().unwrap().as_document().unwrap();
        assert_eq!(last, &doc! { "$set": { "status": "dead" }, "$unset": no_lease() });
    }

    #[test]
    fn outcomes_have_the_words_of_the_metric() {
        let outcomes = [Outcome::Done, retry_of("x"), death(), Outcome::Released];
        let words = outcomes.each_ref().map(Outcome::word);

        assert_eq!(words, ["done", "retry", "dead", "released"]);
    }

    #[test]
    fn unsettled_is_empty_when_all_was_written() {
        let id = RecordId::Int(1);
        let lost = Unsettled { lost: HashSet::from([id.clone()]), ..Unsettled::default() };
        let refused = Unsettled { refused: HashMap::from([(id, 121)]), ..Unsettled::default() };

        assert!(Unsettled::default().is_empty() && !lost.is_empty() && !refused.is_empty());
    }
}
