//! Whether there is so much to do that nothing needs to wake the relay.

use std::time::{Duration, Instant};

/// Full pages in a row that make a rush: what a producer inserts in one go (two or three batches)
/// is none, and a backlog shows its fourth page within a few tenths of a second.
const BEGINS: u32 = 4;

/// A rush is over when a round was read to its end and no page was full for so long. Ten times
/// what a page takes to read and to lease, so that a backlog whose pages are now and then not
/// full is one rush: a change stream that is opened for it would be closed again at once.
const ENDS: Duration = Duration::from_millis(500);

/// What the latest pages of the rotation were like.
#[derive(Debug, Default)]
pub(super) struct Saturation {
    full_in_a_row: u32,
    last_full: Option<Instant>,
    is_on: bool,
}

impl Saturation {
    /// Another page was read: `full`, or the last of its round. Returns whether there is a rush.
    pub(super) fn page(&mut self, full: bool, now: Instant) -> bool {
        if full {
            self.last_full = Some(now);
            self.full_in_a_row = self.full_in_a_row.saturating_add(1);
            self.is_on |= self.full_in_a_row >= BEGINS;
        } else {
            self.full_in_a_row = 0;
            self.is_on &= self.last_full.is_some_and(|last| now.duration_since(last) < ENDS);
        }
        self.is_on
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether there is a rush after these pages: full or not, each so many milliseconds later.
    fn after(pages: &[(bool, u64)]) -> bool {
        let mut rush = Saturation::default();
        let mut now = Instant::now();
        let mut is_on = false;
        for (full, millis) in pages {
            now += Duration::from_millis(*millis);
            is_on = rush.page(*full, now);
        }
        is_on
    }

    #[test]
    fn it_begins_with_the_fourth_full_page_in_a_row() {
        assert!(!after(&[(true, 1); 3]));
        assert!(after(&[(true, 1); 4]));
        assert!(!after(&[(true, 1), (true, 1), (true, 1), (false, 1), (true, 1)]));
    }

    #[test]
    fn it_ends_when_no_page_was_full_for_half_a_second() {
        let begun = [(true, 1); 4];

        assert!(after(&[&begun[..], &[(false, 499)]].concat()));
        assert!(after(&[&begun[..], &[(false, 400), (true, 1), (false, 400)]].concat()));
        assert!(!after(&[&begun[..], &[(false, 400), (false, 100)]].concat()));
        assert!(after(&[&begun[..], &[(true, 900)]].concat()), "a slow page is a page");
    }
}
