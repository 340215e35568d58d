//! Cursors: the place of a document in the order of a query.
//!
//! MongoDB's `$gt` and `$lt` compare values of one kind only, and an absent field with none. A cursor that
//! used them alone would skip what is missing, null or of another kind. So the filter behind a cursor also
//! names the kinds that follow.

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use bson::raw::{RawBsonRef, RawDocument, RawDocumentBuf};
use bson::{Bson, Document, doc};

/// The longest cursor, in bytes of BSON. (Its filter repeats the first values for each field of the order.)
const MAX_BYTES: usize = 16_384;

/// The deepest nesting of a value: MongoDB stores none that is deeper.
const MAX_LEVELS: usize = 100;

const ORDER: &str = "o";
const VALUES: &str = "v";

/// The place behind a document: its values of the fields of an order.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Place(Vec<Bson>);

/// Why there is no cursor behind a document.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unsortable {
    /// A field of the order holds an array.
    #[error("{0} contains an array in some documents, so it has no order; sort by another field")]
    Array(String),
    /// A field of the order holds a value of a kind whose order a filter cannot express.
    #[error("{0} contains a regular expression or code in some documents; sort by another field")]
    Kind(String),
    /// Every document of this part has a value of the order that is not valid.
    #[error(
        "the documents of this part have values of the order that are not valid UTF-8, behind which there is no cursor; \
         raise the limit, or sort by another field"
    )]
    Invalid,
    /// The values of the order are too long.
    #[error("{0} contains a value that is too long for a cursor; sort by another field")]
    Long(String),
}

/// A text that is not a cursor of this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("is not a cursor of this sort order; use the `next` of a response with the same sort")]
pub struct InvalidCursor;

impl Place {
    /// The place behind a stored document, which has the fields of the order.
    pub(super) fn behind(document: &Document, order: &Document) -> Result<Self, Unsortable> {
        let value = |field: &String| {
            let value = value_at(document, field)?;
            if Kind::of(&value).is_none() {
                return Err(Unsortable::Kind(field.clone()));
            }
            Ok(value)
        };
        order.keys().map(value).collect::<Result<_, _>>().map(Self)
    }

    /// The place as text.
    pub(super) fn encode(&self, order: &Document) -> Result<String, Unsortable> {
        let size =
            |value: &Bson| doc! { "": value }.to_vec().map_or(usize::MAX, |bytes| bytes.len());
        let bytes = doc! { ORDER: order, VALUES: &self.0 }.to_vec().unwrap_or_default();
        if (1..=MAX_BYTES).contains(&bytes.len()) {
            return Ok(BASE64_URL_SAFE_NO_PAD.encode(bytes));
        }
        let longest = order.keys().zip(&self.0).max_by_key(|(_, value)| size(value));
        Err(Unsortable::Long(longest.map(|(field, _)| field.clone()).unwrap_or_default()))
    }

    /// Reads a place in this order.
    pub(super) fn decode(text: &str, order: &Document) -> Result<Self, InvalidCursor> {
        let bytes = BASE64_URL_SAFE_NO_PAD.decode(text).map_err(|_| InvalidCursor)?;
        let raw = RawDocumentBuf::from_bytes(bytes).map_err(|_| InvalidCursor)?;
        if raw.as_bytes().len() > MAX_BYTES || !is_nested_within(&raw, MAX_LEVELS) {
            return Err(InvalidCursor);
        }
        let mut read = Document::try_from(raw).map_err(|_| InvalidCursor)?;
        let (Some(Bson::Document(of)), Some(Bson::Array(values))) =
            (read.remove(ORDER), read.remove(VALUES))
        else {
            return Err(InvalidCursor);
        };
        // Also in the same sequence, which the equality of documents ignores.
        let is_same = of.iter().eq(order.iter()) && values.len() == order.len();
        let is_place = is_same && values.iter().all(|value| Kind::of(value).is_some());
        if is_place { Ok(Self(values)) } else { Err(InvalidCursor) }
    }

    /// The filters of the documents behind it. What the first one finds is before what the second one finds.
    ///
    /// Not one filter for all: MongoDB may merge what it finds for the parts of an `$or`, and then an absent
    /// field is less than null, which else are equal; or read all that is behind the cursor, to sort it.
    pub(super) fn filters(&self, order: &Document) -> Vec<Document> {
        let mut levels = Vec::new();
        let mut equal = Vec::new();
        for ((field, sign), value) in order.iter().zip(&self.0) {
            let beyond = beyond(field, value, *sign == Bson::Int32(1)).into_iter();
            let filters = beyond.map(|beyond| {
                let all = equal.iter().cloned().chain([beyond]);
                doc! { "$and": all.collect::<Vec<Document>>() }
            });
            levels.push(filters.collect::<Vec<_>>());
            equal.push(doc! { field: { "$eq": value } });
        }
        levels.into_iter().rev().flatten().collect()
    }
}

