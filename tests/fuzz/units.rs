//! Durations and sizes: what is read is printed so that it reads back, and nothing overflows.

use std::time::Duration;

use postrider_settings::units::{HumanDuration, HumanSize};
use proptest::prelude::*;
use serde::{Deserialize, Serialize};

use crate::{arbitrary, corpus};

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Span {
    #[serde(with = "HumanDuration")]
    v: Duration,
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Size {
    #[serde(with = "HumanSize")]
    v: usize,
}

fn read<T: for<'a> Deserialize<'a>>(text: &str) -> Result<T, String> {
    let table = toml::Table::from_iter([("v".to_owned(), toml::Value::String(text.to_owned()))]);
    table.try_into().map_err(|error: toml::de::Error| error.to_string())
}

/// A value that is read, printed, and read again is the same; what is not read has an error.
fn judge<T>(text: &str) -> Result<Option<T>, TestCaseError>
where
    T: for<'a> Deserialize<'a> + Serialize + PartialEq + std::fmt::Debug,
{
    let value: T = match read(text) {
        Ok(value) => value,
        Err(error) => {
            prop_assert!(!error.trim().is_empty());
            return Ok(None);
        }
    };
    let printed = toml::Table::try_from(&value).unwrap()["v"].as_str().unwrap().to_owned();
    let again: Result<T, String> = read(&printed);
    prop_assert_eq!(again.as_ref(), Ok(&value), "{:?} → {:?}", text, printed);
    Ok(Some(value))
}

/// A text similar to a number with a unit.
fn looks_like_one() -> impl Strategy<Value = String> {
    let units = "(ns|us|ms|s|m|min|h|d|w|month|y|years|µs|B|KB|KiB|MB|MiB|GiB|TiB|PB|EiB|EB|k|é)?";
    let number = "([0-9]{1,4}|[0-9]{15,21}|18446744073709551615|0|[0-9]{0,3}\\.[0-9]{0,12})";
    proptest::collection::vec((number, " ?", units), 0..5).prop_map(|parts| {
        parts.into_iter().map(|(number, space, unit)| number + &space + &unit).collect()
    })
}

proptest! {
    #[test]
    fn any_text_is_a_duration_or_an_error(
        text in prop_oneof![3 => looks_like_one(), 1 => arbitrary::text()],
    ) {
        if let Some(span) = judge::<Span>(&text)? {
            // As they are used: added to now, doubled, counted in milliseconds.
            prop_assert!(std::time::Instant::now().checked_add(span.v * 4).is_some());
            prop_assert!(i64::try_from(span.v.as_millis()).is_ok());
        }
    }

    #[test]
    fn any_duration_reads_back(
        seconds in 0_u64..3_155_760_000, nanos in 0_u32..1_000_000_000,
    ) {
        let span = Span { v: Duration::new(seconds, nanos) };

        let printed = toml::Table::try_from(&span).unwrap()["v"].as_str().unwrap().to_owned();

        prop_assert_eq!(read(&printed), Ok(span), "{}", printed);
    }

    #[test]
    fn any_text_is_a_size_or_an_error(
        text in prop_oneof![3 => looks_like_one(), 1 => arbitrary::text()],
    ) {
        judge::<Size>(&text)?;
    }

    #[test]
    fn a_size_is_exact_or_refused(
        number in prop_oneof![any::<u64>(), 0_u64..5_000],
        (unit, factor) in proptest::sample::select(&[
            ("B", 1_u128), ("KB", 1_000), ("KiB", 1 << 10), ("MiB", 1 << 20), ("GB", 1_000_000_000),
            ("TiB", 1 << 40), ("EiB", 1 << 60),
        ][..]),
    ) {
        let bytes = u64::try_from(u128::from(number) * factor).ok();

        let size: Option<Size> = judge(&format!("{number}{unit}"))?;

        prop_assert_eq!(size.map(|size| size.v as u64), bytes.filter(|bytes| *bytes != u64::MAX));
    }
}

#[test]
fn the_corpus_is_read() {
    for text in corpus::lines("units") {
        judge::<Span>(&text).unwrap();
        judge::<Size>(&text).unwrap();
    }
}
