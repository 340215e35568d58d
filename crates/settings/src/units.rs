//! Durations and sizes as text with a unit.

use std::borrow::Cow;
use std::time::Duration;

use bytesize::ByteSize;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serializer};

/// The longest duration: it fits any clock's range, and 64 bits of milliseconds.
const MAX_DURATION: Duration = Duration::from_secs(100 * 31_557_600);

/// A duration as text with a unit, for `#[serde(with = "HumanDuration")]`: `"30s"`, `"1m30s"`, `"500ms"`.
#[derive(Debug)]
pub struct HumanDuration;

impl HumanDuration {
    /// What a configuration must hold.
    const EXPECTED: &str = r#"text with a unit, at most 100 years, for example "30s" or "1m30s""#;

    /// Reads a text with a unit.
    ///
    /// # Errors
    ///
    /// Anything else, with an example of what is right.
    pub fn deserialize<'de, D: Deserializer<'de>>(input: D) -> Result<Duration, D::Error> {
        let value = toml::Value::deserialize(input)?;
        let parsed = value.as_str().and_then(|text| Self::parse(text).ok());
        parsed.ok_or_else(|| D::Error::custom(format!("must be {}", Self::EXPECTED)))
    }

    /// Reads a text: the sum of its parts, at most 100 years.
    ///
    /// The parts are added here, since `humantime` panics where their sum overflows by a nanosecond.
    ///
    /// # Errors
    ///
    /// What is wrong with it.
    pub fn parse(text: &str) -> Result<Duration, String> {
        let mut parts = vec![String::new()];
        for character in text.trim().chars() {
            let last = parts.len() - 1;
            let ended = parts[last].trim_end().ends_with(|last: char| last.is_alphabetic());
            if ended && character.is_ascii_digit() {
                parts.push(character.into());
            } else {
                parts[last].push(character);
            }
        }
        let mut sum = Duration::ZERO;
        for part in parts {
            let part = humantime::parse_duration(&part).map_err(|error| error.to_string())?;
            sum = sum.saturating_add(part);
        }
        if sum > MAX_DURATION {
            return Err("is above 100 years".to_owned());
        }
        Ok(sum)
    }

    /// Writes what [`deserialize`](Self::deserialize) reads back.
    ///
    /// # Errors
    ///
    /// The serializer's.
    pub fn serialize<S: Serializer>(value: &Duration, output: S) -> Result<S::Ok, S::Error> {
        output.serialize_str(&Self::format(*value))
    }

    /// The duration in common units, such as `7d` or `1m30s`.
    pub fn format(value: Duration) -> String {
        const UNITS: [(u128, &str); 7] = [
            (86_400_000_000_000, "d"),
            (3_600_000_000_000, "h"),
            (60_000_000_000, "m"),
            (1_000_000_000, "s"),
            (1_000_000, "ms"),
            (1_000, "us"),
            (1, "ns"),
        ];
        let mut rest = value.as_nanos();
        let mut text = String::new();
        for (unit, name) in UNITS {
            if rest >= unit {
                text.push_str(&format!("{}{name}", rest / unit));
                rest %= unit;
            }
        }
        if text.is_empty() { "0s".to_owned() } else { text }
    }
}

impl JsonSchema for HumanDuration {
    fn schema_name() -> Cow<'static, str> {
        "Duration".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "string",
            "pattern": r"^\s*(0|([0-9]+(\.[0-9]+)?\s*[A-Za-zµ]+\s*)+)\s*$",
            "x-unit": "duration",
        })
    }
}

/// A number of bytes as text with a unit, for `#[serde(with = "HumanSize")]`: `"16MiB"`, `"500KB"`.
#[derive(Debug)]
pub struct HumanSize;

impl HumanSize {
    /// What a configuration must hold.
    const EXPECTED: &str = r#"text with a unit, for example "16MiB""#;

    /// Reads a text with a unit, into bytes.
    ///
    /// # Errors
    ///
    /// Anything else, with an example of what is right.
    pub fn deserialize<'de, D: Deserializer<'de>>(input: D) -> Result<usize, D::Error> {
        let value = toml::Value::deserialize(input)?;
        let text = value.as_str().unwrap_or_default();
        Self::parse(text).map_err(D::Error::custom)
    }

    /// Reads a text with a unit, into bytes.
    ///
    /// # Errors
    ///
    /// Anything else, with an example of what is right.
    pub fn parse(text: &str) -> Result<usize, String> {
        if !text.ends_with(|last: char| last.is_ascii_alphabetic()) {
            return Err(format!("must be {}", Self::EXPECTED));
        }
        match text.parse::<ByteSize>() {
            // The parser saturates.
            Ok(ByteSize(u64::MAX)) => Err("must be below 16EiB".to_owned()),
            Ok(size) => usize::try_from(size.as_u64())
                .map_err(|_| "must fit into the address space of this machine".to_owned()),
            Err(_) => Err(format!("must be {}", Self::EXPECTED)),
        }
    }