/// Whether a document that a client has sent is valid, and has at most so many levels: it is decoded by
/// recursion.
fn is_nested_within(document: &RawDocument, levels: usize) -> bool {
    let Some(levels) = levels.checked_sub(1) else { return false };
    document.iter().all(|member| match member {
        Ok((_, RawBsonRef::Document(inner))) => is_nested_within(inner, levels),
        Ok((_, RawBsonRef::Array(items))) => {
            // An array is a document whose names are numbers.
            RawDocument::from_bytes(items.as_bytes())
                .is_ok_and(|items| is_nested_within(items, levels))
        }
        Ok((_, RawBsonRef::JavaScriptCodeWithScope(_))) | Err(_) => false,
        Ok(_) => true,
    })
}

/// The value of a stored document that MongoDB sorts it by; an absent one is null.
fn value_at(document: &Document, field: &str) -> Result<Bson, Unsortable> {
    let (name, rest) = match field.split_once('.') {
        Some((name, rest)) => (name, Some(rest)),
        None => (field, None),
    };
    match (document.get(name), rest) {
        (Some(Bson::Array(_)), _) => Err(Unsortable::Array(field.to_owned())),
        (Some(Bson::Document(inner)), Some(rest)) => {
            let of_field = |error| match error {
                Unsortable::Array(_) => Unsortable::Array(field.to_owned()),
                other => other,
            };
            value_at(inner, rest).map_err(of_field)
        }
        (Some(value), None) => Ok(value.clone()),
        (Some(_) | None, _) => Ok(Bson::Null),
    }
}

/// The kinds of values in the order of MongoDB, with the numbers of their types. Values of one kind are
/// compared with each other. Arrays have the place of an element, an empty one that of undefined.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd)]
enum Kind {
    MinKey,
    Undefined,
    /// Null and absent.
    Null,
    Number,
    Text,
    Document,
    Binary,
    ObjectId,
    Boolean,
    Date,
    Timestamp,
    /// Regular expressions, pointers and code.
    Code,
    MaxKey,
}

impl Kind {
    const ALL: [Self; 13] = [
        Self::MinKey,
        Self::Undefined,
        Self::Null,
        Self::Number,
        Self::Text,
        Self::Document,
        Self::Binary,
        Self::ObjectId,
        Self::Boolean,
        Self::Date,
        Self::Timestamp,
        Self::Code,
        Self::MaxKey,
    ];

    /// The kind of a value; `None` for those that a filter cannot compare.
    fn of(value: &Bson) -> Option<Self> {
        Some(match value {
            Bson::MinKey => Self::MinKey,
            Bson::Null => Self::Null,
            Bson::Int32(_) | Bson::Int64(_) | Bson::Double(_) | Bson::Decimal128(_) => Self::Number,
            Bson::String(_) | Bson::Symbol(_) => Self::Text,
            Bson::Document(_) => Self::Document,
            Bson::Binary(_) => Self::Binary,
            Bson::ObjectId(_) => Self::ObjectId,
            Bson::Boolean(_) => Self::Boolean,
            Bson::DateTime(_) => Self::Date,
            Bson::Timestamp(_) => Self::Timestamp,
            Bson::MaxKey => Self::MaxKey,
            _ => return None,
        })
    }

    /// The types of BSON with this kind. Those that cannot be compared are found, and refused, rather than
    /// skipped. But not arrays (4): for them MongoDB reads an index from its beginning. So these are skipped:
    /// an array of arrays, and an array on the path to the field, in which nothing has it.
    fn types(self) -> &'static [i32] {
        match self {
            Self::MinKey => &[-1],
            Self::Undefined => &[6],
            // An absent value has no type.
            Self::Null => &[],
            Self::Number => &[1, 16, 18, 19],
            Self::Text => &[2, 14],
            Self::Document => &[3],
            Self::Binary => &[5],
            Self::ObjectId => &[7],
            Self::Boolean => &[8],
            Self::Date => &[9],
            Self::Timestamp => &[17],
            Self::Code => &[11, 12, 13, 15],
            Self::MaxKey => &[127],
        }
    }
}

