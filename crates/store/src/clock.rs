//! Estimates the server's clock.

use std::time::Duration;

use bson::{DateTime, doc};
use mongodb::Database;
use parking_lot::RwLock;

use crate::boot_instant::BootInstant;
use crate::connect::ask;
use crate::error::StoreError;

/// Age of a sample up to which it is used: clocks drift by milliseconds meanwhile.
const MAX_SAMPLE_AGE: Duration = Duration::from_secs(10);

/// Estimate of the primary's time, accurate to about a round trip.
///
/// It only avoids useless attempts and dates latency figures. The server itself decides whether a
/// lease is live or a record is due (`$$NOW`), in the filter of each write.
#[derive(Debug, Default)]
pub struct ServerClock {
    sample: RwLock<Option<(BootInstant, DateTime)>>,
}

impl ServerClock {
    /// Returns the primary's time, for a caller that needs it once.
    ///
    /// # Errors
    ///
    /// No answer.
    pub async fn asked(database: &Database) -> Result<DateTime, StoreError> {
        let clock = Self::default();
        clock.sample(database).await?;
        Ok(clock.now())
    }

    /// Samples the primary's time.
    ///
    /// # Errors
    ///
    /// No answer; the estimate stays as it was.
    pub async fn sample(&self, database: &Database) -> Result<(), StoreError> {
        let sent = BootInstant::now();
        let answer = ask(database, "read the time of MongoDB", doc! { "hello": 1 }).await?;
        let time = answer.get_datetime("localTime").map_err(|error| StoreError::Answer {
            action: "read the time of MongoDB",
            detail: error.to_string(),
        })?;
        let middle = sent + BootInstant::now().since(sent) / 2;
        *self.sample.write() = Some((middle, *time));
        Ok(())
    }

    /// Samples the time, unless the last sample is recent.
    ///
    /// # Errors
    ///
    /// No answer.
    pub async fn keep_fresh(&self, database: &Database) -> Result<(), StoreError> {
        let sample = *self.sample.read();
        match sample {
            Some((at, _)) if BootInstant::now().since(at) < MAX_SAMPLE_AGE => Ok(()),
            _ => self.sample(database).await,
        }
    }

    /// Returns the server's time now; the epoch before the first sample, so that every lease seems
    /// live and nothing is leased.
    pub fn now(&self) -> DateTime {
        let sample = *self.sample.read();
        match sample {
            None => DateTime::from_millis(0),
            Some((at, time)) => {
                let passed =
                    i64::try_from(BootInstant::now().since(at).as_millis()).unwrap_or(i64::MAX);
                DateTime::from_millis(time.timestamp_millis().saturating_add(passed))
            }
        }
    }

    /// Returns the time until the server's clock shows `time`; zero when it has passed.
    pub fn until(&self, time: DateTime) -> Duration {
        let millis = time.timestamp_millis().saturating_sub(self.now().timestamp_millis());
        Duration::from_millis(u64::try_from(millis).unwrap_or(0))
    }
}
