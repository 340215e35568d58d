//! The tables of `docs/proof-results.md`, compared with the results of the checks.

use std::path::PathBuf;
use std::sync::Mutex;

/// One row is written at a time.
static PAGE: Mutex<()> = Mutex::new(());

/// Compares a row of a table with the result of a check. The row begins with the name of the check.
/// With `POSTRIDER_BLESS=1` the row is rewritten instead.
///
/// # Panics
///
/// If there is no such row, or if it differs.
pub fn row(name: &str, cells: &[String]) {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs/proof-results.md");
    let _page = PAGE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let text = std::fs::read_to_string(&path).unwrap();
    let begin = format!("| {name} |");
    let wanted = format!("{begin} {} |", cells.join(" | "));
    let Some(found) = text.lines().find(|line| line.starts_with(&begin)) else {
        panic!("docs/proof-results.md has no row {begin:?}; add one: {wanted}");
    };
    if found == wanted {
        return;
    }
    let bless = std::env::var_os("POSTRIDER_BLESS").is_some_and(|bless| bless == "1");
    assert!(
        bless,
        "docs/proof-results.md says {found:?}, the check says {wanted:?}; \
         POSTRIDER_BLESS=1 writes it again"
    );
    let lines = text.lines().map(|line| if line == found { &wanted } else { line });
    let text: String = lines.flat_map(|line| [line, "\n"]).collect();
    std::fs::write(&path, text).unwrap();
}

/// A number with commas.
pub fn number(number: usize) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A number of steps, in millions where it is large.
pub fn steps(steps: usize) -> String {
    match steps {
        0..100_000 => number(steps),
        100_000..10_000_000 => {
            format!("{}.{}M", (steps + 50_000) / 1_000_000, (steps + 50_000) / 100_000 % 10)
        }
        _ => format!("{}M", (steps + 500_000) / 1_000_000),
    }
}
