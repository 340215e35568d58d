//! What commands print on standard output.

use std::io::Write;

use bson::{Bson, Document};
use clap::ValueEnum;
use serde_json::{Map, Value, json};

use crate::cli::Failure;
use crate::dates::rfc3339;
use crate::ids::RecordId;

/// How a result is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Format {
    /// For people.
    Table,
    /// For programs: a list is an array, a single thing an object.
    Json,
}

/// Prints text as it is.
pub(super) fn text(text: &str) -> Result<(), Failure> {
    let mut output = std::io::stdout().lock();
    match output.write_all(text.as_bytes()).and_then(|()| output.flush()) {
        // Whoever read us has seen enough (`| head`).
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        other => other.map_err(|error| Failure::Failed(error.into())),
    }
}

/// Prints JSON, indented.
pub(super) fn json(value: &Value) -> Result<(), Failure> {
    text(&format!("{value:#}\n"))
}

/// Prints rows below a heading, each column as wide as its widest cell.
pub(super) fn table(heading: &[&str], rows: &[Vec<String>]) -> Result<(), Failure> {
    let mut widths: Vec<usize> = heading.iter().map(|cell| cell.chars().count()).collect();
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let line = |cells: Vec<&str>| {
        let padded: Vec<String> =
            cells.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
        format!("{}\n", padded.join("  ").trim_end())
    };
    let mut page = line(heading.to_vec());
    for row in rows {
        page.push_str(&line(row.iter().map(String::as_str).collect()));
    }
    text(&page)
}

/// Prints counts by their names, an object of numbers.
pub(super) fn figures(figures: &Value, format: Format) -> Result<(), Failure> {
    match (format, figures) {
        (Format::Table, Value::Object(fields)) => {
            let rows = fields.iter().map(|(name, value)| match value {
                Value::Null => vec![name.clone(), "-".to_owned()],
                value => vec![name.clone(), value.to_string()],
            });
            table(&["what", "count"], &rows.collect::<Vec<_>>())
        }
        _ => json(figures),
    }
}

/// Prints documents: of a table these fields, in JSON all.
pub(super) fn documents(
    found: &[Document],
    fields: &[&str],
    format: Format,
) -> Result<(), Failure> {
    match format {
        Format::Json => json(&found.iter().map(record).collect()),
        Format::Table => {
            let row = |document: &Document| {
                fields.iter().map(|field| cell(document.get(*field))).collect()
            };
            let rows: Vec<Vec<String>> = found.iter().map(row).collect();
            let heading: Vec<&str> =
                fields.iter().map(|field| if *field == "_id" { "id" } else { *field }).collect();
            table(&heading, &rows)
        }
    }
}

/// A record as JSON: the field names of the contract, `_id` as `id`.
pub(super) fn record(document: &Document) -> Value {
    let fields = document.iter().map(|(name, value)| {
        let name = if name == "_id" { "id" } else { name };
        (name.to_owned(), value_of(value))
    });
    Value::Object(fields.collect::<Map<String, Value>>())
}

/// Dates are RFC 3339, UUIDs and ObjectIds text, timestamps `{t, i}`; the rest is relaxed
/// extended JSON.
fn value_of(value: &Bson) -> Value {
    match value {
        Bson::DateTime(date) => match rfc3339(*date) {
            Some(text) => json!(text),
            // Outside the years that RFC 3339 has.
            None => value.clone().into_canonical_extjson(),
        },
        Bson::Timestamp(time) => json!({ "t": time.time, "i": time.increment }),
        Bson::Document(document) => {
            let fields = document.iter().map(|(name, value)| (name.clone(), value_of(value)));
            Value::Object(fields.collect())
        }
        Bson::Array(items) => Value::Array(items.iter().map(value_of).collect()),
        Bson::Binary(_) | Bson::ObjectId(_) => match RecordId::from(value.clone()) {
            RecordId::Other(other) => other.into_relaxed_extjson(),
            id => json!(id.to_string()),
        },
        other => other.clone().into_relaxed_extjson(),
    }
}

/// A value in a table's cell.
pub(super) fn cell(value: Option<&Bson>) -> String {
    match value.map(value_of) {
        None | Some(Value::Null) => String::new(),
        Some(Value::String(text)) => text,
        Some(other) => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use bson::{DateTime, Timestamp, doc};

    use super::*;

    #[test]
    fn a_record_is_shown_with_the_contracts_names_and_forms() {
        let shown = record(&doc! {
            "_id": bson::Uuid::parse_str("00112233-4455-6677-8899-aabbccddeeff").unwrap(),
            "seq": Timestamp { time: 5, increment: 6 },
            "createdAt": DateTime::from_millis(0),
            "payload": { "n": 1_i64, "at": DateTime::from_millis(1) },
            "visibleAt": DateTime::from_millis(i64::MAX),
        });

        assert_eq!(
            shown,
            json!({
                "id": "00112233-4455-6677-8899-aabbccddeeff",
                "seq": { "t": 5, "i": 6 },
                "createdAt": "1970-01-01T00:00:00Z",
                "payload": { "n": 1, "at": "1970-01-01T00:00:00.001Z" },
                // Beyond RFC 3339.
                "visibleAt": { "$date": { "$numberLong": i64::MAX.to_string() } },
            })
        );
    }
}
