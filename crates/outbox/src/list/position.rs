//! Positions in lists.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bson::raw::{RawDocument, RawDocumentBuf};
use bson::{Bson, doc};

use crate::fields::{ATTEMPT, ID, SEQ};
use crate::list::filter::Sort;
use crate::undecoded::{RawId, RawWriter};

/// Prefix of a position that is not the id of a record.
pub(super) const PLACE_PREFIX: &str = "at:";

/// A position in a list: after the record with this value and id.
#[derive(Debug)]
pub(super) struct ListPosition {
    pub(super) value: RawId,
    pub(super) id: RawId,
}

impl ListPosition {
    pub(super) fn of(sort: Sort, record: &RawDocument) -> Self {
        let id = RawId::of(record);
        let value = match sort {
            Sort::Id => id.clone(),
            Sort::DeadAt | Sort::VisibleAt => RawId::field(record, sort.word()),
            Sort::Seq => match record.get_timestamp(SEQ) {
                Ok(seq) if seq != crate::position::NO_SEQ => RawId::from(&Bson::Timestamp(seq)),
                _ => RawId::from(&Bson::MaxKey),
            },
            Sort::Attempt => {
                let number = RawId::field(record, ATTEMPT);
                match number.number() {
                    Some(number) => RawId::from(&Bson::Double(-number)),
                    None => RawId::from(&Bson::Double(0.0)),
                }
            }
        };
        Self { value, id }
    }

    pub(super) fn read(sort: Sort, text: &str) -> Option<Self> {
        let bytes = URL_SAFE_NO_PAD.decode(text).ok()?;
        let place = RawDocumentBuf::from_bytes(bytes).ok()?;
        let is_of_this = place.get_str("sort").is_ok_and(|word| word == sort.word());
        let place = Self { value: RawId::field(&place, "value"), id: RawId::of(&place) };
        (is_of_this && place.value.is_whole() && place.id.is_whole()).then_some(place)
    }

    pub(super) fn text(&self, sort: Sort) -> String {
        if sort == Sort::Id && self.id.can_be_named() {
            return self.id.text();
        }
        let place = RawWriter::default().fields(&doc! { "sort": sort.word() });
        let place = place.element(&self.value, "value").element(&self.id, ID).finish();
        format!("{PLACE_PREFIX}{}", URL_SAFE_NO_PAD.encode(place.as_bytes()))
    }
}
