//! The JSON form of conditions, projections and orders: that of the Wow framework.

mod reading;
mod types;
mod value;
mod writing;

use bson::Bson;
use serde::de::{Deserializer, Error as _};
use serde::ser::Serializer;
use serde::{Deserialize, Serialize};

use super::condition::Condition;
use crate::error::join;
use crate::json::{Form, as_written, read};

pub use types::{ConditionJson, ConditionOptions, NewerMember, Operator, ProjectionJson, SortJson};
#[cfg(test)]
pub(super) use value::plain;

impl Serialize for Condition {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        ConditionJson::from(self).serialize(to)
    }
}

impl<'de> Deserialize<'de> for Condition {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let Bson::Document(members) = as_written(from)? else {
            return Err(D::Error::custom("a condition must be an object"));
        };
        let json = read::<ConditionJson>(members, Form::Json, Vec::new());
        json.and_then(|json| json.read("condition")).map_err(|flaws| D::Error::custom(join(&flaws)))
    }
}
