//! Periods by a fixed clock, in several time zones.

use bson::{Bson, Document};
use jiff::Timestamp;
use serde_json::{Value, json};

use super::{filter_at, valid};
use crate::query::Target;

const FIXTURES: &str = include_str!("../fixtures/wow-dates.json");

/// The period of a condition on the field `f`: from, if it has one, and to.
fn period(condition: &Value, now: &str) -> [Option<Bson>; 2] {
    let mut filter = filter_at(&valid(&condition.to_string()), Target::Events, now);
    let Some(Bson::Document(mut tests)) = filter.remove("f") else { panic!("{filter}") };
    let (from, last, before) = (tests.remove("$gte"), tests.remove("$lte"), tests.remove("$lt"));
    assert_eq!((filter, tests), (Document::new(), Document::new()), "nothing else");
    assert_eq!(from.is_some(), last.is_some(), "{condition}");
    [from, Some(last.or(before).unwrap())]
}

fn bound(value: &Value) -> Option<Bson> {
    match value {
        Value::Null => None,
        Value::String(text) => Some(text.into()),
        millis => Some(millis.as_i64().unwrap().into()),
    }
}

#[test]
fn periods_follow_the_rules_of_the_zone_and_else_wow() {
    let (mut rows, mut differ) = (0, 0);
    for group in serde_json::from_str::<Vec<Value>>(FIXTURES).unwrap() {
        let mut options = json!({ "zoneId": group["zoneId"] });
        if !group["datePattern"].is_null() {
            options["datePattern"] = group["datePattern"].clone();
        }
        for row in group["rows"].as_array().unwrap() {
            let mut condition = json!({ "field": "f", "operator": row[0], "options": options });
            if !row[1].is_null() {
                condition["value"] = row[1].clone();
            }
            let found = period(&condition, group["now"].as_str().unwrap());

            let expected = [bound(&row[2]), bound(&row[3])];
            assert_eq!(found, expected, "{}: {condition}", group["note"]);
            rows += 1;
            if row.as_array().unwrap().len() > 4 {
                let wow = [bound(&row[4]), bound(&row[5])];
                assert_ne!(found, wow, "{}: {condition}", group["note"]);
                differ += 1;
            }
        }
    }
    // What differs is an hour, and always around a change of the clock.
    assert_eq!((rows, differ), (1_352, 71));
}

