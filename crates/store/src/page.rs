//! Pages of lists, which end by number and by size: a document can have 16 MiB.

use bson::raw::{RawDocument, RawDocumentBuf};

/// The size at which a part of an answer ends that is read and sent part by part: of its documents, and of its text.
pub const PART_BYTES: usize = 96 << 10;

/// Bytes of BSON in one answer of the API.
const ANSWER_BYTES: usize = 1 << 20;

/// How much one page has at most. Its first document has any size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageSize {
    /// Number of documents.
    pub count: u32,
    /// Their size in bytes of BSON.
    pub bytes: usize,
}

impl PageSize {
    /// An answer of the API: up to 1 MiB.
    pub fn of_answer(count: u32) -> Self {
        Self { count, bytes: ANSWER_BYTES }
    }

    /// This number of documents, of any size.
    pub fn of_any_size(count: u32) -> Self {
        Self { count, bytes: usize::MAX }
    }
}

/// What was read for a page so far.
#[derive(Debug)]
pub struct Gathered {
    /// The documents.
    pub documents: Vec<RawDocumentBuf>,
    bytes: usize,
    size: PageSize,
    /// Whether a document had no room, so that there are more.
    pub is_full: bool,
}

impl Gathered {
    /// Creates an empty page of this size.
    pub fn new(size: PageSize) -> Self {
        Self { documents: Vec::new(), bytes: 0, size, is_full: false }
    }

    /// Adds a document if it has room; returns whether it had.
    pub fn add(&mut self, document: &RawDocument) -> bool {
        let bytes = self.bytes.saturating_add(document.as_bytes().len());
        let fits = self.documents.len() < self.size.count as usize
            && (self.documents.is_empty() || bytes <= self.size.bytes);
        if fits {
            self.documents.push(document.to_owned());
            self.bytes = bytes;
        }
        self.is_full |= !fits;
        fits
    }

    /// Removes the documents from this one on.
    pub fn truncate(&mut self, count: usize) {
        self.documents.truncate(count);
        self.bytes = self.documents.iter().map(|document| document.as_bytes().len()).sum();
        self.is_full = false;
    }

    /// Returns how many documents to ask for: one more than have room.
    pub fn limit(&self) -> i64 {
        let count = u32::try_from(self.documents.len()).unwrap_or(u32::MAX);
        i64::from(self.size.count.saturating_sub(count)) + 1
    }
}

#[cfg(test)]
mod tests {
    use bson::rawdoc;

    use super::*;

    #[test]
    fn page_ends_by_number_and_by_size_but_has_its_first_document() {
        let document = rawdoc! { "text": "x".repeat(100) };
        let bytes = document.as_bytes().len();
        for (count, room, expected) in
            [(3, usize::MAX, 3), (9, 2 * bytes, 2), (9, 2 * bytes - 1, 1), (9, 1, 1)]
        {
            let mut found = Gathered::new(PageSize { count, bytes: room });

            while found.add(&document) {}

            assert_eq!((found.documents.len(), found.is_full), (expected, true), "{count} {room}");
            found.truncate(0);
            assert!(!found.is_full && found.add(&document));
        }
    }
}
