//! Schedules rotations: at once if there is more to read, rarely if nothing comes, and never for
//! more than half of the time.

use std::time::{Duration, Instant};

use postrider_outbox::position::Position;

/// The shortest pause between two rotations. It doubles while nothing is found, up to
/// `poll_interval`, so a busy outbox is read often and an idle one rarely.
const SHORTEST_PAUSE: Duration = Duration::from_millis(5);

/// Skipped keys from which a scan counts as long (4 to 5 µs of the server's time each): a sink that
/// is down must not cost the others more than a quarter of a core.
const LONG_SCAN_KEYS: usize = 1_000;

/// The rest after a long scan, as a multiple of its duration.
const LONG_REST_FACTOR: u32 = 3;

/// Shortest and longest pause while MongoDB does not answer.
pub(super) const STORE_PAUSE: (Duration, Duration) =
    (Duration::from_millis(250), Duration::from_secs(5));

/// Schedules rotations, scan by scan, and the pauses between them.
#[derive(Debug)]
pub(super) struct Schedule {
    poll_interval: Duration,
    /// Where the rotation continues.
    position: Position,
    is_rotating: bool,
    /// Whether another rotation was requested since this one, or the latest one, began.
    is_asked: bool,
    /// What the pages of the rotation have found so far.
    pages: Pages,
    pause: Duration,
    next: Instant,
    began: Instant,
    /// No scan that nothing requested begins before.
    rests_until: Instant,
    /// The latest pause for MongoDB, while it does not answer.
    store_pause: Option<Duration>,
}

/// The pages of one rotation so far.
#[derive(Clone, Copy, Debug, Default)]
struct Pages {
    /// Whether one has found anything that can go.
    found: bool,
    /// How long the relay rests for those that have not.
    rest: Duration,
}

/// The result of one scan of a rotation.
#[derive(Debug)]
pub(super) struct RotationPage {
    /// Where the next one begins; `None` at the end of the rotation.
    pub(super) continues_at: Option<Position>,
    /// Whether anything was found that can go.
    pub(super) found: bool,
    /// Keys that were skipped.
    pub(super) skipped: usize,
}

impl Schedule {
    /// Creates a schedule whose first scan may begin now.
    pub(super) fn new(poll_interval: Duration, now: Instant) -> Self {
        Self {
            poll_interval,
            position: Position::start(),
            is_rotating: false,
            is_asked: false,
            pages: Pages::default(),
            pause: SHORTEST_PAUSE,
            next: now,
            began: now,
            rests_until: now,
            store_pause: None,
        }
    }

    /// Returns when the next scan begins; `None` while one is under way.
    pub(super) fn next_scan(&self) -> Option<Instant> {
        (!self.is_rotating).then_some(self.next)
    }

    /// Returns whether the next scan may begin.
    pub(super) fn is_due(&self, now: Instant) -> bool {
        self.next_scan().is_some_and(|next| next <= now)
    }

    /// Begins a scan and returns where. `starts_over`: at the start of a rotation.
    pub(super) fn begin(&mut self, starts_over: bool, now: Instant) -> Position {
        if starts_over {
            self.position = Position::start();
        }
        if self.position.is_start() {
            (self.is_asked, self.pages) = (false, Pages::default());
        }
        (self.is_rotating, self.began) = (true, now);
        self.position.clone()
    }

    /// Notes that the scan under way has failed.
    pub(super) fn failed(&mut self) {
        self.is_rotating = false;
    }

    /// Notes the end of the scan under way. `is_followed`: the change stream reports new records.
    pub(super) fn ended(&mut self, page: RotationPage, is_followed: bool, now: Instant) {
        let is_whole = self.position.is_start() && page.continues_at.is_none();
        self.is_rotating = false;
        let took = now.duration_since(self.began);
        self.pages.found |= page.found;
        // As long as the scan itself took: a server that takes long for a scan, because it passes
        // over recently delivered records, is not kept busy by it. Pages that found something make
        // the backlog shorter.
        if is_whole || !page.found {
            let is_long = page.skipped >= LONG_SCAN_KEYS || !is_whole;
            self.pages.rest += if is_long { took * LONG_REST_FACTOR } else { took };
        }
        let continues = page.continues_at.is_some();
        self.position = page.continues_at.unwrap_or_default();
        if continues {
            self.next = now;
            return;
        }
        let Pages { found, rest } = self.pages;
        // Without it after several pages: the first ones were read a while ago.
        let rest = if is_whole || !found { rest.max(SHORTEST_PAUSE) } else { rest };
        self.rests_until = now + rest;
        self.pause = if found || self.is_asked {
            rest
        } else if is_followed {
            // The timer is the fallback.
            self.poll_interval.max(rest)
        } else {
            (self.pause * 2).min(self.poll_interval).max(rest)
        };
        self.next = now + self.pause;
    }

