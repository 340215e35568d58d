//! A record as the relay reads it: the fields that decide about its delivery.

use std::sync::Arc;

use bson::raw::{RawBsonRef, RawDocument, RawDocumentBuf};
use bson::spec::BinarySubtype;
use bson::{Bson, DateTime, Timestamp};

use crate::fields;
use crate::ids::{InstanceId, RecordId};
use crate::partition;
use crate::undecoded::{self, RawId, VALUE};

/// Orders records: by key, or not at all.
///
/// Records of a lane are delivered one after the other.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum LaneKey {
    /// The record's `key`.
    Keyed(Arc<str>),
    /// The record has no key (or an invalid one, or ordering is off): a lane of its own, named by
    /// its `_id`.
    Single(Arc<str>),
}

impl LaneKey {
    /// Returns the key, or the `_id` of a record without one, as text for logs.
    pub fn as_str(&self) -> &str {
        match self {
            Self::Keyed(key) | Self::Single(key) => key,
        }
    }
}

/// Number of crashes from which a record is quarantined.
pub const POISON_CRASHES: u32 = 2;

/// What the `partition` field of a record says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// A valid partition: an integral number from 0 to 255.
    Stamped,
    /// Absent: the partition is the hash of the key.
    Absent,
    /// Invalid: the partition is the hash of the key, but the index has the record elsewhere. The
    /// relay must correct it.
    Invalid,
}

/// The document that was read, and no other: a replacement has the same `_id` and another `seq`,
/// and so has a record that was deleted and inserted again.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RecordVersion {
    /// `_id`.
    pub id: RecordId,
    /// `seq`.
    pub seq: Timestamp,
}

/// A pending record from a snapshot.
///
/// Decoding never fails. A relay field of the wrong type is absent, a producer field is validated
/// when the message is built ([`content`](Self::content)), and a document with broken bytes keeps
/// what precedes them.
#[derive(Clone, Debug)]
pub struct Record {
    /// `_id`.
    pub id: RecordId,
    /// Why it can be neither leased nor corrected, if so.
    pub unfit: Option<Unfit>,
    /// Its lane.
    pub lane: LaneKey,
    /// Its partition: the `partition` field if valid, else the hash of the key.
    pub partition: u8,
    /// What its `partition` field says.
    pub placement: Placement,
    /// A valid `seq`; `None` where it is absent, zero or of another type.
    pub seq: Option<Timestamp>,
    /// When the lease on it ends or ended, by the server's clock.
    pub lease_until: Option<DateTime>,
    /// The owner id of the lease; `None` if it cannot be read.
    pub lease_owner: Option<InstanceId>,
    /// Whether that owner is this instance, which has not crashed since. The relay sets it.
    pub is_lease_own: bool,
    /// Earlier leases that ended without an outcome.
    pub lease_crashes: u32,
    /// Not to be delivered before this, by the server's clock.
    pub visible_at: Option<DateTime>,
    /// Attempts counted so far.
    pub attempt: u32,
    /// Whether it has any field that a lease depends on: usually it was leased before, or its
    /// producer wrote `visibleAt`.
    pub is_touched: bool,
    /// The document, for the message.
    pub raw: RawDocumentBuf,
}

impl Record {
    /// Reads the fields that decide about the delivery.
    pub fn read(raw: &RawDocument) -> Self {
        let mut fields_read = Fields::default();
        for element in raw.iter_elements() {
            // A field name that is not UTF-8 ends the driver's iteration.
            let Ok(element) = element else { return Self::read_by_bytes(raw) };
            let name = element.key().as_str();
            // A value that cannot be decoded (such as invalid UTF-8) is reported when the message
            // is built.
            fields_read.meet(name, element.value().ok());
        }
        fields_read.into_record(raw.to_owned())
    }

