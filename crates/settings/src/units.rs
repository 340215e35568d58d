//! Durations and sizes as people write them: text with a unit.

/// `"30s"`, `"1m30s"`, `"500ms"`.
pub mod duration {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serializer};

    const WANTED: &str = r#"text with a unit, such as "30s" or "1m30s""#;

    /// The longest: it can be added to any time of a clock, and counted in milliseconds.
    const LONGEST: Duration = Duration::from_secs(100 * 31_557_600);

    /// Reads a text with a unit.
    ///
    /// # Errors
    ///
    /// Anything else, with an example of what is wanted.
    pub fn deserialize<'de, D: Deserializer<'de>>(input: D) -> Result<Duration, D::Error> {
        let value = toml::Value::deserialize(input)?;
        let wrong = |detail: String| serde::de::Error::custom(detail);
        let text = value.as_str().ok_or_else(|| wrong(format!("must be {WANTED}")))?;
        parse(text).map_err(|error| wrong(format!("must be {WANTED}: {error}")))
    }

    /// Reads a text.
    ///
    /// Adds its parts up by itself: `humantime` panics where their sum overflows by a nanosecond.
    ///
    /// # Errors
    ///
    /// What is wrong with it.
    pub fn parse(text: &str) -> Result<Duration, String> {
        let mut parts = vec![String::new()];
        for character in text.trim().chars() {
            let last = parts.len() - 1;
            let ended = parts[last].trim_end().ends_with(|last: char| last.is_alphabetic());
            match ended && character.is_ascii_digit() {
                true => parts.push(character.into()),
                false => parts[last].push(character),
            }
        }
        let mut sum = Duration::ZERO;
        for part in parts {
            let part = humantime::parse_duration(&part).map_err(|error| error.to_string())?;
            sum = sum.saturating_add(part);
        }
        match sum <= LONGEST {
            true => Ok(sum),
            false => Err("is above 100 years".to_owned()),
        }
    }

    /// Writes what [`deserialize`] reads back.
    ///
    /// # Errors
    ///
    /// Those of the serializer.
    pub fn serialize<S: Serializer>(value: &Duration, output: S) -> Result<S::Ok, S::Error> {
        output.serialize_str(&text(*value))
    }

    /// In the units that people write, such as `7d` or `1m30s`.
    pub fn text(value: Duration) -> String {
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

/// `"16MiB"`, `"500KB"`, `"100B"`.
pub mod size {
    use bytesize::ByteSize;
    use serde::{Deserialize, Deserializer, Serializer};

    const WANTED: &str = r#"text with a unit, such as "16MiB""#;

    /// Reads a text with a unit, into bytes.
    ///
    /// # Errors
    ///
    /// Anything else, with an example of what is wanted.
    pub fn deserialize<'de, D: Deserializer<'de>>(input: D) -> Result<u64, D::Error> {
        let value = toml::Value::deserialize(input)?;
        let wrong = |detail: String| serde::de::Error::custom(detail);
        let text = value.as_str().ok_or_else(|| wrong(format!("must be {WANTED}")))?;
        if !text.ends_with(|last: char| last.is_ascii_alphabetic()) {
            return Err(wrong(format!("must be {WANTED}")));
        }
        match text.parse::<ByteSize>() {
            // Where it stops at what does not fit.
            Ok(ByteSize(u64::MAX)) => Err(wrong("must be below 16EiB".to_owned())),
            Ok(size) => Ok(size.as_u64()),
            Err(error) => Err(wrong(format!("must be {WANTED}: {error}"))),
        }
    }

    /// Writes what [`deserialize`] reads back.
    ///
    /// # Errors
    ///
    /// Those of the serializer.
    pub fn serialize<S: Serializer>(value: &u64, output: S) -> Result<S::Ok, S::Error> {
        output.serialize_str(&in_units(*value))
    }

    /// The largest binary unit that leaves no fraction, so that it reads back exactly.
    fn in_units(bytes: u64) -> String {
        for (unit, name) in [(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")] {
            if bytes > 0 && bytes.is_multiple_of(unit) {
                return format!("{}{name}", bytes / unit);
            }
        }
        format!("{bytes}B")
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde::Deserialize;

    /// A section with both kinds of values.
    #[derive(Deserialize)]
    #[serde(default)]
    struct Relay {
        #[serde(with = "super::duration")]
        lease: Duration,
        #[serde(with = "super::size")]
        batch_bytes: u64,
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
            assert!(lease(text).unwrap_err().contains("is above 100 years"), "{text}");
        }
        assert!(lease("18446744073709551616s").unwrap_err().contains("too large"));
    }

    #[test]
    fn a_duration_is_written_as_people_write_it_and_reads_back() {
        for text in ["7d", "1m30s", "500ms", "0s", "2d1h", "1s1ns", "30s", "36525d"] {
            let value = super::duration::parse(text).unwrap();
            assert_eq!(super::duration::text(value), text);
        }
        assert_eq!(super::duration::text(Duration::from_secs(48 * 3600)), "2d");
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