/// What the fixtures do not have.
#[test]
fn odd_days_of_zones_have_their_beginning_and_end() {
    for (now, zone, operator, value, from, to) in [
        // The clock goes from 00:00 to 01:00: the day begins at 01:00.
        (
            "2024-03-10T12:00Z",
            "America/Havana",
            "TODAY",
            Value::Null,
            "2024-03-10T05:00Z",
            "2024-03-11T04:00Z",
        ),
        // It goes from 01:00 back to 00:00: the day begins at the first 00:00.
        (
            "2024-11-03T12:00Z",
            "America/Havana",
            "TODAY",
            Value::Null,
            "2024-11-03T04:00Z",
            "2024-11-04T05:00Z",
        ),
        // This day did not exist there, so nothing is found.
        (
            "2011-12-29T22:00Z",
            "Pacific/Apia",
            "TOMORROW",
            Value::Null,
            "2011-12-30T10:00Z",
            "2011-12-30T10:00Z",
        ),
        (
            "2011-12-29T22:00Z",
            "Pacific/Apia",
            "THIS_WEEK",
            Value::Null,
            "2011-12-26T10:00Z",
            "2012-01-01T10:00Z",
        ),
        // The 31st has no counterpart in the month before.
        (
            "2023-03-31T12:00Z",
            "UTC",
            "LAST_MONTH",
            Value::Null,
            "2023-02-01T00:00Z",
            "2023-03-01T00:00Z",
        ),
        (
            "2024-01-01T00:00Z",
            "UTC",
            "LAST_MONTH",
            Value::Null,
            "2023-12-01T00:00Z",
            "2024-01-01T00:00Z",
        ),
        (
            "2024-12-31T12:00Z",
            "UTC",
            "NEXT_WEEK",
            Value::Null,
            "2025-01-06T00:00Z",
            "2025-01-13T00:00Z",
        ),
        // A Sunday is the end of its week, a Monday the beginning.
        (
            "2024-06-09T12:00Z",
            "UTC",
            "THIS_WEEK",
            Value::Null,
            "2024-06-03T00:00Z",
            "2024-06-10T00:00Z",
        ),
        (
            "2024-06-10T12:00Z",
            "UTC",
            "THIS_WEEK",
            Value::Null,
            "2024-06-10T00:00Z",
            "2024-06-17T00:00Z",
        ),
        // Half an hour there is half an hour.
        (
            "2024-10-06T00:00Z",
            "Australia/Lord_Howe",
            "TODAY",
            Value::Null,
            "2024-10-05T13:30Z",
            "2024-10-06T13:00Z",
        ),
        (
            "2024-06-06T12:00Z",
            "UTC",
            "RECENT_DAYS",
            json!(366_000),
            "1022-05-12T00:00Z",
            "2024-06-07T00:00Z",
        ),
        // 02:30 does not pass: it counts by the rules before the change.
        (
            "2024-03-31T12:00Z",
            "Europe/Berlin",
            "BEFORE_TODAY",
            json!("02:30"),
            "",
            "2024-03-31T01:30Z",
        ),
        // 02:30 passes twice: the first one.
        (
            "2024-10-27T12:00Z",
            "Europe/Berlin",
            "BEFORE_TODAY",
            json!("02:30"),
            "",
            "2024-10-27T00:30Z",
        ),
        ("2024-06-06T12:00Z", "+18:00", "BEFORE_TODAY", json!("00:00"), "", "2024-06-06T06:00Z"),
        (
            "2024-06-06T12:00Z",
            "UTC",
            "BEFORE_TODAY",
            json!("23:59:59.999999999"),
            "",
            "2024-06-06T23:59:59.999Z",
        ),
        ("2024-06-06T12:00Z", "UTC", "BEFORE_TODAY", json!(0), "", "2024-06-06T00:00Z"),
        ("2024-06-06T12:00Z", "UTC", "BEFORE_TODAY", json!(86_399), "", "2024-06-06T23:59:59Z"),
        ("2024-06-06T12:00Z", "UTC", "EARLIER_DAYS", json!(2.0), "", "2024-06-05T00:00Z"),
    ] {
        let mut condition =
            json!({ "field": "f", "operator": operator, "options": { "zoneId": zone } });
        if !value.is_null() {
            condition["value"] = value;
        }
        let millis = |text: &str| text.parse::<Timestamp>().unwrap().as_millisecond();
        let expected = match from {
            "" => [None, Some(millis(to).into())],
            // The last millisecond is included.
            from => [Some(millis(from).into()), Some((millis(to) - 1).into())],
        };
        assert_eq!(period(&condition, now), expected, "{now} {condition}");
    }
}

#[test]
fn patterns_have_the_first_and_the_last_time_that_they_can_write() {
    for (pattern, from, to) in [
        ("yyyy", "2024", "2024"),
        ("yyyy-MM", "2024-06", "2024-06"),
        ("yyyyMMdd", "20240606", "20240606"),
        ("yyyy-MM-dd'T'HH:mm:ss.SSS'Z'", "2024-06-06T00:00:00.000Z", "2024-06-06T23:59:59.999Z"),
        (
            "uuuu/MM/dd HH.mm.ss SSSSSSSSS",
            "2024/06/06 00.00.00 000000000",
            "2024/06/06 23.59.59 999999999",
        ),
    ] {
        let options = json!({ "datePattern": pattern });
        let condition = json!({ "field": "f", "operator": "TODAY", "options": options });
        let expected = [Some(from.into()), Some(to.into())];
        assert_eq!(period(&condition, super::NOW), expected, "{pattern}");
    }
}
