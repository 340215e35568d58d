//! Query parameters and parts of the path, taken one by one.

use std::borrow::Cow;
use std::ops::RangeInclusive;
use std::time::Duration;

use axum::extract::{FromRequestParts, RawPathParams};
use axum::http::request::Parts;
use bson::{Bson, DateTime};
use percent_encoding::percent_decode_str;

use crate::http::json;
use crate::http::problem::{FieldError, Problem};
use crate::http::scan;
use crate::http::state::Shared;

/// The query's parameters: what was not taken yet, and what was wrong.
#[derive(Debug, Default)]
pub struct Query {
    left: Vec<(String, String)>,
    errors: Vec<FieldError>,
}

impl FromRequestParts<Shared> for Query {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &Shared) -> Result<Self, Problem> {
        Ok(Self::of(parts.uri.query().unwrap_or_default()))
    }
}

impl Query {
    fn of(text: &str) -> Self {
        let mut query = Self::default();
        for pair in text.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            match (decoded(name), decoded(value)) {
                (Some(name), _) if query.left.iter().any(|(known, _)| *known == name) => {
                    query.wrong(&name, "stands twice");
                }
                (Some(name), Some(value)) => query.left.push((name, value)),
                (Some(name), None) => query.wrong(&name, "is not UTF-8"),
                (None, _) => query.wrong("", "a parameter's name is not UTF-8"),
            }
        }
        query
    }

    fn wrong(&mut self, name: &str, detail: impl Into<String>) {
        self.errors.push(FieldError { field: name.to_owned(), detail: detail.into() });
    }

    /// Takes a text.
    pub fn text(&mut self, name: &str) -> Option<String> {
        let at = self.left.iter().position(|(known, _)| known == name)?;
        Some(self.left.remove(at).1)
    }

    /// Takes a value, as BSON: JSON, or, where it is none, the text itself.
    pub fn bson(&mut self, name: &str) -> Option<Bson> {
        let text = self.text(name)?;
        match serde_json::from_str(&text) {
            Ok(value) => {
                let within = |fault: FieldError| FieldError { field: name.to_owned(), ..fault };
                self.errors.extend(scan::faults(&text).into_iter().map(within));
                Some(json::bson(name, value, &mut self.errors))
            }
            Err(_) => Some(text.into()),
        }
    }

    /// Takes one of these words.
    pub fn one_of(&mut self, name: &str, words: &[&str]) -> Option<String> {
        let text = self.text(name)?;
        if !words.contains(&text.as_str()) {
            self.wrong(name, format!("is to be one of: {}", words.join(", ")));
        }
        Some(text)
    }

    /// Takes a truth; absent is false.
    pub fn truth(&mut self, name: &str) -> bool {
        self.one_of(name, &["true", "false"]).is_some_and(|text| text == "true")
    }

    /// Takes an integer within these bounds.
    pub fn integer(&mut self, name: &str, bounds: RangeInclusive<i64>) -> Option<i64> {
        let text = self.text(name)?;
        let number = text.parse().ok().filter(|number| bounds.contains(number));
        if number.is_none() {
            let (least, most) = (bounds.start(), bounds.end());
            self.wrong(name, format!("is to be an integer from {least} to {most}"));
        }
        number
    }

    /// Takes a duration with its units.
    pub fn duration(&mut self, name: &str) -> Option<Duration> {
        let text = self.text(name)?;
        let duration = humantime::parse_duration(&text).ok();
        if duration.is_none() {
            self.wrong(name, "must be a duration with units, as 1h or 90s");
        }
        duration
    }

    /// Takes a time, in milliseconds since 1970: written so, or as RFC 3339.
    pub fn time(&mut self, name: &str) -> Option<i64> {
        let text = self.text(name)?;
        let date = || DateTime::parse_rfc3339_str(&text).ok().map(DateTime::timestamp_millis);
        let time = text.parse().ok().or_else(date);
        if time.is_none() {
            self.wrong(name, "is no time; write RFC 3339, or milliseconds since 1970");
        }
        time
    }

    /// What is left is unknown.
    ///
    /// # Errors
    ///
    /// All that was wrong.
    pub fn finish(mut self) -> Result<(), Problem> {
        for (name, _) in std::mem::take(&mut self.left) {
            self.wrong(&name, "is no parameter of this call");
        }
        match self.errors.is_empty() {
            true => Ok(()),
            false => Err(Problem::invalid(self.errors)),
        }
    }
}

fn decoded(text: &str) -> Option<String> {
    let spaces = text.replace('+', " ");
    percent_decode_str(&spaces).decode_utf8().ok().map(Cow::into_owned)
}

/// The parts of the path that the caller fills in.
#[derive(Debug)]
pub struct Path(Vec<(String, String)>);

impl FromRequestParts<Shared> for Path {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, shared: &Shared) -> Result<Self, Problem> {
        let found = RawPathParams::from_request_parts(parts, shared).await;
        let found = found.map_err(|_| Problem::wrong("path", "is not UTF-8"))?;
        Ok(Self(found.iter().map(|(name, text)| (name.to_owned(), text.to_owned())).collect()))
    }
}

impl Path {
    /// One of them.
    pub fn part(&self, name: &str) -> &str {
        let found = self.0.iter().find(|(known, _)| known == name);
        found.map_or("", |(_, text)| text.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_decoded_and_each_stands_once() {
        let mut query = Query::of("key=a%2Fb+c&type=&limit=7&&wild%20=x");

        assert_eq!(query.text("key").as_deref(), Some("a/b c"));
        assert_eq!(query.text("type").as_deref(), Some(""));
        assert_eq!(query.integer("limit", 1..=9), Some(7));
        assert_eq!(query.finish().unwrap_err().status.as_u16(), 422);
    }

    #[test]
    fn whatever_is_wrong_is_told_at_once() {
        for (text, wrong) in [
            ("a=1&a=2", 1),
            ("a=%ff", 1),
            ("%ff=1", 1),
            ("limit=0", 1),
            ("limit=x&status=y&z=1", 3),
            ("", 0),
        ] {
            let mut query = Query::of(text);
            query.text("a");
            query.integer("limit", 1..=9);
            query.one_of("status", &["dead"]);

            assert_eq!(query.errors.len() + query.left.len(), wrong, "{text}");
        }
    }
}
