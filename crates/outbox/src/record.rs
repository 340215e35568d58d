//! One outbox record as it was read: what the relay must know before it delivers.

use std::sync::Arc;

use bson::raw::{RawBsonRef, RawDocument, RawDocumentBuf};
use bson::spec::BinarySubtype;
use bson::{Bson, DateTime, Timestamp};

use crate::fields;
use crate::ids::{InstanceId, RecordId};
use crate::partition;
use crate::undecoded::{self, RawId, VALUE};

/// What orders a record: its key, or nothing.
///
/// Records of the same lane are delivered one after the other.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum LaneKey {
    /// The record's `key`.
    Keyed(Arc<str>),
    /// The record has no key (or one of the wrong type, or ordering is off): a lane
    /// of its own, named by its `_id`.
    Single(Arc<str>),
}

impl LaneKey {
    /// The key, or the `_id` of a record without one, as text for logs.
    pub fn as_str(&self) -> &str {
        match self {
            Self::Keyed(key) | Self::Single(key) => key,
        }
    }
}

/// Crashes from which on a record goes alone.
pub const SUSPECT_CRASHES: u32 = 2;

/// What a record's own `partition` says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// An integral number from 0 to 255, which is believed.
    Stamped,
    /// Nothing: its partition is the hash of its key.
    Absent,
    /// Anything else: its partition is the hash of its key, where it does not lie in the index. The
    /// relay must correct it.
    Invalid,
}

/// A pending record as a snapshot showed it.
///
/// Decoding never fails: a field of the relay's that has the wrong type is absent,
/// one of the producer's is judged when the message is made
/// ([`content`](Self::content)), and a document whose bytes are broken
/// keeps what could be read before the breach.
#[derive(Clone, Debug)]
pub struct Record {
    /// `_id`.
    pub id: RecordId,
    /// Why it can be neither leased nor corrected, if it cannot.
    pub unfit: Option<Unfit>,
    /// What it is ordered by.
    pub lane: LaneKey,
    /// The partition that it belongs to: its own where that is valid, else the hash of its key.
    pub partition: u8,
    /// What its own one says.
    pub placement: Placement,
    /// A valid `seq`; `None` where it is absent, zero or of another type.
    pub seq: Option<Timestamp>,
    /// When the lease on it ends or ended, by the server's clock.
    pub lease_until: Option<DateTime>,
    /// The owner id of the instance that took this lease; `None` where it cannot be read.
    pub lease_owner: Option<InstanceId>,
    /// Leases before this one that ended without an outcome.
    pub lease_crashes: u32,
    /// Not to be delivered before this, by the server's clock.
    pub visible_at: Option<DateTime>,
    /// Deliveries charged before this one.
    pub attempt: u32,
    /// Whether it has any field by which a lease is judged: as a rule it was leased before, or its
    /// producer wrote `visibleAt`.
    pub is_touched: bool,
    /// The document itself, for the message.
    pub raw: RawDocumentBuf,
}

impl Record {
    /// Reads the fields that decide whether and when a record goes.
    pub fn read(raw: &RawDocument) -> Self {
        let mut fields_read = Fields::default();
        for element in raw.iter_elements() {
            // A name that is not UTF-8, which ends the driver's own walk.
            let Ok(element) = element else { return Self::read_by_bytes(raw) };
            let name = element.key().as_str();
            // A value that can't be decoded (text that is no UTF-8) is the message's affair.
            fields_read.meet(name, element.value().ok());
        }
        fields_read.into_record(raw.to_owned())
    }

    /// The same field by field, past those whose names are not UTF-8. The message will say what is
    /// wrong.
    fn read_by_bytes(raw: &RawDocument) -> Self {
        let mut fields_read = Fields::default();
        for element in undecoded::elements(raw.as_bytes()) {
            let Ok(name) = std::str::from_utf8(element.name) else { continue };
            let alone = element.alone();
            fields_read.meet(name, alone.get(VALUE).ok().flatten());
        }
        fields_read.into_record(raw.to_owned())
    }

    /// The text by which commands know it, also where its `_id` can't be decoded.
    pub fn shown_id(&self) -> String {
        if self.unfit == Some(Unfit::Nameless) {
            RawId::of(&self.raw).text()
        } else {
            self.id.to_string()
        }
    }

    /// The partition that its key hashes to; where it has none, its `_id`.
    pub fn hashed_partition(&self) -> u8 {
        hashed(&self.lane, &self.id)
    }

    /// Whether a lease is on it that has not expired.
    pub fn is_leased(&self, now: DateTime) -> bool {
        self.lease_until.is_some_and(|until| until > now)
    }

    /// Leases that ended without an outcome, by a crash or a hang. One that is on it now counts: it is
    /// asked of records that no instance holds.
    pub fn crashes(&self) -> u32 {
        self.lease_crashes.saturating_add(u32::from(self.lease_until.is_some()))
    }

    /// Whether it goes alone since it may crash the process: after its second crash. In the first
    /// one it has many innocent records in its company.
    pub fn is_suspect(&self) -> bool {
        self.crashes() >= SUSPECT_CRASHES
    }

    /// Whether it was alone in the lease that is on it: it was a suspect when that was taken.
    pub fn was_alone(&self) -> bool {
        self.lease_until.is_some() && self.lease_crashes >= SUSPECT_CRASHES
    }

    /// Counted deliveries that had an outcome, which was a failure.
    pub fn failures(&self) -> u32 {
        self.attempt.saturating_sub(self.crashes())
    }