    /// Reads field by field and skips names that are not UTF-8. Building the message reports the
    /// error.
    fn read_by_bytes(raw: &RawDocument) -> Self {
        let mut fields_read = Fields::default();
        for element in undecoded::elements(raw.as_bytes()) {
            let Ok(name) = std::str::from_utf8(element.name) else { continue };
            let alone = element.alone();
            fields_read.meet(name, alone.get(VALUE).ok().flatten());
        }
        fields_read.into_record(raw.to_owned())
    }

    /// Returns what names this document in a conditional write; `None` without a usable `seq`, which
    /// the relay must repair first.
    pub fn version(&self) -> Option<RecordVersion> {
        self.seq.map(|seq| RecordVersion { id: self.id.clone(), seq })
    }

    /// Returns the text that names the record in commands, even if its `_id` cannot be decoded.
    pub fn shown_id(&self) -> String {
        if self.unfit == Some(Unfit::Nameless) {
            RawId::of(&self.raw).text()
        } else {
            self.id.to_string()
        }
    }

    /// Returns the hash of the key; without a key, of the `_id`.
    pub fn hashed_partition(&self) -> u8 {
        hashed(&self.lane, &self.id)
    }

    /// Returns whether an unexpired lease holds the record.
    pub fn is_leased(&self, now: DateTime) -> bool {
        self.lease_until.is_some_and(|until| until > now)
    }

    /// Returns the number of leases that ended without an outcome, by a crash or a hang. A current
    /// lease counts, unless it is this instance's: no instance delivers the record when this is called.
    pub fn crashes(&self) -> u32 {
        self.lease_crashes
            .saturating_add(u32::from(self.lease_until.is_some() && !self.is_lease_own))
    }

    /// Returns whether the record is quarantined, that is, after its second crash. The first crash
    /// has too many other records in flight to blame one.
    pub fn is_poison(&self) -> bool {
        self.crashes() >= POISON_CRASHES
    }

    /// Returns whether the current lease was acquired in quarantine.
    pub fn was_quarantined(&self) -> bool {
        self.lease_until.is_some() && !self.is_lease_own && self.lease_crashes >= POISON_CRASHES
    }

    /// Returns the number of counted attempts that failed.
    pub fn failures(&self) -> u32 {
        let is_leased = u32::from(self.lease_until.is_some());
        self.attempt.saturating_sub(self.lease_crashes.saturating_add(is_leased))
    }

    /// Returns the size of the stored document in bytes.
    pub fn size(&self) -> usize {
        self.raw.as_bytes().len()
    }

    /// Moves the record to a lane of its own, for when ordering is off.
    pub fn without_order(mut self) -> Self {
        self.lane = LaneKey::Single(self.id.to_string().into());
        self
    }
}

fn hashed(lane: &LaneKey, id: &RecordId) -> u8 {
    match lane {
        LaneKey::Keyed(key) => partition::of_key(key),
        LaneKey::Single(_) => partition::of_key(&id.to_string()),
    }
}

/// Reason why a record can be neither leased nor corrected. The relay marks it dead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unfit {
    /// Its `_id` cannot be decoded (such as invalid UTF-8), so no driver command can name it; its
    /// `id` is null.
    Nameless,
    /// It has this field twice. MongoDB uses the first one, and the server (6.0.5) aborts if an
    /// update with a pipeline, such as a lease, changes it.
    Twice(&'static str),
}

#[derive(Default)]
struct Fields {
    /// The fields of [`fields::ALL`] that were read.
    met: u32,
    twice: Option<&'static str>,
    id: Option<Bson>,
    key: Option<Arc<str>>,
    /// The inner `None` is an invalid value.
    partition: Option<Option<u8>>,
    seq: Option<Timestamp>,
    has_lease_id: bool,
    lease_owner: Option<InstanceId>,
    lease_crashes: u32,
    lease_until: Option<DateTime>,
    visible_at: Option<DateTime>,
    attempt: u32,
    is_touched: bool,
}

