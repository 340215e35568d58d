//! Prints results on standard output.

use std::io::Write;

use anyhow::Context as _;
use bson::{Bson, Document};
use clap::{Args, ValueEnum};
use serde::Serialize;
use serde_json::Value;

use crate::cli::global::Failure;
use crate::json_view;
use crate::telemetry::{printable, printable_json};

/// The widest cell of a list: a UUID and most errors fit.
pub(super) const MAX_CELL_CHARS: usize = 80;

/// How a result is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Format {
    // For operators.
    Table,
    // For programs: an array for a list, an object for a single result.
    Json,
}

/// The heading of options that select what a command reads or changes.
pub(super) const FILTERS: &str = "Filters";

/// The option for the output format.
#[derive(Clone, Copy, Debug, Args)]
pub(super) struct OutputArgs {
    /// Output format
    #[arg(short, long, value_enum, value_name = "FORMAT", default_value_t = Format::Table)]
    pub(super) output: Format,
}

/// Prints text as it is.
pub(super) fn text(text: &str) -> Result<(), Failure> {
    let mut output = std::io::stdout().lock();
    match output.write_all(text.as_bytes()).and_then(|()| output.flush()) {
        // The reader has closed the pipe (`| head`).
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        other => other.map_err(|error| Failure::Failed(error.into())),
    }
}

/// Prints JSON, indented, which is safe on a terminal too.
pub(super) fn json(value: &impl Serialize) -> Result<(), Failure> {
    let json = serde_json::to_string_pretty(value).context("cannot format the result")?;
    text(&format!("{}\n", printable_json(&json)))
}

/// Prints rows below a heading, each column as wide as its widest cell.
pub(super) fn table(heading: &[&str], rows: &[Vec<String>]) -> Result<(), Failure> {
    text(&lay_out(heading, rows))
}

fn lay_out(heading: &[&str], rows: &[Vec<String>]) -> String {
    let heading = heading.iter().map(|cell| (*cell).to_owned()).collect();
    let rows: Vec<Vec<String>> = std::iter::once(heading)
        .chain(rows.iter().map(|row| row.iter().map(|cell| printable(cell).into_owned()).collect()))
        .collect();
    let mut widths: Vec<usize> = Vec::new();
    for row in &rows {
        widths.resize(widths.len().max(row.len()), 0);
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let mut page = String::new();
    for row in &rows {
        let start = page.len();
        for (column, (cell, width)) in row.iter().zip(&widths).enumerate() {
            // The last cell is not padded: the column may hold a payload of megabytes.
            let is_last = column + 1 == row.len();
            page.push_str(&padded(cell, if is_last { 0 } else { width + 2 }));
        }
        page.truncate(start + page[start..].trim_end().len());
        page.push('\n');
    }
    page
}

/// A text padded to a width. (Widths of formats end at 65,535.)
pub(super) fn padded(text: &str, width: usize) -> String {
    let missing = width.saturating_sub(text.chars().count());
    text.chars().chain(std::iter::repeat_n(' ', missing)).collect()
}

/// A text of at most `widest` characters; a longer one ends in an ellipsis.
pub(super) fn shortened(text: String, widest: usize) -> String {
    match text.char_indices().nth(widest) {
        None => text,
        Some(_) => text.chars().take(widest.saturating_sub(1)).chain(['…']).collect(),
    }
}

/// Prints an object of counts.
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

/// Prints documents: these fields in a table, all in JSON.
pub(super) fn documents(
    found: &[Document],
    fields: &[&str],
    format: Format,
) -> Result<(), Failure> {
    match format {
        Format::Json => json(&found.iter().map(json_view::record).collect::<Vec<_>>()),
        Format::Table => {
            let row = |document: &Document| {
                let cell = |field: &&str| shortened(cell(document.get(*field)), MAX_CELL_CHARS);
                fields.iter().map(cell).collect()
            };
            let rows: Vec<Vec<String>> = found.iter().map(row).collect();
            let heading: Vec<&str> =
                fields.iter().map(|field| if *field == "_id" { "id" } else { *field }).collect();
            table(&heading, &rows)
        }
    }
}

/// A value as the cell of a table.
pub(super) fn cell(value: Option<&Bson>) -> String {
    match value.map(json_view::text) {
        None => String::new(),
        Some(null) if null == "null" => String::new(),
        // A string without its quotes.
        Some(json) => serde_json::from_str(&json).unwrap_or(json),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn rows(rows: &[&[&str]]) -> Vec<Vec<String>> {
        rows.iter().map(|row| row.iter().map(|cell| (*cell).to_owned()).collect()).collect()
    }

    #[test]
    fn columns_fit_their_widest_cell_and_lines_are_trimmed() {
        let page = lay_out(&["id", "what"], &rows(&[&["größer", "x"], &["a", ""], &["b"]]));

        assert_eq!(page, "id      what\ngrößer  x\na\nb\n");
    }

    #[test]
    fn table_accepts_cells_of_any_width() {
        let wide = "x".repeat(70_000);

        let page = lay_out(&["a", "b"], &rows(&[&[&wide, "1"], &["y", &wide]]));

        assert_eq!(page.lines().map(str::len).max(), Some(140_002));
    }

    #[test]
    fn control_characters_are_escaped() {
        let page = lay_out(&["a"], &rows(&[&["\u{1b}[2J\r\n\u{9b}1m\u{202e}é"]]));

        assert_eq!(page, "a\n\\u{1b}[2J\\r\\n\\u{9b}1m\\u{202e}é\n");
    }

    #[test]
    fn long_text_ends_in_an_ellipsis() {
        assert_eq!(shortened("ßßß".to_owned(), 3), "ßßß");
        assert_eq!(shortened("ßßßß".to_owned(), 3), "ßß…");
    }

    proptest! {
        #[test]
        fn rows_are_lines_without_control_characters(
            cells in proptest::collection::vec(
                proptest::collection::vec(
                    prop_oneof![
                        any::<String>(),
                        "[\u{0}-\u{20}\u{7f}-\u{9f}\u{2028}-\u{202e}é😀]{0,20}",
                        (0_usize..70_000).prop_map(|length| "ß".repeat(length)),
                    ],
                    0..4,
                ),
                0..4,
            ),
        ) {
            let page = lay_out(&["id", "key", "payload"], &cells);

            prop_assert_eq!(page.lines().count(), cells.len() + 1);
            prop_assert!(page.chars().all(|one| one == '\n' || !one.is_control()), "{:?}", page);
        }

        #[test]
        fn texts_are_shortened_to_the_width(text in any::<String>(), widest in 1_usize..100) {
            let short = shortened(text.clone(), widest);

            prop_assert_eq!(short.chars().count(), widest.min(text.chars().count()));
        }
    }
}
