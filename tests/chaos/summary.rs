//! The table of verdicts in `docs/proof-results.md`, made from `tests/chaos/verdicts`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::Path;

/// The lines of `docs/proof-results.md` between which the table is.
const BEGIN: &str = "<!-- From tests/chaos/verdicts; POSTRIDER_BLESS=1 writes it again: \
                     cargo test --features failpoints --test chaos verdicts -->\n\n";
const END: &str = "\n<!-- End of what is from tests/chaos/verdicts. -->\n";

/// Histories of one day, kind and duration.
#[derive(Default)]
struct Row<'a> {
    commits: BTreeSet<&'a str>,
    kept: usize,
    /// How many broke the promise, by what was wrong.
    broken: BTreeMap<String, usize>,
}

/// Counts verdicts as `make chaos` writes them: seed, kind, duration in seconds, verdict, commit,
/// date, and what follows.
///
/// # Panics
///
/// Where a line has another form.
fn table(verdicts: &str) -> String {
    let mut rows: BTreeMap<(&str, &str, u64), Row> = BTreeMap::new();
    for line in verdicts.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [_, kind, seconds, verdict, commit, date, ..] = words[..] else {
            panic!("{line:?} is not: SEED KIND SECONDS VERDICT COMMIT DATE …");
        };
        let seconds = seconds.parse().unwrap_or_else(|_| panic!("{line:?}: {seconds:?} seconds"));
        let row = rows.entry((date, kind, seconds)).or_default();
        row.commits.insert(commit);
        match verdict {
            "kept" => row.kept += 1,
            other => *row.broken.entry(wrong(other)).or_default() += 1,
        }
    }
    let mut table =
        String::from("| date | histories | commits | kept | broken |\n|---|---|---|---|---|\n");
    for ((date, kind, seconds), Row { commits, kept, broken }) in rows {
        let all = kept + broken.values().sum::<usize>();
        let (commits, count) = (commits.len(), all - kept);
        let why: Vec<String> = broken.iter().map(|(wrong, n)| format!("{n} × {wrong}")).collect();
        let why = if why.is_empty() { String::new() } else { format!(": {}", why.join(", ")) };
        let _ = writeln!(
            table,
            "| {date} | {all} {kind} of {seconds} s | {commits} | {kept} | {count}{why} |"
        );
    }
    table
}

/// What was wrong with a history, without the counts: of `broken:lost=2,stuck=1` it is `lost and
/// stuck`.
fn wrong(verdict: &str) -> String {
    let wrong = verdict.trim_start_matches("broken:").split(',');
    let names: Vec<&str> = wrong.map(|one| one.split('=').next().unwrap_or(one)).collect();
    names.join(" and ")
}

#[test]
fn verdicts_are_counted_by_day_kind_and_duration() {
    let verdicts = "# A comment.\n\
        1 mixed 8 kept aaa 2026-11-23 9s 9s\n\
        2 mixed 8 broken:lost=2,stuck=1 bbb 2026-11-22 9s 9s\n\
        3 mixed 8 broken:lost=7,stuck=7 bbb 2026-11-22 9s 9s\n\
        4 mixed 8 kept aaa 2026-11-22\n\
        5 mixed 15 unfinished aaa 2026-11-22 9s 9s\n\
        6 single 8 broken:order=1 aaa 2026-11-22 9s 9s\n";

    let expected = "| date | histories | commits | kept | broken |\n\
        |---|---|---|---|---|\n\
        | 2026-11-22 | 3 mixed of 8 s | 2 | 1 | 2: 2 × lost and stuck |\n\
        | 2026-11-22 | 1 mixed of 15 s | 1 | 0 | 1: 1 × unfinished |\n\
        | 2026-11-22 | 1 single of 8 s | 1 | 0 | 1: 1 × order |\n\
        | 2026-11-23 | 1 mixed of 8 s | 1 | 1 | 0 |\n";
    assert_eq!(table(verdicts), expected);
}

#[test]
fn documentation_has_the_table_of_verdicts() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let table = table(&std::fs::read_to_string(root.join("tests/chaos/verdicts")).unwrap());
    let page = root.join("docs/proof-results.md");
    let text = std::fs::read_to_string(&page).unwrap();
    let (before, rest) = text.split_once(BEGIN).expect("the line before the table");
    let (found, after) = rest.split_once(END).expect("the line behind the table");
    if found == table {
        return;
    }
    let bless = std::env::var_os("POSTRIDER_BLESS").is_some_and(|bless| bless == "1");
    assert!(
        bless,
        "docs/proof-results.md has another table than tests/chaos/verdicts gives; POSTRIDER_BLESS=1 \
         writes it again:\n{table}"
    );
    std::fs::write(&page, [before, BEGIN, &table, END, after].concat()).unwrap();
}