impl Fields {
    /// Records a field if it is the first of its name, and its value if that can be decoded.
    fn meet(&mut self, name: &str, value: Option<RawBsonRef<'_>>) {
        if self.is_first(name)
            && let Some(value) = value
        {
            self.note(name, value);
        }
    }

    /// Records the name of a field; returns false for a known field that is a duplicate.
    fn is_first(&mut self, name: &str) -> bool {
        let Some(place) = fields::ALL.iter().position(|known| *known == name) else { return true };
        let is_first = self.met & (1 << place) == 0;
        self.met |= 1 << place;
        if !is_first {
            self.twice = Some(fields::ALL[place]);
        }
        is_first
    }

    fn note(&mut self, name: &str, value: RawBsonRef<'_>) {
        self.is_touched |= fields::UNTOUCHED.contains(&name);
        match name {
            fields::ID => self.id = Bson::try_from(value).ok(),
            fields::KEY => self.key = value.as_str().map(Into::into),
            fields::PARTITION => {
                self.partition = match value {
                    RawBsonRef::Null | RawBsonRef::Undefined => None,
                    _ => Some(integral(value).and_then(|number| u8::try_from(number).ok())),
                };
            }
            fields::SEQ => {
                self.seq = value.as_timestamp().filter(|seq| seq.time != 0 || seq.increment != 0);
            }
            fields::LEASE_ID => {
                self.has_lease_id = matches!(
                    value,
                    RawBsonRef::Binary(binary) if binary.subtype == BinarySubtype::Uuid
                );
            }
            fields::LEASE_UNTIL => self.lease_until = value.as_datetime(),
            fields::LEASE_OWNER => {
                self.lease_owner = Bson::try_from(value).ok().as_ref().and_then(InstanceId::read);
            }
            fields::LEASE_CRASHES => self.lease_crashes = count(value),
            fields::VISIBLE_AT => self.visible_at = value.as_datetime(),
            fields::ATTEMPT => self.attempt = count(value),
            _ => {}
        }
    }

    fn into_record(self, raw: RawDocumentBuf) -> Record {
        let unfit = match self.id {
            None => Some(Unfit::Nameless),
            Some(_) => self.twice.map(Unfit::Twice),
        };
        let id = RecordId::from(self.id.unwrap_or(Bson::Null));
        let lane = match self.key {
            Some(key) => LaneKey::Keyed(key),
            None => LaneKey::Single(id.to_string().into()),
        };
        let (own, placement) = match self.partition {
            None => (None, Placement::Absent),
            Some(None) => (None, Placement::Invalid),
            Some(own) => (own, Placement::Stamped),
        };
        Record {
            partition: own.unwrap_or_else(|| hashed(&lane, &id)),
            placement,
            id,
            unfit,
            lane,
            seq: self.seq,
            lease_until: self.lease_until.filter(|_| self.has_lease_id),
            lease_owner: self.lease_owner,
            is_lease_own: false,
            lease_crashes: self.lease_crashes,
            visible_at: self.visible_at,
            attempt: self.attempt,
            is_touched: self.is_touched,
            raw,
        }
    }
}

/// Returns the value as a count; 0 if it is not one.
fn count(value: RawBsonRef<'_>) -> u32 {
    let limit = i64::from(fields::ATTEMPT_LIMIT);
    let count = integral(value).map_or(0, |number| number.clamp(0, limit));
    u32::try_from(count).unwrap_or(0)
}

/// Returns the value of any numeric type as an integer; `None` for a fraction.
fn integral(value: RawBsonRef<'_>) -> Option<i64> {
    match value {
        RawBsonRef::Int32(number) => Some(number.into()),
        RawBsonRef::Int64(number) => Some(number),
        // An f64 in this range that equals its truncation converts exactly.
        RawBsonRef::Double(number) if number.trunc() == number && number.abs() < 9e15 => {
            Some(number as i64)
        }
        RawBsonRef::Decimal128(number) => integral_decimal(&number.to_string()),
        _ => None,
    }
}