    /// Size of the stored document in bytes.
    pub fn size(&self) -> usize {
        self.raw.as_bytes().len()
    }

    /// The same record in a lane of its own, where ordering is off.
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

/// Why a record can be neither leased nor corrected: it is made dead where it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unfit {
    /// Its `_id` can't be decoded (text that is no UTF-8), so that no command of the driver can name
    /// it; its `id` is null.
    Nameless,
    /// It has this field twice. MongoDB goes by the first one, and as of 6.0.5 the server aborts where
    /// an update by a pipeline, as a lease is, changes such a field.
    Twice(&'static str),
}

#[derive(Default)]
struct Fields {
    /// Which of [`fields::ALL`] were met.
    met: u32,
    twice: Option<&'static str>,
    id: Option<Bson>,
    key: Option<Arc<str>>,
    /// `None` inside where it is there and invalid.
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
    /// Notes a field, if it is the first of its name: its value too, where that can be decoded.
    fn meet(&mut self, name: &str, value: Option<RawBsonRef<'_>>) {
        if self.is_first(name)
            && let Some(value) = value
        {
            self.note(name, value);
        }
    }

    /// Notes that a field of this name was met; false for one of ours that was met before.
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
            lease_crashes: self.lease_crashes,
            visible_at: self.visible_at,
            attempt: self.attempt,
            is_touched: self.is_touched,
            raw,
        }
    }
}

/// The value as a count; 0 where it is none.
fn count(value: RawBsonRef<'_>) -> u32 {
    let limit = i64::from(fields::ATTEMPT_LIMIT);
    let count = integral(value).map_or(0, |number| number.clamp(0, limit));
    u32::try_from(count).unwrap_or(0)
}

/// The value as an integer, whatever numeric type holds it; `None` for a fraction.
fn integral(value: RawBsonRef<'_>) -> Option<i64> {
    match value {
        RawBsonRef::Int32(number) => Some(number.into()),
        RawBsonRef::Int64(number) => Some(number),
        // Every f64 of this size that equals its truncation is exact as an i64.
        RawBsonRef::Double(number) if number.trunc() == number && number.abs() < 9e15 => {
            Some(number as i64)
        }
        RawBsonRef::Decimal128(number) => integral_decimal(&number.to_string()),
        _ => None,
    }
}

/// The same for the text of a decimal, such as `189`, `189.0` or `1.89E+2`.
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
    fn a_record_without_a_key_has_a_lane_of_its_own() {
        let absent = read(doc! { "_id": 7, "type": "T" });
        let null = read(doc! { "_id": 7, "key": null });
        let empty = read(doc! { "_id": 7, "key": "" });

        assert_eq!(absent.lane, LaneKey::Single("7".into()));
        assert_eq!(null.lane, LaneKey::Single("7".into()));
        assert_eq!(empty.lane, LaneKey::Keyed("".into()));
    }

    #[test]
    fn any_integral_number_from_0_to_255_is_believed_as_a_partition() {
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
    fn a_record_without_a_partition_belongs_to_that_of_its_key_or_else_of_its_id() {
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
    fn a_record_is_touched_that_has_any_field_by_which_a_lease_is_judged() {
        assert!(
            !read(doc! { "_id": 1, "key": "k", "status": "pending", "leaseOwner": 1 }).is_touched
        );
        for name in ["attempt", "leaseId", "leaseUntil", "visibleAt"] {
            let record = read(doc! { "_id": 1, name: Bson::Null });
            assert!(record.is_touched, "{name}");
        }
    }

    #[test]
    fn an_attempt_that_is_no_count_is_zero_and_none_is_above_a_million() {
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
    fn of_a_field_that_is_there_twice_the_first_counts_and_the_record_is_unfit() {
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
    fn a_lease_end_without_a_lease_id_is_no_lease() {
        let now = DateTime::from_millis(1_000);
        let later = DateTime::from_millis(2_000);

        let record = read(doc! { "_id": 1, "leaseUntil": later, "leaseId": "someone" });

        assert!(!record.is_leased(now));
        assert_eq!(record.crashes(), 0);
    }

    #[test]
    fn a_record_is_suspect_after_its_second_crash_and_was_alone_after_the_third() {
        let lease = doc! { "_id": 1, "leaseId": bson::Uuid::new(), "leaseUntil": DateTime::MIN };
        for (crashes, is_suspect, was_alone) in
            [(0_u32, false, false), (1, true, false), (2, true, true), (9, true, true)]
        {
            let mut leased = lease.clone();
            leased.extend(doc! { "leaseCrashes": crashes, "attempt": crashes + 3 });

            let record = read(leased.clone());

            assert_eq!((record.is_suspect(), record.was_alone()), (is_suspect, was_alone));
            assert_eq!((record.crashes(), record.failures()), (crashes + 1, 2));
            leased.remove("leaseId");
            let released = read(leased);
            assert_eq!((released.is_suspect(), released.was_alone()), (was_alone, false));
            assert_eq!((released.crashes(), released.failures()), (crashes, 3));
        }
    }

    #[test]
    fn text_that_is_no_utf8_hides_no_other_field() {
        let mut bytes = rawdoc! { "_id": "a", "type": "T", "partition": 4 }.into_bytes();
        let at = bytes.iter().position(|byte| *byte == b'T').unwrap();
        bytes[at] = 0xff;

        let record = Record::read(RawDocument::from_bytes(&bytes).unwrap());

        assert_eq!(record.id, RecordId::String("a".into()));
        assert_eq!(record.partition, 4);
    }
}