    /// Lets the next scan begin at once.
    pub(super) fn due_now(&mut self, now: Instant) {
        self.next = now;
    }

    /// Starts another rotation, after the scan that is under way.
    pub(super) fn scan_now(&mut self, now: Instant) {
        (self.is_asked, self.pause, self.next) = (true, SHORTEST_PAUSE, now);
    }

    /// Starts a rotation after the rest, and not before MongoDB is tried again.
    pub(super) fn scan_soon(&mut self) {
        if self.store_pause.is_none() {
            let next = self.next.min(self.rests_until);
            (self.is_asked, self.pause, self.next) = (true, SHORTEST_PAUSE, next);
        }
    }

    /// Notes that MongoDB did not answer. Returns whether that is the first time since it did.
    pub(super) fn store_failed(&mut self, now: Instant) -> bool {
        let before = self.store_pause;
        let pause = before.map_or(STORE_PAUSE.0, |pause| (pause * 2).min(STORE_PAUSE.1));
        (self.store_pause, self.next) = (Some(pause), now + pause);
        before.is_none()
    }

    /// Notes that MongoDB answers. Returns whether it had not.
    pub(super) fn store_answers(&mut self) -> bool {
        self.store_pause.take().is_some()
    }

    /// Returns whether MongoDB did not answer the last time.
    pub(super) fn is_store_failing(&self) -> bool {
        self.store_pause.is_some()
    }

    /// Returns whether MongoDB did not answer, and must not be tried again yet.
    pub(super) fn waits_for_store(&self, now: Instant) -> bool {
        self.is_store_failing() && self.next > now
    }
}

#[cfg(test)]
mod tests {
    use postrider_outbox::position::IndexRange;

    use super::*;

    const POLL: Duration = Duration::from_millis(40);

    struct Clock {
        schedule: Schedule,
        now: Instant,
    }

    impl Clock {
        fn new() -> Self {
            let now = Instant::now();
            Self { schedule: Schedule::new(POLL, now), now }
        }

        /// Runs one scan of so many milliseconds, as soon as it is due. Returns how long after that
        /// the next one is due.
        fn scan(&mut self, took: u64, page: RotationPage, is_followed: bool) -> u64 {
            self.now = self.now.max(self.schedule.next_scan().unwrap());
            assert!(self.schedule.is_due(self.now));
            self.schedule.begin(false, self.now);
            assert!(!self.schedule.is_due(self.now), "one at a time");
            self.now += Duration::from_millis(took);
            self.schedule.ended(page, is_followed, self.now);
            self.pause()
        }

        fn pause(&self) -> u64 {
            let next = self.schedule.next_scan().unwrap();
            u64::try_from(next.saturating_duration_since(self.now).as_millis()).unwrap()
        }
    }

    fn page(found: bool) -> RotationPage {
        RotationPage { continues_at: None, found, skipped: 0 }
    }

    fn more(found: bool) -> RotationPage {
        let next = Position::behind(&(IndexRange::Unstamped, "k".into()));
        RotationPage { continues_at: Some(next), ..page(found) }
    }

    #[test]
    fn busy_rotations_rest_as_long_as_they_took() {
        let mut clock = Clock::new();

        assert_eq!(clock.scan(1, page(true), true), 5);
        assert_eq!(clock.scan(30, page(true), true), 30);
        let held = RotationPage { skipped: LONG_SCAN_KEYS, ..page(true) };
        assert_eq!(clock.scan(30, held, true), 90);
        let few = RotationPage { skipped: LONG_SCAN_KEYS - 1, ..page(true) };
        assert_eq!(clock.scan(30, few, true), 30);
    }

    #[test]
    fn pages_and_the_next_rotation_follow_each_other() {
        let mut clock = Clock::new();

        assert_eq!(clock.scan(30, more(true), true), 0);
        let last = page(true);
        assert_eq!(clock.scan(30, last, true), 0, "the first pages were read a while ago");
        assert_eq!(clock.scan(30, page(false), true), 40);
    }

    #[test]
    fn rotation_that_finds_nothing_in_several_pages_rests() {
        for (pages, expected) in [(1, 40), (4, 150)] {
            let mut clock = Clock::new();
            for _ in 0..pages {
                assert_eq!(clock.scan(10, more(false), true), 0);
            }
            assert_eq!(clock.scan(if pages == 1 { 1 } else { 10 }, page(false), true), expected);
        }
    }

