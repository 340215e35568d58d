//! The fields of a document as their bytes, which the driver's types hold only if they are UTF-8.

use bson::raw::{CStr, RawDocumentBuf, cstr};
use bson::{Bson, RawBsonRef};

pub(super) const TEXT: u8 = 0x02;
pub(super) const DOCUMENT: u8 = 0x03;
pub(super) const ARRAY: u8 = 0x04;
pub(super) const UNDEFINED: u8 = 0x06;
pub(super) const NULL: u8 = 0x0a;
pub(super) const REGEX: u8 = 0x0b;
pub(super) const CODE: u8 = 0x0d;
pub(super) const SYMBOL: u8 = 0x0e;
pub(super) const CODE_WITH_SCOPE: u8 = 0x0f;

/// The name of the field in [`Element::alone`].
pub(crate) const VALUE: &CStr = cstr!("v");

/// A field as its bytes.
pub(crate) struct Element<'a> {
    pub(super) kind: u8,
    pub(crate) name: &'a [u8],
    pub(super) value: &'a [u8],
}

impl<'a> Element<'a> {
    /// A document with this value alone, under the name [`VALUE`].
    pub(crate) fn alone(&self) -> RawDocumentBuf {
        alone(self.kind, self.value)
    }

    /// The bytes of a text.
    pub(super) fn text(&self) -> Option<&'a [u8]> {
        let is_text = matches!(self.kind, TEXT | CODE | SYMBOL);
        self.value.get(4..self.value.len().saturating_sub(1)).filter(|_| is_text)
    }
}

fn alone(kind: u8, value: &[u8]) -> RawDocumentBuf {
    let mut bytes = i32::try_from(value.len() + 8).unwrap_or(i32::MAX).to_le_bytes().to_vec();
    bytes.push(kind);
    bytes.extend_from_slice(VALUE.as_str().as_bytes());
    bytes.push(0);
    bytes.extend_from_slice(value);
    bytes.push(0);
    RawDocumentBuf::from_bytes(bytes).unwrap_or_default()
}

/// The fields of a document up to where its bytes are none.
pub(crate) fn elements(document: &[u8]) -> impl Iterator<Item = Element<'_>> {
    let mut rest = document.get(4..document.len().saturating_sub(1)).unwrap_or_default();
    std::iter::from_fn(move || {
        let (kind, behind) = rest.split_first()?;
        let end = behind.iter().position(|byte| *byte == 0)?;
        let (name, behind) = (behind.get(..end)?, behind.get(end + 1..)?);
        let value = behind.get(..length(*kind, behind)?)?;
        rest = behind.get(value.len()..)?;
        Some(Element { kind: *kind, name, value })
    })
}

/// Returns the length of a value in bytes.
fn length(kind: u8, bytes: &[u8]) -> Option<usize> {
    let stated = || {
        let length = bytes.get(..4)?.try_into().ok()?;
        usize::try_from(i32::from_le_bytes(length)).ok()
    };
    let text = |from: usize| {
        let end = bytes.get(from..)?.iter().position(|byte| *byte == 0)?;
        Some(from + end + 1)
    };
    match kind {
        UNDEFINED | NULL | 0x7f | 0xff => Some(0),
        0x08 => Some(1),
        0x10 => Some(4),
        0x01 | 0x09 | 0x11 | 0x12 => Some(8),
        0x07 => Some(12),
        0x13 => Some(16),
        DOCUMENT | ARRAY | CODE_WITH_SCOPE => stated(),
        TEXT | CODE | SYMBOL => stated()?.checked_add(4),
        0x05 => stated()?.checked_add(5),
        0x0c => stated()?.checked_add(16),
        REGEX => text(text(0)?),
        _ => None,
    }
}

/// Returns whether a value has the structure of its kind, though its texts may be no UTF-8. (MongoDB
/// refuses a command with any other value.)
pub(super) fn is_whole(kind: u8, bytes: &[u8], deeper: usize) -> bool {
    match kind {
        DOCUMENT | ARRAY => {
            let Some(deeper) = deeper.checked_sub(1) else { return false };
            let mut end = 4;
            let is_whole = elements(bytes).all(|element| {
                end += element.name.len() + element.value.len() + 2;
                is_whole(element.kind, element.value, deeper)
            });
            is_whole && end + 1 == bytes.len() && bytes.ends_with(&[0])
        }
        TEXT | CODE | SYMBOL => bytes.len() > 4 && bytes.ends_with(&[0]),
        0x0c => bytes.len().checked_sub(13).is_some_and(|end| end >= 4 && bytes[end] == 0),
        0x08 => bytes[0] <= 1,
        CODE_WITH_SCOPE => false,
        _ => true,
    }
}

/// A value that can be decoded.
pub(super) fn value(kind: u8, bytes: &[u8]) -> Option<Bson> {
    let document = alone(kind, bytes);
    let value: RawBsonRef<'_> = document.get(VALUE).ok()??;
    Bson::try_from(value).ok()
}

/// A name with the bytes that are no UTF-8 written out.
pub(crate) fn escaped(name: &[u8]) -> String {
    let mut escaped = String::new();
    for chunk in name.utf8_chunks() {
        escaped.push_str(chunk.valid());
        escaped.extend(chunk.invalid().iter().map(|byte| format!("\\x{byte:02x}")));
    }
    escaped
}
