//! Records of an exact size.

use bson::raw::RawDocumentBuf;
use bson::spec::BinarySubtype;
use bson::{Binary, Document};

use super::outbox::record;

/// The largest document that MongoDB stores.
pub const MAX_DOCUMENT_BYTES: usize = 16 << 20;

/// What a first lease adds: `attempt`, `leaseId`, `leaseUntil`, `leaseOwner`.
pub const LEASE_BYTES: usize = 13 + 30 + 20 + 33;

/// Incompressible bytes, the same ones each time.
pub fn incompressible(count: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let bytes = (0..count).map(|_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()[7]
    });
    bytes.collect()
}

/// A record of the key `k` with a binary payload.
pub fn with_payload(id: &str, bytes: Vec<u8>) -> Document {
    let mut record = record(id, "k");
    record.insert("payload", Binary { subtype: BinarySubtype::Generic, bytes });
    record
}

/// The same record, filled up to this size, and its payload.
pub fn of_size(id: &str, size: usize) -> (RawDocumentBuf, Vec<u8>) {
    filled(record(id, "k"), size)
}

/// This record with a binary payload that fills it up to this size, and that payload.
pub fn filled(mut record: Document, size: usize) -> (RawDocumentBuf, Vec<u8>) {
    let mut with = |bytes| {
        record.insert("payload", Binary { subtype: BinarySubtype::Generic, bytes });
        RawDocumentBuf::try_from(&record).unwrap()
    };
    let payload = incompressible(size - with(Vec::new()).as_bytes().len());
    (with(payload.clone()), payload)
}
