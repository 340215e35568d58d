//! Globs, compared with a matcher that tries every split.

use postrider_settings::Glob;
use proptest::prelude::*;

use crate::{arbitrary, corpus};

/// By the definition: a star is any run, a question mark one character.
fn matches(pattern: &[char], text: &[char]) -> bool {
    match (pattern, text) {
        ([], []) => true,
        (['*', rest @ ..], _) => (0..=text.len()).any(|run| matches(rest, &text[run..])),
        (['?', rest @ ..], [_, behind @ ..]) => matches(rest, behind),
        ([wanted, rest @ ..], [found, behind @ ..]) => wanted == found && matches(rest, behind),
        _ => false,
    }
}

fn judge(pattern: &str, text: &str) -> Result<(), TestCaseError> {
    let characters = |text: &str| text.chars().collect::<Vec<char>>();
    let expected = matches(&characters(pattern), &characters(text));
    prop_assert_eq!(Glob::new(pattern).matches(text), expected, "{:?} on {:?}", pattern, text);
    Ok(())
}

proptest! {
    #[test]
    fn a_glob_matches_by_its_definition(pattern in "[*?abé]{0,8}", text in "[*?abé]{0,10}") {
        judge(&pattern, &text)?;
    }

    /// Nearly no text that is made without regard to the pattern matches.
    #[test]
    fn a_glob_matches_text_made_from_it(
        parts in proptest::collection::vec(("[ab]{0,3}", "[abc]{0,3}", any::<bool>()), 0..5),
    ) {
        let (mut pattern, mut text) = (String::new(), String::new());
        for (literal, run, star) in parts {
            pattern += &literal;
            text += &literal;
            pattern += &if star { "*".to_owned() } else { "?".repeat(run.len()) };
            text += &run;
        }
        judge(&pattern, &text)?;
        prop_assert!(Glob::new(&pattern).matches(&text), "{} on {}", pattern, text);
    }

    #[test]
    fn any_text_is_a_glob_and_matches_itself(text in arbitrary::text()) {
        prop_assert!(Glob::new(&text).matches(&text));
        prop_assert!(Glob::new(&text.replace(|_: char| true, "?")).matches(&text));
        prop_assert!(Glob::new("*").matches(&text));
    }
}

#[test]
fn the_corpus_is_matched_in_time() {
    for pattern in corpus::lines("globs") {
        let _ = Glob::new(&pattern).matches(&"a".repeat(5_000));
        judge(&pattern, "aab").unwrap();
    }
}
