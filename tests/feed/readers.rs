//! Readers that lose their connection again and again, and note what they saw. The chaos histories
//! use them too.

use std::time::Duration;

use futures_util::StreamExt;
use postrider::events::feed::{Feed, FeedError, FeedFilter, FeedPage};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::checker::{FeedItem, ReaderLog};

/// The pause after an error of MongoDB.
const RETRY_PAUSE: Duration = Duration::from_millis(20);

/// The pause of a reader that does not wait for events.
const READ_PAUSE: Duration = Duration::from_millis(5);

/// The most pages that a stream is read before it is dropped.
const MAX_PAGES: usize = 5;

/// A reader that runs. It reads from position 0.
pub struct RecordingReader {
    /// The position at which it ends.
    end: watch::Sender<Option<i64>>,
    task: JoinHandle<ReaderLog>,
}

impl RecordingReader {
    /// Starts to read. Without waiting for events it reads again and again.
    fn start(feed: Feed, waits: bool) -> Self {
        let (end, ends) = watch::channel(None);
        let log = ReaderLog::default();
        let reader = Reader { feed, waits, checkpoint: None, after: 0, log, ends };
        Self { end, task: tokio::spawn(reader.run()) }
    }

    /// Starts several. The first one never waits for events.
    pub fn start_all(feed: &Feed, count: usize) -> Vec<Self> {
        (0..count).map(|number| Self::start(feed.clone(), number > 0)).collect()
    }

    /// Lets it read up to this position; returns what it saw.
    pub async fn end_at(self, head: i64) -> ReaderLog {
        self.end.send_replace(Some(head));
        self.task.await.unwrap()
    }
}

/// Lets all read up to this position.
pub async fn end_all(readers: Vec<RecordingReader>, head: i64) -> Vec<ReaderLog> {
    let mut logs = Vec::new();
    for reader in readers {
        logs.push(reader.end_at(head).await);
    }
    logs
}

struct Reader {
    feed: Feed,
    waits: bool,
    /// The id of the feed that `after` is of.
    checkpoint: Option<String>,
    after: i64,
    log: ReaderLog,
    ends: watch::Receiver<Option<i64>>,
}

impl Reader {
    async fn run(mut self) -> ReaderLog {
        while !self.has_ended() {
            if !self.waits || rand::random() {
                self.read_pages().await;
            } else {
                self.follow_stream().await;
            }
        }
        self.log
    }

    fn has_ended(&self) -> bool {
        self.ends.borrow().is_some_and(|end| self.after >= end)
    }

    /// Waits and reads pages, of any size.
    async fn read_pages(&mut self) {
        for _ in 0..rand::random_range(1..=MAX_PAGES) {
            let limit = rand::random_range(1..=100);
            let filter = FeedFilter::default();
            let page = self.feed.page(self.checkpoint.as_deref(), self.after, &filter, limit);
            let page = page.await;
            if !self.accept(page).await {
                return;
            }
            if self.waits && rand::random() {
                self.until_more().await;
            } else {
                // Without a wait it also reads while no majority has anything new.
                tokio::time::sleep(READ_PAUSE).await;
            }
            if self.has_ended() {
                return;
            }
        }
    }

    /// Reads a stream for a while, and drops it.
    async fn follow_stream(&mut self) {
        let pages = self.feed.pages(self.checkpoint.clone(), self.after, FeedFilter::default());
        let mut pages = Box::pin(pages);
        for _ in 0..rand::random_range(1..=MAX_PAGES) {
            let mut ends = self.ends.clone();
            let after = self.after;
            let page = tokio::select! {
                page = pages.next() => page,
                _ = ends.wait_for(|end| end.is_some_and(|end| after >= end)) => return,
            };
            let Some(page) = page else { return };
            if !self.accept(page).await {
                return;
            }
        }
    }

    async fn until_more(&mut self) {
        let (feed, after) = (self.feed.clone(), self.after);
        tokio::select! {
            () = feed.wait_beyond(after) => {}
            _ = self.ends.wait_for(|end| end.is_some_and(|end| after >= end)) => {}
        }
    }

    /// Notes a page; whether it is one.
    async fn accept(&mut self, page: Result<FeedPage, FeedError>) -> bool {
        match page {
            Ok(page) => {
                self.log.items.extend(page.items.iter().map(FeedItem::from));
                (self.checkpoint, self.after) = (Some(page.feed), page.next);
                return true;
            }
            // The feed is created by the first sequencer.
            Err(FeedError::Store(_) | FeedError::Missing) => {}
            Err(error) => self.log.errors.push(error.to_string()),
        }
        tokio::time::sleep(RETRY_PAUSE).await;
        false
    }
}