/// Parses the text of a decimal, such as `189`, `189.0` or `1.89E+2`.
fn integral_decimal(text: &str) -> Option<i64> {
    let (mantissa, exponent) = text.split_once('E').unwrap_or((text, "0"));
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let digits = format!("{whole}{fraction}");
    let significant = digits.trim_end_matches('0');
    if matches!(significant, "" | "-") {
        return digits.ends_with('0').then_some(0);
    }
    let dropped = i64::try_from(digits.len() - significant.len()).ok()?;
    let exponent: i64 = exponent.parse().ok()?;
    let zeros = exponent - i64::try_from(fraction.len()).ok()? + dropped;
    // An i64 has 19 digits.
    let zeros = usize::try_from(zeros).ok().filter(|zeros| *zeros < 19)?;
    format!("{significant}{}", "0".repeat(zeros)).parse().ok()
}

#[cfg(test)]
mod tests {
    use bson::{doc, rawdoc};

    use super::*;

    fn read(document: bson::Document) -> Record {
        Record::read(&RawDocumentBuf::try_from(&document).unwrap())
    }

    #[test]
    fn record_without_a_key_has_its_own_lane() {
        let absent = read(doc! { "_id": 7, "type": "T" });
        let null = read(doc! { "_id": 7, "key": null });
        let empty = read(doc! { "_id": 7, "key": "" });

        assert_eq!(absent.lane, LaneKey::Single("7".into()));
        assert_eq!(null.lane, LaneKey::Single("7".into()));
        assert_eq!(empty.lane, LaneKey::Keyed("".into()));
    }

    #[test]
    fn partition_is_any_integral_number_from_0_to_255() {
        for (value, expected) in [
            (Bson::Int32(7), Some(7)),
            (Bson::Int64(255), Some(255)),
            (Bson::Double(3.0), Some(3)),
            (Bson::Decimal128("12".parse().unwrap()), Some(12)),
            (Bson::Decimal128("189.0".parse().unwrap()), Some(189)),
            (Bson::Decimal128("1.9E+2".parse().unwrap()), Some(190)),
            (Bson::Decimal128("0.255E3".parse().unwrap()), Some(255)),
            (Bson::Decimal128("-0.0".parse().unwrap()), Some(0)),
            (Bson::Decimal128("189.5".parse().unwrap()), None),
            (Bson::Decimal128("1E+6000".parse().unwrap()), None),
            (Bson::Decimal128("1E-6000".parse().unwrap()), None),
            (Bson::Decimal128("NaN".parse().unwrap()), None),
            (Bson::Decimal128("-Infinity".parse().unwrap()), None),
            (Bson::Double(3.5), None),
            (Bson::Int32(-1), None),
            (Bson::Int32(256), None),
            (Bson::String("7".into()), None),
            (Bson::Array(vec![7.into()]), None),
        ] {
            let record = read(doc! { "_id": 1, "key": "order-123", "partition": value.clone() });

            let placement = expected.map_or(Placement::Invalid, |_| Placement::Stamped);
            assert_eq!(record.placement, placement, "{value:?}");
            assert_eq!(record.partition, expected.unwrap_or(189), "{value:?}");
        }
    }

    #[test]
    fn partition_is_hash_of_key_or_id_when_absent() {
        for (partition, key, expected) in [
            (doc! {}, Bson::String("order-123".into()), 189),
            (doc! { "partition": Bson::Null }, "order-123".into(), 189),
            (doc! {}, Bson::Null, 22),
        ] {
            let mut document = doc! { "_id": "user-456", "key": key };
            document.extend(partition);

            let record = read(document);

            assert_eq!(record.partition, expected);
            assert_eq!(record.placement, Placement::Absent);
        }
    }

