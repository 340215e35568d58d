//! Formats dates.

use bson::DateTime;

/// The last millisecond of the year 9999.
const MAX_MILLIS: i64 = 253_402_300_799_999;

/// Formats a date in RFC 3339; `None` outside the years 0 to 9999.
pub fn rfc3339(date: DateTime) -> Option<String> {
    // The driver formats later dates as the last nanosecond of 9999.
    let has_text = date.timestamp_millis() <= MAX_MILLIS;
    has_text.then(|| date.try_to_rfc3339_string().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rfc3339_is_none_outside_its_years() {
        let text = |millis| rfc3339(DateTime::from_millis(millis));

        assert_eq!(text(MAX_MILLIS).unwrap(), "9999-12-31T23:59:59.999Z");
        assert_eq!(text(-62_167_219_200_000).unwrap(), "0000-01-01T00:00:00Z");
        for outside in [MAX_MILLIS + 1, i64::MAX, -62_167_219_200_001, i64::MIN] {
            assert_eq!(text(outside), None, "{outside}");
        }
    }
}
