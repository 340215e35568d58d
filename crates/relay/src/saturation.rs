//! Detects saturation: so much to do that nothing needs to wake the relay.

use std::time::{Duration, Instant};

/// Full pages in a row that show saturation: one bulk insert of a producer (two or three batches)
/// does not, and a backlog reaches its fourth page within a few tenths of a second.
const FULL_PAGES: u32 = 4;

/// Saturation ends when a round was read to its end and no page was full for this time. It is ten
/// times the time to read and lease a page, so that an occasional page that is not full does not
/// end it: a change stream that is opened for it would be closed again at once.
const QUIET_PERIOD: Duration = Duration::from_millis(500);

/// The fullness of the latest pages of the rotation.
#[derive(Debug, Default)]
pub(super) struct Saturation {
    full_in_a_row: u32,
    last_full: Option<Instant>,
    is_on: bool,
}

impl Saturation {
    /// Notes a page, which was `full` or the last of its round. Returns whether the relay is
    /// saturated.
    pub(super) fn page(&mut self, full: bool, now: Instant) -> bool {
        if full {
            self.last_full = Some(now);
            self.full_in_a_row = self.full_in_a_row.saturating_add(1);
            self.is_on |= self.full_in_a_row >= FULL_PAGES;
        } else {
            self.full_in_a_row = 0;
            self.is_on &=
                self.last_full.is_some_and(|last| now.duration_since(last) < QUIET_PERIOD);
        }
        self.is_on
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns whether the relay is saturated after these pages: full or not, each so many
    /// milliseconds later.
    fn after(pages: &[(bool, u64)]) -> bool {
        let mut saturation = Saturation::default();
        let mut now = Instant::now();
        let mut is_on = false;
        for (full, millis) in pages {
            now += Duration::from_millis(*millis);
            is_on = saturation.page(*full, now);
        }
        is_on
    }

    #[test]
    fn saturation_begins_with_the_fourth_full_page_in_a_row() {
        assert!(!after(&[(true, 1); 3]));
        assert!(after(&[(true, 1); 4]));
        assert!(!after(&[(true, 1), (true, 1), (true, 1), (false, 1), (true, 1)]));
    }

    #[test]
    fn saturation_ends_half_a_second_after_the_last_full_page() {
        let begun = [(true, 1); 4];

        assert!(after(&[&begun[..], &[(false, 499)]].concat()));
        assert!(after(&[&begun[..], &[(false, 400), (true, 1), (false, 400)]].concat()));
        assert!(!after(&[&begun[..], &[(false, 400), (false, 100)]].concat()));
        assert!(after(&[&begun[..], &[(true, 900)]].concat()), "a slow page is a page");
    }
}
