//! Reads the feed: pages, waiting for more, a stream.

use std::time::{Duration, Instant};

use futures_util::{Stream, StreamExt, TryStreamExt, stream};
use postrider_store::StoreError;
use postrider_store::schema::SchemaError;
use tokio::sync::{Mutex, mpsc, watch};
use tokio_util::task::AbortOnDropHandle;

use crate::context::Context;
use crate::feed::error::FeedError;
use crate::feed::event::{FeedEvent, FeedPage};
use crate::feed::filter::FeedFilter;
use crate::feed::highest::highest_position;
use crate::feed::page::{Learned, PageRequest, page};
use crate::feed::process::KnownHead;
use crate::feed::report::{FeedBacklog, FeedReport};
use crate::feed::sequencer::Sequencer;
use crate::feed::settings::FeedConfig;
use crate::feed::state::{FeedState, StateStore};

/// The interval of reads of the head, while a reader waits and another process assigns positions.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// The events of one page of a stream.
const STREAM_PAGE: usize = 2_000;

/// The feed of a context. Clones share what is known of the head.
///
/// ```no_run
/// use futures_util::TryStreamExt;
/// use postrider_events::context::{Context, ContextSettings};
/// use postrider_events::feed::{Feed, FeedFilter};
///
/// # async fn run(client: mongodb::Client) -> Result<(), Box<dyn std::error::Error>> {
/// let feed = Feed::new(Context::new(client, ContextSettings::new("shop")));
/// // From the checkpoint that the reader stores with its results.
/// let (id, after) = (None, 0);
/// let mut pages = Box::pin(feed.pages(id, after, FeedFilter::default()));
/// while let Some(page) = pages.try_next().await? {
///     for event in &page.items {
///         println!("{}: {} {}", event.position, event.aggregate_id, event.name);
///     }
///     println!("checkpoint: {} {}", page.feed, page.next);
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Feed {
    context: Context,
    head: watch::Sender<KnownHead>,
    polled_at: std::sync::Arc<Mutex<Option<Instant>>>,
    learned: Learned,
}

impl Feed {
    /// The feed of this context. A [`Sequencer`] of any process creates it.
    pub fn new(context: Context) -> Self {
        let (head, _) = watch::channel(KnownHead::default());
        let learned = Learned::new();
        Self { context, head, polled_at: std::sync::Arc::default(), learned }
    }

    /// The same feed, read in another context of the same databases. Both share what is known of the head.
    pub fn through(&self, context: Context) -> Self {
        Self { context, ..self.clone() }
    }

    /// A sequencer, to be run in this process. Its readers here learn of new events at once.
    pub fn sequencer(&self, settings: FeedConfig) -> Sequencer {
        Sequencer::new(self.context.clone(), settings, self.head.clone())
    }

    /// The state of the feed, from a majority; `None` before it exists.
    ///
    /// # Errors
    ///
    /// [`StoreError`].
    pub async fn state(&self) -> Result<Option<FeedState>, StoreError> {
        StateStore::new(&self.context).load().await
    }

    /// The state of the feed and of its collections, for operators. Creates nothing.
    ///
    /// # Errors
    ///
    /// [`SchemaError`].
    pub async fn report(&self) -> Result<FeedReport, SchemaError> {
        FeedReport::read(&self.context).await
    }

    /// The appends without a position, of the collections of a report that have the index.
    ///
    /// # Errors
    ///
    /// [`StoreError`].
    pub async fn backlog(&self, report: &FeedReport) -> Result<FeedBacklog, StoreError> {
        FeedBacklog::read(&self.context, report.indexed()).await
    }

    /// Changes the id of the feed: after a restore, when positions name other events. Readers with
    /// positions of the earlier id get [`FeedError::WrongFeed`].
    ///
    /// # Errors
    ///
    /// [`FeedError::Missing`], [`FeedError::Store`].
    pub async fn renew(&self) -> Result<FeedState, FeedError> {
        // A restore may have brought positions beyond the head.
        let (highest, names) = highest_position(&self.context).await?;
        let renewed = StateStore::new(&self.context).renew(highest, &names).await?;
        renewed.ok_or(FeedError::Missing)
    }

