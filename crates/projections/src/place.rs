//! The place of an event, as the headers of its message say it.

use bson::{Bson, Document, doc};

/// The place of an event in its stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventPlace {
    /// The kind of aggregate.
    pub aggregate_name: String,
    /// The aggregate.
    pub aggregate_id: String,
    /// The version of the aggregate after the append. All events of an append share it.
    pub version: i64,
    /// The index of the event in its append, from 0.
    pub index: i64,
    /// The number of events of the append; `None` in messages of releases that did not send it.
    pub count: Option<i64>,
}

/// The headers of a message do not say the place of an event.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("message: header {header} = {}: {problem}; consume only messages of appended events", found(.value))]
pub struct PlaceError {
    /// The header.
    pub header: &'static str,
    /// Its value.
    pub value: Option<String>,
    /// What is wrong with it.
    pub problem: &'static str,
}

fn found(value: &Option<String>) -> &str {
    value.as_deref().unwrap_or("(absent)")
}

impl EventPlace {
    /// Reads the headers of a message, by their names; numbers as decimal texts.
    ///
    /// Without `aggregate-id`, the aggregate is the key of the message, header `message-key`.
    ///
    /// # Errors
    ///
    /// [`PlaceError`].
    pub fn from_headers(header: impl Fn(&str) -> Option<String>) -> Result<Self, PlaceError> {
        let missing = |header| PlaceError { header, value: None, problem: "is missing" };
        let number = |name: &'static str, least: i64| {
            let Some(value) = header(name) else { return Ok(None) };
            match value.parse::<i64>() {
                Ok(number) if number >= least => Ok(Some(number)),
                Ok(_) => {
                    Err(PlaceError { header: name, value: Some(value), problem: "is too low" })
                }
                Err(_) => {
                    let problem = "must be an integer";
                    Err(PlaceError { header: name, value: Some(value), problem })
                }
            }
        };
        let required = |name, least| number(name, least)?.ok_or_else(|| missing(name));
        let place = Self {
            aggregate_name: header("aggregate-name").ok_or_else(|| missing("aggregate-name"))?,
            aggregate_id: header("aggregate-id")
                .or_else(|| header("message-key"))
                .ok_or_else(|| missing("aggregate-id"))?,
            version: required("aggregate-version", 1)?,
            index: required("event-index", 0)?,
            count: number("event-count", 1)?,
        };
        match place.count {
            Some(count) if count <= place.index => {
                let value = Some(count.to_string());
                let problem = "must be above event-index";
                Err(PlaceError { header: "event-count", value, problem })
            }
            _ => Ok(place),
        }
    }

    /// The name of its stream's field in a document: no dot, no dollar sign.
    pub(crate) fn stream_field(&self) -> String {
        let mut field = String::new();
        for char in format!("{}/{}", self.aggregate_name, self.aggregate_id).chars() {
            match char {
                '%' => field.push_str("%25"),
                '.' => field.push_str("%2E"),
                '$' => field.push_str("%24"),
                '\0' => field.push_str("%00"),
                char => field.push(char),
            }
        }
        field
    }

    /// What a document remembers of it.
    pub(crate) fn revision(&self) -> Document {
        let mut revision = doc! { "version": self.version, "index": self.index };
        if let Some(count) = self.count {
            revision.insert("count", count);
        }
        revision
    }
}

/// How an event follows what a document has of its stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Succession {
    /// The document has it already.
    Applied,
    /// It is the next one.
    Next,
    /// One before it is missing.
    Gap,
}

impl EventPlace {
    /// Compares it with the revision that a document has of its stream.
    pub(crate) fn follows(&self, revision: Option<&Document>) -> Succession {
        let Some(revision) = revision else {
            let is_first = (self.version, self.index) == (1, 0);
            return if is_first { Succession::Next } else { Succession::Gap };
        };
        let number = |field: &str| match revision.get(field) {
            Some(Bson::Int64(number)) => Some(*number),
            Some(Bson::Int32(number)) => Some(i64::from(*number)),
            _ => None,
        };
        let (version, index) = (number("version").unwrap_or(0), number("index").unwrap_or(0));
        if (self.version, self.index) <= (version, index) {
            return Succession::Applied;
        }
        // Without a count, the order of the messages says that the version before was complete.
        let is_complete = number("count").is_none_or(|count| index + 1 >= count);
        let is_next = (self.version, self.index) == (version, index + 1)
            || ((self.version, self.index) == (version + 1, 0) && is_complete);
        if is_next { Succession::Next } else { Succession::Gap }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(version: i64, index: i64, count: Option<i64>) -> EventPlace {
        let (aggregate_name, aggregate_id) = ("cart".into(), "c.1".into());
        EventPlace { aggregate_name, aggregate_id, version, index, count }
    }

    #[test]
    fn event_follows_its_predecessor_only() {
        use Succession::{Applied, Gap, Next};
        let of_three = place(2, 1, Some(3)).revision();
        let complete = place(2, 2, Some(3)).revision();
        let unknown = place(2, 1, None).revision();
        for (version, index, revision, expected) in [
            (1, 0, None, Next),
            (1, 1, None, Gap),
            (2, 0, None, Gap),
            (1, 5, Some(&of_three), Applied),
            (2, 1, Some(&of_three), Applied),
            (2, 2, Some(&of_three), Next),
            (3, 0, Some(&of_three), Gap),
            (3, 0, Some(&complete), Next),
            (3, 1, Some(&complete), Gap),
            (4, 0, Some(&complete), Gap),
            (2, 2, Some(&unknown), Next),
            (3, 0, Some(&unknown), Next),
        ] {
            let succession = place(version, index, None).follows(revision);
            assert_eq!(succession, expected, "{version} {index} {revision:?}");
        }
    }

    #[test]
    fn headers_that_name_no_place_are_refused_with_the_header() {
        let good = [
            ("aggregate-name", "cart"),
            ("aggregate-id", "c-1"),
            ("aggregate-version", "3"),
            ("event-index", "1"),
            ("event-count", "2"),
        ];
        let read = |changed: &str, to: Option<&str>| {
            EventPlace::from_headers(|name| {
                let known = good.iter().find(|(known, _)| *known == name).map(|(_, value)| *value);
                let value = if name == changed { to } else { known };
                value.map(str::to_owned)
            })
        };

        assert_eq!(read("", None).unwrap().version, 3);
        assert_eq!(read("event-count", None).unwrap().count, None);
        assert_eq!(read("message-key", Some("k")).unwrap().aggregate_id, "c-1");
        for (header, value) in [
            ("aggregate-name", None),
            ("aggregate-id", None),
            ("aggregate-version", None),
            ("aggregate-version", Some("0")),
            ("aggregate-version", Some("x")),
            ("event-index", Some("-1")),
            ("event-count", Some("1")),
        ] {
            let error = read(header, value).unwrap_err();
            assert_eq!(error.header, header);
            assert!(error.to_string().contains(header), "{error}");
        }
    }

    #[test]
    fn stream_field_has_no_dot_and_no_dollar() {
        assert_eq!(place(1, 0, None).stream_field(), "cart/c%2E1");
    }
}
