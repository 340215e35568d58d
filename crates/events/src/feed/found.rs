//! Reads of what the sequencer must know of a stream document.

use bson::raw::{RawBsonRef, RawDocument};
use bson::{Bson, Document, doc};

use crate::commits::CommittedAppend;
use crate::integer::integral;
use crate::names::{AggregateId, AggregateName};
use crate::stream::count_of;
use crate::stream::fields::{AGGREGATE_ID, CREATE_TIME, ID, POSITION, VERSION};

/// The number of events, computed from the document itself: `size` is what a program has written.
const EVENTS: &str = "events";

/// What a stream document says about its place in the feed.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct FoundStream {
    pub(super) append: CommittedAppend,
    pub(super) position: Option<i64>,
}

/// The fields of a stream document that the sequencer reads.
pub(super) fn projection() -> Document {
    doc! {
        ID: 1,
        AGGREGATE_ID: 1,
        VERSION: 1,
        CREATE_TIME: 1,
        POSITION: 1,
        EVENTS: count_of("$body"),
    }
}

/// The same fields of the document at `path` in a change event.
pub(super) fn projection_at(path: &str) -> Document {
    let at = |field: &str| format!("{path}.{field}");
    doc! {
        ID: at(ID),
        AGGREGATE_ID: at(AGGREGATE_ID),
        VERSION: at(VERSION),
        CREATE_TIME: at(CREATE_TIME),
        POSITION: at(POSITION),
        EVENTS: count_of(&at("body")),
    }
}

/// Reads a document of the [`projection`]. `None`: it has no place in any stream, without an aggregate or
/// version, or none in the feed, with a position that is not an integer.
pub(super) fn read(name: &AggregateName, found: &RawDocument) -> Option<FoundStream> {
    let number = |field| {
        let value = found.get(field).ok().flatten()?;
        integral(&Bson::try_from(value).ok()?)
    };
    let id = AggregateId::new(found.get_str(AGGREGATE_ID).ok()?).ok()?;
    let append = CommittedAppend {
        aggregate: (name.clone(), id),
        id: Bson::try_from(found.get(ID).ok().flatten()?).ok()?,
        version: number(VERSION)?,
        create_time: number(CREATE_TIME).unwrap_or(0),
        events: number(EVENTS).unwrap_or(0),
        has_null_position: matches!(found.get(POSITION), Ok(Some(RawBsonRef::Null))),
    };
    Some(FoundStream { append, position: position(found).ok()? })
}

/// A version of a stream, read as the predecessor of another one.
pub(super) struct Predecessor<'a> {
    pub(super) id: &'a str,
    pub(super) version: i64,
    pub(super) has_position: bool,
}

/// Reads the fields of a predecessor. `None` as in [`read`].
pub(super) fn read_predecessor(found: &RawDocument) -> Option<Predecessor<'_>> {
    Some(Predecessor {
        id: found.get_str(AGGREGATE_ID).ok()?,
        version: integral(&Bson::try_from(found.get(VERSION).ok().flatten()?).ok()?)?,
        has_position: position(found).ok()?.is_some(),
    })
}

/// A position of another type.
struct InvalidPosition;

fn position(found: &RawDocument) -> Result<Option<i64>, InvalidPosition> {
    match found.get(POSITION) {
        Ok(None | Some(RawBsonRef::Null)) => Ok(None),
        Ok(Some(RawBsonRef::Int32(position))) => Ok(Some(position.into())),
        Ok(Some(RawBsonRef::Int64(position))) => Ok(Some(position)),
        Ok(Some(_)) | Err(_) => Err(InvalidPosition),
    }
}