    /// Writes what [`deserialize`](Self::deserialize) reads back.
    ///
    /// # Errors
    ///
    /// The serializer's.
    pub fn serialize<S: Serializer>(value: &usize, output: S) -> Result<S::Ok, S::Error> {
        output.serialize_str(&Self::format(*value))
    }

    /// The size in the largest binary unit that leaves no fraction, so that it reads back exactly.
    pub fn format(bytes: usize) -> String {
        for (unit, name) in [(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")] {
            if bytes > 0 && bytes.is_multiple_of(unit) {
                return format!("{}{name}", bytes / unit);
            }
        }
        format!("{bytes}B")
    }
}

impl JsonSchema for HumanSize {
    fn schema_name() -> Cow<'static, str> {
        "Size".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "string",
            "pattern": r"^([0-9]+\.?[0-9]*|\.[0-9]+)\s*[A-Za-z]+$",
            "x-unit": "size",
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use regex_automata::meta::Regex;
    use schemars::{JsonSchema, Schema, SchemaGenerator};
    use serde::Deserialize;

    /// A section with both kinds of values.
    #[derive(Deserialize)]
    #[serde(default)]
    struct Relay {
        #[serde(with = "super::HumanDuration")]
        lease: Duration,
        #[serde(with = "super::HumanSize")]
        batch_bytes: usize,
    }

    impl Default for Relay {
        fn default() -> Self {
            Self { lease: Duration::ZERO, batch_bytes: 0 }
        }
    }

    fn read(setting: &str) -> Result<Relay, String> {
        toml::from_str(setting).map_err(|error| error.to_string())
    }

    #[test]
    fn a_duration_is_the_sum_of_its_parts_up_to_100_years() {
        let lease = |text: &str| read(&format!("lease = \"{text}\"")).map(|relay| relay.lease);

        for (text, millis) in [("1m30s", 90_000), ("1 m 500 ms", 60_500), ("500ms500ms", 1_000)] {
            assert_eq!(lease(text), Ok(Duration::from_millis(millis)), "{text}");
        }
        assert!(lease("100years").is_ok());
        // The second is one nanosecond too much for a Duration, and for humantime.
        for text in ["100years1ns", "18446744073709551615s 500ms 500ms"] {
            assert!(lease(text).unwrap_err().contains("at most 100 years"), "{text}");
        }
        assert!(lease("18446744073709551616s").unwrap_err().contains("must be text"));
    }

    #[test]
    fn a_duration_is_written_with_units_and_reads_back() {
        for text in ["7d", "1m30s", "500ms", "0s", "2d1h", "1s1ns", "30s", "36525d"] {
            let value = super::HumanDuration::parse(text).unwrap();
            assert_eq!(super::HumanDuration::format(value), text);
        }
        assert_eq!(super::HumanDuration::format(Duration::from_secs(48 * 3600)), "2d");
    }

    #[test]
    fn schema_takes_every_text_that_is_read() {
        let pattern = |schema: Schema| {
            Regex::new(schema.get("pattern").and_then(|it| it.as_str()).unwrap()).unwrap()
        };
        let generator = &mut SchemaGenerator::default();
        let duration = pattern(super::HumanDuration::json_schema(generator));
        for text in ["1.5s", "0", "1µs", " 1 m 500 ms ", "1m30s", "1.5h 30m", "100years"] {
            assert!(super::HumanDuration::parse(text).is_ok(), "{text}");
            assert!(duration.is_match(text), "{text}");
        }
        for text in ["", "5", "s", "-1s", "1.s", ".5s", "1,5s", "00", "1s,"] {
            assert!(!duration.is_match(text), "{text}");
        }
        let size = pattern(super::HumanSize::json_schema(generator));
        for text in ["1.5MiB", "16 MiB", ".5MiB", "1.KB", "16k", "1B"] {
            assert!(super::HumanSize::parse(text).is_ok(), "{text}");
            assert!(size.is_match(text), "{text}");
        }
        for text in ["", "16", " 16MiB", "16MiB ", "MiB", "+5KB", "5.5.5KB", ".KB"] {
            assert!(super::HumanSize::parse(text).is_err(), "{text}");
            assert!(!size.is_match(text), "{text}");
        }
    }

    #[test]
    fn a_size_that_64_bits_do_not_hold_is_an_error() {
        let bytes =
            |text: &str| read(&format!("batch_bytes = \"{text}\"")).map(|relay| relay.batch_bytes);

        assert_eq!(bytes("15EiB"), Ok(15 << 60));
        for text in ["16EiB", "18446744073709551616B", "99999999999999999999999EB"] {
            assert!(bytes(text).unwrap_err().contains("must be below 16EiB"), "{text}");
        }
    }
}
