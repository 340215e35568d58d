//! Time zones.

use jiff::tz::{Offset, TimeZone};

/// The largest difference from UTC, as in Java.
const MAX_OFFSET_SECONDS: i32 = 18 * 3_600;

/// A time zone: a name of the IANA database (`Europe/Berlin`), or an offset (`+08:00`, `UTC+8`, `Z`).
///
/// The rules of the zone are those that this program was built with.
#[derive(Clone, Debug, PartialEq)]
pub struct Zone {
    name: String,
    pub(super) zone: TimeZone,
}

/// A text that is not a time zone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("is not a time zone; use a name such as Europe/Berlin, or an offset such as +08:00")]
pub struct UnknownZone;

impl Zone {
    /// Finds a time zone by its name, or makes one of an offset, in the forms of Java's `ZoneId.of`.
    ///
    /// # Errors
    ///
    /// [`UnknownZone`].
    pub fn new(name: impl Into<String>) -> Result<Self, UnknownZone> {
        let name = name.into();
        let offset = ["UTC", "GMT", "UT", ""].iter().find_map(|prefix| {
            let rest = name.strip_prefix(prefix)?;
            rest.starts_with(['+', '-']).then_some(rest)
        });
        let zone = match (offset, name.as_str()) {
            (Some(offset), _) => TimeZone::fixed(parse_offset(offset).ok_or(UnknownZone)?),
            (None, "Z" | "UTC" | "GMT" | "UT") => TimeZone::UTC,
            // jiff knows a zone Etc/Unknown, with the clock of UTC.
            (None, name) => match TimeZone::get(name) {
                Ok(zone) if !zone.is_unknown() => zone,
                _ => return Err(UnknownZone),
            },
        };
        Ok(Self { name, zone })
    }

    /// The name that was given.
    pub fn name(&self) -> &str {
        &self.name
    }
}

impl Default for Zone {
    fn default() -> Self {
        Self { name: "UTC".to_owned(), zone: TimeZone::UTC }
    }
}

/// Reads `±h`, `±hh`, `±hh:mm`, `±hhmm`, `±hh:mm:ss` and `±hhmmss`.
fn parse_offset(text: &str) -> Option<Offset> {
    let (sign, digits) = match text.split_at_checked(1)? {
        ("+", digits) => (1, digits),
        ("-", digits) => (-1, digits),
        _ => return None,
    };
    let parts: Vec<&str> = match digits.len() {
        1 | 2 => vec![digits],
        4 | 6 if !digits.contains(':') => {
            (0..digits.len()).step_by(2).map(|at| digits.get(at..at + 2)).collect::<Option<_>>()?
        }
        5 | 8 => digits.split(':').collect(),
        _ => return None,
    };
    let is_number = |part: &&str| part.bytes().all(|byte| byte.is_ascii_digit());
    let is_short = digits.len() <= 2;
    if !parts.iter().all(is_number) || !(is_short || parts.iter().all(|part| part.len() == 2)) {
        return None;
    }
    let numbers: Vec<i32> = parts.iter().map(|part| part.parse().ok()).collect::<Option<_>>()?;
    if numbers.iter().skip(1).any(|number| *number > 59) {
        return None;
    }
    let seconds =
        numbers.iter().zip([3_600, 60, 1]).map(|(number, unit)| number * unit).sum::<i32>();
    (seconds <= MAX_OFFSET_SECONDS).then(|| Offset::from_seconds(sign * seconds).ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_have_the_forms_of_java() {
        for (name, seconds) in [
            ("+8", 28_800),
            ("+08", 28_800),
            ("+08:00", 28_800),
            ("-0330", -12_600),
            ("UTC+8", 28_800),
            ("GMT-01:00", -3_600),
            ("UT+05:45", 20_700),
            ("+01:02:03", 3_723),
            ("+010203", 3_723),
            ("+18:00", 64_800),
            ("Z", 0),
            ("UTC", 0),
        ] {
            let zone = Zone::new(name).unwrap().zone;
            let offset = zone.to_fixed_offset().unwrap();
            assert_eq!(offset.seconds(), seconds, "{name}");
        }
    }

    #[test]
    fn other_texts_are_refused() {
        for name in [
            "",
            "+",
            "+8:00",
            "+18:01",
            "+08:60",
            "+08:0",
            "+é",
            "+0800:0",
            "Mars/Base",
            "08:00",
            "+1:2:3",
            "+00600000",
            "-12345",
            "Etc/Unknown",
            "+008:0",
            "UTC+é",
        ] {
            assert_eq!(Zone::new(name), Err(UnknownZone), "{name:?}");
        }
        assert!(Zone::new("Europe/Berlin").is_ok());
    }
}