    #[test]
    fn record_is_touched_when_it_has_any_lease_field() {
        assert!(
            !read(doc! { "_id": 1, "key": "k", "status": "pending", "leaseOwner": 1 }).is_touched
        );
        for name in ["attempt", "leaseId", "leaseUntil", "visibleAt"] {
            let record = read(doc! { "_id": 1, name: Bson::Null });
            assert!(record.is_touched, "{name}");
        }
    }

    #[test]
    fn attempt_is_zero_when_invalid_and_at_most_a_million() {
        for (value, expected) in [
            (Bson::Int32(3), 3),
            (Bson::Double(4.0), 4),
            (Bson::Int64(9_000_000_000), 1_000_000),
            (Bson::Double(2.5), 0),
            (Bson::Double(f64::NAN), 0),
            (Bson::Int32(-2), 0),
            (Bson::String("3".into()), 0),
        ] {
            let record = read(doc! { "_id": 1, "attempt": value.clone() });

            assert_eq!(record.attempt, expected, "{value:?}");
        }
    }

    #[test]
    fn duplicate_field_makes_record_unfit_and_first_counts() {
        for name in fields::ALL {
            let mut raw = rawdoc! { "_id": 1, "x": 1, "x": 2 };
            for value in [3, 4] {
                raw.append(bson::raw::CString::try_from(name).unwrap(), value);
            }

            let record = Record::read(&raw);

            assert_eq!(record.unfit, Some(Unfit::Twice(name)));
        }
        let raw = rawdoc! { "_id": 1, "x": 1, "x": 2, "key": "a", "key": "b", "partition": 7 };

        let record = Record::read(&raw);

        assert_eq!((record.lane, record.partition), (LaneKey::Keyed("a".into()), 7));
        assert_eq!(read(doc! { "_id": 1, "key": "k" }).unfit, None);
    }

    #[test]
    fn lease_end_without_lease_id_is_ignored() {
        let now = DateTime::from_millis(1_000);
        let later = DateTime::from_millis(2_000);

        let record = read(doc! { "_id": 1, "leaseUntil": later, "leaseId": "someone" });

        assert!(!record.is_leased(now));
        assert_eq!(record.crashes(), 0);
    }

    #[test]
    fn record_is_quarantined_after_its_second_crash() {
        let lease = doc! { "_id": 1, "leaseId": bson::Uuid::new(), "leaseUntil": DateTime::MIN };
        for (crashes, is_poison, was_quarantined) in
            [(0_u32, false, false), (1, true, false), (2, true, true), (9, true, true)]
        {
            let mut leased = lease.clone();
            leased.extend(doc! { "leaseCrashes": crashes, "attempt": crashes + 3 });

            let record = read(leased.clone());

            assert_eq!(
                (record.is_poison(), record.was_quarantined()),
                (is_poison, was_quarantined)
            );
            assert_eq!((record.crashes(), record.failures()), (crashes + 1, 2));
            let mut own = read(leased.clone());
            own.is_lease_own = true;
            assert_eq!((own.is_poison(), own.was_quarantined()), (was_quarantined, false));
            assert_eq!((own.crashes(), own.failures()), (crashes, 2));
            leased.remove("leaseId");
            let released = read(leased);
            assert_eq!(
                (released.is_poison(), released.was_quarantined()),
                (was_quarantined, false)
            );
            assert_eq!((released.crashes(), released.failures()), (crashes, 3));
        }
    }

    #[test]
    fn invalid_utf8_does_not_hide_other_fields() {
        let mut bytes = rawdoc! { "_id": "a", "type": "T", "partition": 4 }.into_bytes();
        let at = bytes.iter().position(|byte| *byte == b'T').unwrap();
        bytes[at] = 0xff;

        let record = Record::read(RawDocument::from_bytes(&bytes).unwrap());

        assert_eq!(record.id, RecordId::String("a".into()));
        assert_eq!(record.partition, 4);
    }
}
