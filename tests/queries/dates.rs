//! Periods around the present day, in UTC.

use bson::{Bson, DateTime, Document, doc};
use postrider::events::query::{Condition, Target};
use serde_json::json;

use crate::world::{World, condition, found};

const DAY: i64 = 86_400_000;

fn today() -> i64 {
    DateTime::now().timestamp_millis().div_euclid(DAY)
}

/// A day, as in 2024-06-09.
fn text(day: i64) -> String {
    let text = DateTime::from_millis(day * DAY).try_to_rfc3339_string().unwrap();
    text[..10].to_owned()
}

/// The month of a day, as in 2024-06.
fn month(day: i64) -> String {
    text(day)[..7].to_owned()
}

/// The Monday of a day's week: 1970 began with a Thursday.
fn monday(day: i64) -> i64 {
    day - (day + 3).rem_euclid(7)
}

fn expected(operator: &str, today: i64, day: i64) -> bool {
    let this_month = month(today);
    let last_month = (today - 31..today).rev().map(month).find(|month| *month != this_month);
    match operator {
        "TODAY" => day == today,
        "TOMORROW" => day == today + 1,
        "THIS_WEEK" => monday(day) == monday(today),
        "NEXT_WEEK" => monday(day) == monday(today) + 7,
        "LAST_WEEK" => monday(day) == monday(today) - 7,
        "THIS_MONTH" => month(day) == this_month,
        _ => Some(month(day)) == last_month,
    }
}

/// Each day by its first and its last millisecond.
#[fixture::test]
async fn periods_have_all_of_their_days() {
    let world = World::new().await;
    let (begin, days) = (today(), -70..=40);
    let documents = days.clone().flat_map(|offset| {
        [0, DAY - 1].map(|millis| {
            let at = (begin + offset) * DAY + millis;
            doc! { "_id": at, "at": at, "text": text(begin + offset) }
        })
    });
    world.insert(Target::Events, documents.collect::<Vec<Document>>()).await;
    let queries = world.queries();
    let pattern = json!({ "datePattern": "yyyy-MM-dd" });
    let zone = json!({ "zoneId": "+00:00" });
    for operator in
        ["TODAY", "TOMORROW", "THIS_WEEK", "NEXT_WEEK", "LAST_WEEK", "THIS_MONTH", "LAST_MONTH"]
    {
        for (field, options) in [("at", &zone), ("text", &pattern)] {
            let condition: Condition =
                condition(json!({ "operator": operator, "field": field, "options": options }));

            let found = found(&queries, Target::Events, &condition).await;

            if today() != begin {
                return;
            }
            let meant = days.clone().map(|offset| begin + offset);
            let meant = meant.filter(|day| expected(operator, begin, *day));
            let meant: Vec<Bson> =
                meant.flat_map(|day| [day * DAY, (day + 1) * DAY - 1]).map(Bson::from).collect();
            assert_eq!(found, meant, "{operator} of {field}");
        }
    }
}
