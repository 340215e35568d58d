//! The fields of a body, taken one by one; what is wrong is told all at once.

use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bson::{Bson, DateTime, Document};
use postrider_settings::units::duration;
use serde_json::{Map, Number, Value};

use crate::events::Flaw;
use crate::http::json;
use crate::http::problem::{FieldError, Problem};
use crate::names::check_id;

/// What was not taken yet, and what was wrong.
#[derive(Debug, Default)]
pub struct Fields {
    left: Map<String, Value>,
    /// Where they stand in the body: empty, or ends with a dot.
    path: String,
    errors: Vec<FieldError>,
}

impl Fields {
    /// The fields of a body, with what is known to be wrong already.
    pub(super) fn new(fields: Map<String, Value>, errors: Vec<FieldError>) -> Self {
        Self { left: fields, path: String::new(), errors }
    }

    /// Notes that a field is wrong.
    pub fn wrong(&mut self, name: &str, detail: impl Into<String>) {
        let field = format!("{}{name}", self.path);
        self.errors.push(FieldError { field, detail: detail.into() });
    }

    /// Takes a field, null too.
    pub fn any(&mut self, name: &str) -> Option<Value> {
        self.left.shift_remove(name)
    }

    /// Takes a field that may be absent; null is as good as that.
    fn optional(&mut self, name: &str) -> Option<Value> {
        self.any(name).filter(|value| !value.is_null())
    }

    /// Takes a text.
    pub fn text(&mut self, name: &str) -> Option<String> {
        match self.optional(name)? {
            Value::String(text) => Some(text),
            _ => {
                self.wrong(name, "is to be a text");
                None
            }
        }
    }

    /// Takes a text that must be there.
    pub fn required_text(&mut self, name: &str) -> Option<String> {
        if !self.left.contains_key(name) {
            self.wrong(name, "is missing");
            return None;
        }
        if self.left.get(name).is_some_and(Value::is_null) {
            self.wrong(name, "is to be a text");
        }
        self.text(name)
    }

    /// Takes what identifies something: a text that is not empty, nor too long.
    pub fn id(&mut self, name: &str) -> Option<String> {
        let id = self.text(name)?;
        if let Err(wrong) = check_id(&id) {
            self.wrong(name, wrong.to_string());
        }
        Some(id)
    }

    /// Takes an integer that must be there, and is this or more.
    pub fn required_integer(&mut self, name: &str, least: i64) -> Option<i64> {
        let number = match self.any(name) {
            None => {
                self.wrong(name, "is missing");
                return None;
            }
            Some(Value::Number(number)) => integer(&number).filter(|number| *number >= least),
            Some(_) => None,
        };
        if number.is_none() {
            self.wrong(name, format!("is to be an integer, {least} or above"));
        }
        number
    }

    /// Takes a truth.
    pub fn truth(&mut self, name: &str) -> Option<bool> {
        match self.optional(name)? {
            Value::Bool(truth) => Some(truth),
            _ => {
                self.wrong(name, "is to be true or false");
                None
            }
        }
    }

    /// Takes a time: epoch milliseconds, or RFC 3339.
    pub fn time(&mut self, name: &str) -> Option<DateTime> {
        let time = match self.optional(name)? {
            Value::Number(millis) => integer(&millis).map(DateTime::from_millis),
            Value::String(text) => DateTime::parse_rfc3339_str(text).ok(),
            _ => None,
        };
        if time.is_none() {
            self.wrong(
                name,
                "is no time; write RFC 3339, or milliseconds since 1970 as an integer",
            );
        }
        time
    }

    /// Takes a duration: a text with a unit.
    pub fn duration(&mut self, name: &str) -> Option<Duration> {
        match duration::parse(&self.text(name)?) {
            Ok(duration) => Some(duration),
            Err(wrong) => {
                self.wrong(name, format!("{wrong}; write a text with a unit, such as \"30s\""));
                None
            }
        }
    }