    #[test]
    fn pages_without_a_record_delay_the_next_rotation_threefold() {
        let mut clock = Clock::new();

        clock.scan(10, more(false), true);
        clock.scan(10, more(true), true);
        assert_eq!(clock.scan(10, page(false), true), 60);
        clock.schedule.scan_soon();
        assert_eq!(clock.pause(), 60, "also if it is requested");
    }

    #[test]
    fn request_during_an_earlier_page_leads_to_another_rotation() {
        let mut clock = Clock::new();
        clock.now = clock.schedule.next_scan().unwrap();
        clock.schedule.begin(false, clock.now);
        clock.schedule.scan_soon();
        clock.schedule.ended(more(false), true, clock.now);

        assert_eq!(clock.scan(2, page(false), true), 6, "and not after the poll interval");
        assert_eq!(clock.scan(1, page(false), true), 40);
    }

    #[test]
    fn pauses_grow_to_the_poll_interval_without_a_change_stream() {
        let mut clock = Clock::new();

        let pauses = [(); 4].map(|()| clock.scan(1, page(false), false));

        assert_eq!(pauses, [10, 20, 40, 40]);
        assert_eq!(Clock::new().scan(1, page(false), true), 40);
    }

    #[test]
    fn requested_scan_waits_for_the_rest_unless_urgent() {
        let mut clock = Clock::new();
        clock.scan(20, page(false), true);

        assert!(!clock.schedule.is_due(clock.now) && !clock.schedule.waits_for_store(clock.now));
        clock.schedule.scan_soon();
        assert_eq!(clock.pause(), 20);
        assert!(!clock.schedule.is_due(clock.now));
        clock.schedule.scan_now(clock.now);
        assert_eq!(clock.pause(), 0);
        clock.schedule.scan_soon();
        assert_eq!(clock.pause(), 0, "what is urgent stays so");
        assert!(clock.schedule.is_due(clock.now));
        assert_eq!(clock.scan(1, page(false), true), 40, "it is asked for once");
    }

    #[test]
    fn requested_scan_resets_the_pauses() {
        for ask in
            [Schedule::scan_soon, |schedule: &mut Schedule| schedule.scan_now(Instant::now())]
        {
            let mut clock = Clock::new();
            (0..4).for_each(|_| _ = clock.scan(1, page(false), false));
            assert_eq!(clock.pause(), 40);

            ask(&mut clock.schedule);

            assert_eq!(clock.scan(1, page(false), false), 10);
        }
    }

    #[test]
    fn scan_requested_during_a_scan_follows_it() {
        let mut clock = Clock::new();
        for ask in
            [Schedule::scan_soon, |schedule: &mut Schedule| schedule.scan_now(Instant::now())]
        {
            clock.now = clock.schedule.next_scan().unwrap();
            clock.schedule.begin(false, clock.now);
            ask(&mut clock.schedule);
            assert_eq!(clock.schedule.next_scan(), None);
            clock.now += Duration::from_millis(7);

            clock.schedule.ended(page(false), true, clock.now);

            assert_eq!(clock.pause(), 7, "and not after the poll interval");
        }
    }

    #[test]
    fn failing_store_is_retried_after_growing_pauses() {
        let mut clock = Clock::new();
        let mut pauses = Vec::new();
        for first in [true, false, false, false, false, false] {
            clock.schedule.begin(false, clock.now);
            clock.schedule.failed();
            assert_eq!(clock.schedule.store_failed(clock.now), first);
            clock.schedule.scan_soon();
            assert!(clock.schedule.waits_for_store(clock.now));
            pauses.push(clock.pause());
            clock.now = clock.schedule.next_scan().unwrap();
        }

        assert_eq!(pauses, [250, 500, 1_000, 2_000, 4_000, 5_000]);
        assert!(clock.schedule.is_due(clock.now) && !clock.schedule.waits_for_store(clock.now));
        assert!(clock.schedule.store_answers());
        assert!(!clock.schedule.store_answers());
    }

    #[test]
    fn pass_is_due_at_once_and_begins_at_the_start() {
        let mut clock = Clock::new();
        assert_eq!(clock.scan(1, page(false), true), 40);
        clock.schedule.due_now(clock.now);
        assert!(clock.schedule.is_due(clock.now));
        clock.scan(1, more(true), true);

        assert!(!clock.schedule.begin(false, clock.now).is_start());
        clock.schedule.failed();
        assert!(clock.schedule.begin(true, clock.now).is_start());
    }
}
