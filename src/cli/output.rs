//! What commands print on standard output.

use std::io::Write;

use bson::{Bson, Document};
use clap::ValueEnum;
use serde_json::Value;

use crate::cli::Failure;
use crate::shown;

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
        Format::Json => json(&found.iter().map(shown::record).collect()),
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

/// A value in a table's cell.
pub(super) fn cell(value: Option<&Bson>) -> String {
    match value.map(shown::value) {
        None | Some(Value::Null) => String::new(),
        Some(Value::String(text)) => text,
        Some(other) => other.to_string(),
    }
}
