//! Durations and sizes as people write them: text with a unit.

/// `"30s"`, `"1m30s"`, `"500ms"`.
pub mod duration {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serializer};

    const WANTED: &str = r#"a text with a unit, such as "30s" or "1m30s""#;

    /// Reads a text with a unit.
    ///
    /// # Errors
    ///
    /// Anything else, with an example of what is wanted.
    pub fn deserialize<'de, D: Deserializer<'de>>(input: D) -> Result<Duration, D::Error> {
        let value = toml::Value::deserialize(input)?;
        let text = value.as_str().ok_or_else(|| serde::de::Error::custom(wrong(&value)))?;
        humantime::parse_duration(text)
            .map_err(|error| serde::de::Error::custom(format!("{error}; write {WANTED}")))
    }

    /// Writes what [`deserialize`] reads back.
    ///
    /// # Errors
    ///
    /// Those of the serializer.
    pub fn serialize<S: Serializer>(value: &Duration, output: S) -> Result<S::Ok, S::Error> {
        output.serialize_str(&humantime::format_duration(*value).to_string().replace(' ', ""))
    }

    fn wrong(value: &toml::Value) -> String {
        format!("is not {WANTED} but of type {}", value.type_str())
    }
}

/// `"16MiB"`, `"500KB"`, `"100B"`.
pub mod size {
    use bytesize::ByteSize;
    use serde::{Deserialize, Deserializer, Serializer};

    const WANTED: &str = r#"a text with a unit, such as "16MiB""#;

    /// Reads a text with a unit, into bytes.
    ///
    /// # Errors
    ///
    /// Anything else, with an example of what is wanted.
    pub fn deserialize<'de, D: Deserializer<'de>>(input: D) -> Result<u64, D::Error> {
        let value = toml::Value::deserialize(input)?;
        let text = value.as_str().ok_or_else(|| serde::de::Error::custom(wrong(&value)))?;
        if !text.ends_with(|last: char| last.is_ascii_alphabetic()) {
            return Err(serde::de::Error::custom(format!("has no unit; write {WANTED}")));
        }
        text.parse::<ByteSize>()
            .map(|size| size.as_u64())
            .map_err(|error| serde::de::Error::custom(format!("{error}; write {WANTED}")))
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

    fn wrong(value: &toml::Value) -> String {
        format!("is not {WANTED} but of type {}", value.type_str())
    }
}
