//! Dates as text.

use bson::DateTime;

/// The last millisecond of the year 9999.
const LAST: i64 = 253_402_300_799_999;

/// A date in RFC 3339; `None` outside of its years, 0 to 9999.
pub fn rfc3339(date: DateTime) -> Option<String> {
    // The driver gives each later one as the last nanosecond of 9999.
    let has_text = date.timestamp_millis() <= LAST;
    has_text.then(|| date.try_to_rfc3339_string().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_date_outside_the_years_of_rfc_3339_has_no_such_text() {
        let text = |millis| rfc3339(DateTime::from_millis(millis));

        assert_eq!(text(LAST).unwrap(), "9999-12-31T23:59:59.999Z");
        assert_eq!(text(-62_167_219_200_000).unwrap(), "0000-01-01T00:00:00Z");
        for outside in [LAST + 1, i64::MAX, -62_167_219_200_001, i64::MIN] {
            assert_eq!(text(outside), None, "{outside}");
        }
    }
}