    /// Takes an object, as BSON.
    pub fn document(&mut self, name: &str) -> Option<Document> {
        match self.optional(name)? {
            Value::Object(fields) => {
                Some(json::document(&format!("{}{name}", self.path), fields, &mut self.errors))
            }
            _ => {
                self.wrong(name, "is to be an object");
                None
            }
        }
    }

    /// Takes an object that must be there, as BSON.
    pub fn required_document(&mut self, name: &str) -> Option<Document> {
        match self.left.get(name) {
            None => self.wrong(name, "is missing"),
            Some(Value::Null) => self.wrong(name, "is to be an object"),
            Some(_) => {}
        }
        self.document(name)
    }

    /// Takes a list of objects that must be there: the fields of each, to be given back by
    /// [`absorb`](Self::absorb).
    pub fn objects(&mut self, name: &str) -> Vec<Self> {
        let items = match self.any(name) {
            Some(Value::Array(items)) => items,
            None => {
                self.wrong(name, "is missing");
                return Vec::new();
            }
            Some(_) => {
                self.wrong(name, "is to be a list");
                return Vec::new();
            }
        };
        let mut found = Vec::new();
        for (at, item) in items.into_iter().enumerate() {
            let path = format!("{}{name}[{at}]", self.path);
            match item {
                Value::Object(left) => {
                    found.push(Self { left, path: format!("{path}."), errors: Vec::new() });
                }
                _ => self.wrong(&format!("{name}[{at}]"), "is to be an object"),
            }
        }
        found
    }

    /// Notes what is wrong with values, of fields with which nothing is wrong yet.
    pub fn judge(&mut self, flaws: Vec<Flaw>) {
        for Flaw { field, detail } in flaws {
            let field = format!("{}{field}", self.path);
            let is_of = |name: &str| {
                name.strip_prefix(&field)
                    .is_some_and(|rest| rest.is_empty() || rest.starts_with('['))
            };
            if !self.errors.iter().any(|error| is_of(&error.field)) {
                self.errors.push(FieldError { field, detail });
            }
        }
    }

    /// What was wrong with a part is wrong with the whole; what is left of it is unknown.
    pub fn absorb(&mut self, mut part: Self) {
        part.refuse_left();
        self.errors.append(&mut part.errors);
    }

    fn refuse_left(&mut self) {
        for name in std::mem::take(&mut self.left).keys() {
            self.wrong(name, "is no field of this body");
        }
    }

    /// Takes anything, as BSON; null is a value.
    pub fn bson(&mut self, name: &str) -> Option<Bson> {
        let value = self.any(name)?;
        Some(json::bson(&format!("{}{name}", self.path), value, &mut self.errors))
    }

    /// Takes anything that must be there, as BSON; null is a value.
    pub fn required_bson(&mut self, name: &str) -> Option<Bson> {
        let value = self.bson(name);
        if value.is_none() {
            self.wrong(name, "is missing");
        }
        value
    }

    /// Takes bytes in base64.
    pub fn bytes(&mut self, name: &str) -> Option<Vec<u8>> {
        let text = match self.any(name)? {
            Value::String(text) => text,
            _ => {
                self.wrong(name, "is to be a text in base64");
                return None;
            }
        };
        match STANDARD.decode(text) {
            Ok(bytes) => Some(bytes),
            Err(_) => {
                self.wrong(name, "is no base64 (RFC 4648, with padding)");
                None
            }
        }
    }

    /// What is left is unknown.
    ///
    /// # Errors
    ///
    /// All that was wrong.
    pub fn finish(mut self) -> Result<(), Problem> {
        self.refuse_left();
        match self.errors.is_empty() {
            true => Ok(()),
            false => Err(Problem::invalid(self.errors)),
        }
    }
}

/// The integer that a number is, however it is written: `1`, `1.0`, `1e3`.
pub(super) fn integer(number: &Number) -> Option<i64> {
    /// 2^63: the first that is too large.
    const END: f64 = 9_223_372_036_854_775_808.0;
    let float = || number.as_f64().filter(|float| float.fract() == 0.0 && float.abs() < END);
    number.as_i64().or_else(|| float().map(|float| float as i64))
}
