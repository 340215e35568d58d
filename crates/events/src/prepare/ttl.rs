//! Until when a key is prepared.

use std::time::Duration;

use bson::{Bson, DateTime, doc};

/// What the seed system writes for a key that never expires, in milliseconds of the epoch.
const FOREVER: i64 = 148_204_944_000_000;

/// Until when a key is prepared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ttl {
    /// Until it is rolled back.
    Forever,
    /// For so long from when the server writes it.
    For(Duration),
    /// Until this time of the server's clock. One that has passed ends it at once.
    At(DateTime),
}

impl Ttl {
    /// `ttlAt` as an expression of a pipeline.
    pub(super) fn expression(self) -> Bson {
        match self {
            Self::For(duration) => match i64::try_from(duration.as_micros().div_ceil(1000)) {
                Ok(millis @ ..FOREVER) => doc! { "$add": ["$$NOW", millis] }.into(),
                _ => Self::Forever.expression(),
            },
            // Never before now: what has expired is so replaced by something else than itself,
            // which the server's answer tells from a key that was left alone.
            Self::At(time) if time.timestamp_millis() < FOREVER => {
                doc! { "$max": [time, "$$NOW"] }.into()
            }
            Self::At(_) | Self::Forever => "$$REMOVE".into(),
        }
    }

    /// When a key ends that is taken until this time; `None` for never.
    pub fn end_at(time: DateTime) -> Option<DateTime> {
        (time.timestamp_millis() < FOREVER).then_some(time)
    }

    /// The end of a key with this `ttlAt`, where it has one. TTL indexes leave alone what is no
    /// date, and so do we.
    pub(super) fn end(stored: Option<&Bson>) -> Option<DateTime> {
        Self::end_at(*stored?.as_datetime()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_ends_in_some_thousand_years_is_for_ever() {
        let long = Duration::from_millis(FOREVER as u64);
        let forever = Bson::from("$$REMOVE");

        assert_eq!(Ttl::For(long).expression(), forever);
        assert_eq!(Ttl::For(Duration::MAX).expression(), forever);
        assert_eq!(Ttl::At(DateTime::from_millis(FOREVER)).expression(), forever);
        assert_ne!(Ttl::For(long - Duration::from_millis(1)).expression(), forever);
        assert_ne!(Ttl::At(DateTime::from_millis(FOREVER - 1)).expression(), forever);
    }

    #[test]
    fn a_part_of_a_millisecond_is_a_whole_one() {
        let brief = Ttl::For(Duration::from_micros(1001)).expression();

        assert_eq!(brief, doc! { "$add": ["$$NOW", 2_i64] }.into());
    }

    #[test]
    fn only_a_date_before_the_end_of_days_is_an_end() {
        let date = |millis| Bson::from(DateTime::from_millis(millis));

        assert_eq!(Ttl::end(Some(&date(7))), Some(DateTime::from_millis(7)));
        for forever in [date(FOREVER), date(i64::MAX), Bson::Null, Bson::Int64(7)] {
            assert_eq!(Ttl::end(Some(&forever)), None, "{forever}");
        }
        assert_eq!(Ttl::end(None), None);
    }
}
