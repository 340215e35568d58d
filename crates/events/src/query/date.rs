//! Periods of time: today, this week, the last days.

use bson::{Bson, Document, doc};
use jiff::civil::{Date, DateTime, Time};
use jiff::{Timestamp, ToSpan};

pub use super::pattern::{DatePattern, InvalidPattern};
use super::zone::Zone;

/// The most days of [`DateTest::RecentDays`] and [`DateTest::EarlierDays`]: a thousand years.
pub const MAX_DAYS: u32 = 366_000;

/// A period that ends or begins today. Weeks begin on Monday.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DateTest {
    /// The day of the query.
    Today,
    /// Before this time of the day of the query.
    BeforeToday(Time),
    /// The day after it.
    Tomorrow,
    /// Its week.
    ThisWeek,
    /// The week after it.
    NextWeek,
    /// The week before it.
    LastWeek,
    /// Its month.
    ThisMonth,
    /// The month before it.
    LastMonth,
    /// The last so many days, today included; at most [`MAX_DAYS`].
    RecentDays(u32),
    /// Before the last so many days, of which today is one; at most [`MAX_DAYS`].
    EarlierDays(u32),
}

/// How a field holds a time, and in which time zone its days begin.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DateForm {
    /// The time zone; UTC by default.
    pub zone: Zone,
    /// The pattern of texts; without one the field holds milliseconds since 1970.
    pub pattern: Option<DatePattern>,
}

enum Period {
    Days(Date, Date),
    Before(DateTime),
}

/// The test of MongoDB for a period, at this time.
pub(super) fn range(test: DateTest, form: &DateForm, now: Timestamp) -> Document {
    match period(test, form.zone.zone.to_datetime(now).date()) {
        Period::Before(end) => doc! { "$lt": form.value(end) },
        Period::Days(first, last) => {
            let begin = form.value(first.to_datetime(Time::midnight()));
            let end = match &form.pattern {
                Some(pattern) => pattern.format(last.to_datetime(Time::MAX)).into(),
                // Not the last second of the day by its clock, which may pass twice or never.
                None => {
                    let next = days_after(last, 1).to_datetime(Time::midnight());
                    Bson::from(form.millis(next) - 1)
                }
            };
            doc! { "$gte": begin, "$lte": end }
        }
    }
}

fn period(test: DateTest, today: Date) -> Period {
    let whole = |first, days: i64| Period::Days(first, days_after(first, days - 1));
    let monday = days_after(today, -i64::from(today.weekday().to_monday_zero_offset()));
    let month = |date: Date| Period::Days(date.first_of_month(), date.last_of_month());
    // Today is the last of them.
    let first_of = |days: u32| days_after(today, 1 - i64::from(days.min(MAX_DAYS)));
    match test {
        DateTest::Today => whole(today, 1),
        DateTest::BeforeToday(time) => Period::Before(today.to_datetime(time)),
        DateTest::Tomorrow => whole(days_after(today, 1), 1),
        DateTest::ThisWeek => whole(monday, 7),
        DateTest::NextWeek => whole(days_after(monday, 7), 7),
        DateTest::LastWeek => whole(days_after(monday, -7), 7),
        DateTest::ThisMonth => month(today),
        DateTest::LastMonth => month(today.saturating_sub(1.month())),
        DateTest::RecentDays(days) => Period::Days(first_of(days), today),
        DateTest::EarlierDays(days) => Period::Before(first_of(days).to_datetime(Time::midnight())),
    }
}

fn days_after(date: Date, days: i64) -> Date {
    date.saturating_add(days.days())
}

impl DateForm {
    /// A time by the clock of the zone, as a field holds it.
    fn value(&self, time: DateTime) -> Bson {
        match &self.pattern {
            Some(pattern) => pattern.format(time).into(),
            None => self.millis(time).into(),
        }
    }

    /// Milliseconds since 1970. A time that a change of the clock leaves out is taken by the rules
    /// before the change; one that passes twice is the first.
    fn millis(&self, time: DateTime) -> i64 {
        self.zone.zone.to_timestamp(time).unwrap_or(Timestamp::MAX).as_millisecond()
    }
}