/// The filters of the values behind this one, in their order.
fn beyond(field: &str, value: &Bson, ascends: bool) -> Vec<Document> {
    let Some(kind) = Kind::of(value) else { return Vec::new() };
    let mut filters = Vec::new();
    let is_nan = is_nan(value);
    match kind {
        Kind::MinKey | Kind::Null | Kind::MaxKey => {}
        Kind::Number if is_nan && ascends => {
            filters.push(doc! { field: { "$gte": f64::NEG_INFINITY } })
        }
        Kind::Number if is_nan => {}
        _ if ascends => filters.push(doc! { field: { "$gt": value } }),
        _ => filters.push(doc! { field: { "$lt": value } }),
    }
    if kind == Kind::Number && !is_nan && !ascends {
        // NaN is the least number of the order, and not less than any.
        filters.push(doc! { field: { "$eq": f64::NAN } });
    }
    let mut following: Vec<Kind> = Kind::ALL
        .into_iter()
        .filter(|other| (*other > kind) == ascends && *other != kind)
        .collect();
    if !ascends {
        following.reverse();
    }
    let mut types: Vec<i32> = Vec::new();
    for kind in following {
        types.extend(kind.types());
        let untyped = match kind {
            // An absent value has no type.
            Kind::Null => doc! { "$eq": Bson::Null },
            Kind::Undefined => doc! { "$eq": [] },
            _ => continue,
        };
        let before = std::mem::take(&mut types);
        if !before.is_empty() {
            filters.push(doc! { field: { "$type": before } });
        }
        filters.push(doc! { field: untyped });
    }
    if !types.is_empty() {
        filters.push(doc! { field: { "$type": types } });
    }
    filters
}

fn is_nan(value: &Bson) -> bool {
    match value {
        Bson::Double(number) => number.is_nan(),
        Bson::Decimal128(number) => number.to_string().ends_with("NaN"),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use bson::raw::{RawArrayBuf, cstr};

    use super::*;

    #[test]
    fn a_place_is_read_again_in_its_own_order_only() {
        let order = doc! { "state.x": -1, "_id": 1 };
        let document = doc! { "_id": "7", "state": { "x": 1.5 } };
        let place = Place::behind(&document, &order).unwrap();
        let text = place.encode(&order).unwrap();

        assert_eq!(Place::decode(&text, &order), Ok(place));
        for other in
            [doc! { "_id": 1, "state.x": -1 }, doc! { "state.x": 1, "_id": 1 }, doc! { "_id": 1 }]
        {
            assert_eq!(Place::decode(&text, &other), Err(InvalidCursor), "{other}");
        }
        for text in ["", "!", "AAAA", &text[1..]] {
            assert_eq!(Place::decode(text, &order), Err(InvalidCursor), "{text}");
        }
    }

    #[test]
    fn cursor_that_is_nested_too_deep_is_refused() {
        let order = doc! { "_id": 1 };
        let nested = |levels: usize| {
            let value = (0..levels).fold(RawDocumentBuf::new(), |inner, _| {
                let mut outer = RawDocumentBuf::new();
                outer.append(cstr!(""), inner);
                outer
            });
            let mut values = RawArrayBuf::new();
            values.push(value);
            let mut cursor = RawDocumentBuf::new();
            cursor.append(cstr!("o"), RawDocumentBuf::try_from(&order).unwrap());
            cursor.append(cstr!("v"), values);
            Place::decode(&BASE64_URL_SAFE_NO_PAD.encode(cursor.as_bytes()), &order)
        };

        assert!(nested(97).is_ok());
        for levels in [98, 1_000, 20_000] {
            assert_eq!(nested(levels), Err(InvalidCursor));
        }
    }

    #[test]
    fn arrays_and_what_is_too_long_have_no_place() {
        let order = doc! { "a.b": 1, "_id": 1 };
        let refused = |document: Document| {
            Place::behind(&document, &order).and_then(|place| place.encode(&order)).unwrap_err()
        };
        let field = || "a.b".to_owned();
        assert_eq!(refused(doc! { "a": { "b": [] } }), Unsortable::Array(field()));
        assert_eq!(refused(doc! { "a": [{ "b": 1 }] }), Unsortable::Array(field()));
        assert_eq!(
            refused(doc! { "a": { "b": "x".repeat(MAX_BYTES) } }),
            Unsortable::Long(field())
        );
        let code = Bson::JavaScriptCode(String::new());
        assert_eq!(refused(doc! { "a": { "b": code } }), Unsortable::Kind(field()));
    }
}