    /// Reads up to `limit` events behind a position of the feed with this id, if it is known. It ends before
    /// that at [`MAX_PAGE_BYTES`](crate::feed::MAX_PAGE_BYTES), but not before its first event: read on from
    /// `next` while that is below `head`.
    ///
    /// # Errors
    ///
    /// [`FeedError`].
    pub async fn page(
        &self,
        feed: Option<&str>,
        after: i64,
        filter: &FeedFilter,
        limit: usize,
    ) -> Result<FeedPage, FeedError> {
        let request = PageRequest { feed, after, filter, limit: limit.max(1) };
        page(&self.context, request, &self.learned).await
    }

    /// Resolves when the head is behind this position. While MongoDB fails, it waits.
    pub async fn wait_beyond(&self, after: i64) {
        let mut head = self.head.subscribe();
        loop {
            let known = head.borrow_and_update().clone();
            if known.head > after {
                return;
            }
            tokio::select! {
                changed = head.changed() => if changed.is_err() { return },
                () = tokio::time::sleep(POLL_INTERVAL) => {
                    if !known.is_own {
                        self.poll().await;
                    }
                }
            }
        }
    }

    /// Reads the head for all readers of this process that wait.
    async fn poll(&self) {
        let mut polled_at = self.polled_at.lock().await;
        if polled_at.is_some_and(|at| at.elapsed() < POLL_INTERVAL / 2) {
            return;
        }
        let state = self.state().await;
        *polled_at = Some(Instant::now());
        if let Ok(Some(FeedState { feed, head, .. })) = state {
            self.head.send_if_modified(|known| {
                let is_news = !known.is_own && (known.head != head || known.feed != feed);
                if is_news {
                    (known.head, known.feed) = (head, feed);
                }
                is_news
            });
        }
    }

    /// Streams pages behind a position, and waits for more at the end. While the receiver works on a page, the
    /// next one is read and kept, so a stream holds two pages at most.
    ///
    /// A page without events is sent only when it advances: store its `next` too.
    pub fn pages(
        &self,
        feed: Option<String>,
        after: i64,
        filter: FeedFilter,
    ) -> impl Stream<Item = Result<FeedPage, FeedError>> + Send + use<> {
        let (sender, pages) = mpsc::channel(1);
        let reading = read_pages(self.clone(), feed, after, filter, sender);
        let task = AbortOnDropHandle::new(tokio::spawn(reading));
        stream::unfold((pages, task), |(mut pages, task)| async move {
            Some((pages.recv().await?, (pages, task)))
        })
    }

    /// Streams events behind a position, and waits for more at the end.
    pub fn events(
        &self,
        feed: Option<String>,
        after: i64,
        filter: FeedFilter,
    ) -> impl Stream<Item = Result<FeedEvent, FeedError>> + Send + use<> {
        let pages = self.pages(feed, after, filter);
        pages.map_ok(|page| stream::iter(page.items).map(Ok)).try_flatten()
    }
}

/// Sends pages until the receiver is dropped or an error is sent.
async fn read_pages(
    from: Feed,
    mut feed: Option<String>,
    mut after: i64,
    filter: FeedFilter,
    pages: mpsc::Sender<Result<FeedPage, FeedError>>,
) {
    // Without the place for it, a page that was read would be a third one.
    while let Ok(place) = pages.reserve().await {
        let page = from.page(feed.as_deref(), after, &filter, STREAM_PAGE).await;
        let is_error = page.is_err();
        let mut is_end = false;
        if let Ok(page) = &page {
            is_end = page.next >= page.head;
            let has_advanced = page.next > after || feed.is_none();
            (feed, after) = (Some(page.feed.clone()), page.next);
            if !has_advanced {
                from.wait_beyond(after).await;
                continue;
            }
        }
        place.send(page);
        if is_error {
            return;
        }
        if is_end {
            from.wait_beyond(after).await;
        }
    }
}
