//! The end of a key.

use std::time::Duration;

use bson::{Bson, DateTime, doc};

/// The end that the Wow framework writes for a key that never expires, in milliseconds since 1970.
const FOREVER_MILLIS: i64 = 148_204_944_000_000;

/// The end of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ttl {
    /// When it is released.
    Forever,
    /// This long after the server has written it.
    For(Duration),
    /// At this time of the server's clock; a past one ends it at once.
    At(DateTime),
}

impl Ttl {
    /// `ttlAt` as an expression of a pipeline.
    pub(super) fn expression(self) -> Bson {
        match self {
            Self::For(duration) => match i64::try_from(duration.as_micros().div_ceil(1000)) {
                Ok(millis @ ..FOREVER_MILLIS) => doc! { "$add": ["$$NOW", millis] }.into(),
                _ => Self::Forever.expression(),
            },
            // Never before now: so a replaced expired key differs from its replacement, and the server
            // reports a modification.
            Self::At(time) if time.timestamp_millis() < FOREVER_MILLIS => {
                doc! { "$max": [time, "$$NOW"] }.into()
            }
            Self::At(_) | Self::Forever => "$$REMOVE".into(),
        }
    }

    /// The end of a key that is taken until this time; `None` for never.
    pub fn end_at(time: DateTime) -> Option<DateTime> {
        (time.timestamp_millis() < FOREVER_MILLIS).then_some(time)
    }

    /// The end of a key with this `ttlAt`. As for TTL indexes, another type than a date is none.
    pub(super) fn end(stored: Option<&Bson>) -> Option<DateTime> {
        Self::end_at(*stored?.as_datetime()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn end_in_some_thousand_years_is_for_ever() {
        let long = Duration::from_millis(FOREVER_MILLIS as u64);
        let forever = Bson::from("$$REMOVE");

        assert_eq!(Ttl::For(long).expression(), forever);
        assert_eq!(Ttl::For(Duration::MAX).expression(), forever);
        assert_eq!(Ttl::At(DateTime::from_millis(FOREVER_MILLIS)).expression(), forever);
        assert_ne!(Ttl::For(long - Duration::from_millis(1)).expression(), forever);
        assert_ne!(Ttl::At(DateTime::from_millis(FOREVER_MILLIS - 1)).expression(), forever);
    }

    #[test]
    fn parts_of_milliseconds_are_rounded_up() {
        let brief = Ttl::For(Duration::from_micros(1001)).expression();

        assert_eq!(brief, doc! { "$add": ["$$NOW", 2_i64] }.into());
    }

    #[test]
    fn only_dates_before_for_ever_are_ends() {
        let date = |millis| Bson::from(DateTime::from_millis(millis));

        assert_eq!(Ttl::end(Some(&date(7))), Some(DateTime::from_millis(7)));
        for forever in [date(FOREVER_MILLIS), date(i64::MAX), Bson::Null, Bson::Int64(7)] {
            assert_eq!(Ttl::end(Some(&forever)), None, "{forever}");
        }
        assert_eq!(Ttl::end(None), None);
    }
}
