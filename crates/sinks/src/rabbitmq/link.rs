//! One connection to the broker: opened, watched, given up. A lost one is never revived;
//! the next probe opens another.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use lapin::options::ConfirmSelectOptions;
use lapin::{Connection, ConnectionBuilder, ConnectionProperties, ConnectionStatus, Event};
use postrider_relay::sink::SinkDown;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use crate::pulse::Pulse;
use crate::rabbitmq::closure::{self, Refusal};
use crate::rabbitmq::config::RabbitMqSettings;
use crate::rabbitmq::exchanges::{Exchanges, LookUp};
use crate::rabbitmq::link_state::LinkState;
use crate::rabbitmq::publisher::{self, Owner, Request};
use crate::rabbitmq::refusals::Refusals;
use crate::rabbitmq::rendering::Target;
use crate::rabbitmq::topology;
use crate::rabbitmq::trial::Trial;
use crate::slot;

/// How often an idle connection is looked at: `lapin` tells no one of its end but those
/// who wait for an answer.
const LOOK: Duration = Duration::from_millis(500);

/// One connection with its publishing channel.
#[derive(Debug)]
pub(super) struct Link {
    connection: Connection,
    exchanges: Arc<Exchanges>,
    requests: mpsc::UnboundedSender<Request>,
    state: watch::Sender<LinkState>,
    left_behind: CancellationToken,
    /// Messages that wait for their confirms for long.
    overdue: AtomicUsize,
    /// What the first questions to the broker took.
    asked: Duration,
    /// Bytes of payloads that wait for their confirms.
    carried: AtomicUsize,
    pub(super) pulse: Pulse,
}

/// Part of a sum, until dropped.
#[derive(Debug)]
pub(super) struct Counted<'a> {
    sum: &'a AtomicUsize,
    part: usize,
}

impl<'a> Counted<'a> {
    fn new(sum: &'a AtomicUsize, part: usize) -> Self {
        sum.fetch_add(part, Ordering::Relaxed);
        Self { sum, part }
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.sum.fetch_sub(self.part, Ordering::Relaxed);
    }
}

impl slot::Link for Link {
    async fn lost(&self) -> SinkDown {
        let mut state = self.state.subscribe();
        loop {
            match &*state.borrow_and_update() {
                LinkState::Up => {}
                LinkState::Blocked(down) | LinkState::Down(down) => return down.clone(),
            }
            tokio::select! {
                // The sender lives in this link.
                _ = state.changed() => {}
                () = tokio::time::sleep(LOOK) => {
                    if !self.connection.status().connected() {
                        go_down(&self.state, SinkDown::new("connection lost"));
                    }
                }
            }
        }
    }
}

impl Link {
    /// Connects, within the sink's timeout.
    ///
    /// # Errors
    ///
    /// [`SinkDown`]: no broker, wrong credentials, no such vhost; without the password.
    pub(super) async fn open(
        settings: &RabbitMqSettings,
        refusals: &Arc<Refusals>,
    ) -> Result<Self, SinkDown> {
        let opening = async {
            let link = Self::connect(settings, refusals).await.map_err(|error| {
                let at = settings.own.redacted_uri();
                closure::unreachable(&error).preceded_by(format!("cannot connect to {at}: "))
            })?;
            topology::declare(&link.connection, &settings.name, &settings.own.declare).await?;
            Ok(link)
        };
        match tokio::time::timeout(settings.delivery.timeout, opening).await {
            Ok(opened) => opened,
            Err(_) => {
                let (at, limit) = (settings.own.redacted_uri(), settings.delivery.timeout);
                Err(SinkDown::new(format!("cannot connect to {at}: no answer within {limit:?}")))
            }
        }
    }

    async fn connect(settings: &RabbitMqSettings, refusals: &Arc<Refusals>) -> lapin::Result<Self> {
        let name = format!("postrider {}", settings.name);
        let properties = ConnectionProperties::default().with_connection_name(name.into());
        let io = |detail: &str| lapin::Error::from(std::io::Error::other(detail));
        let connection = ConnectionBuilder::new()?
            .with_uri(settings.own.parsed_uri().map_err(|detail| io(&detail))?)
            .with_tls_config(settings.own.tls().map_err(|error| io(&error.to_string()))?)
            .with_properties(properties)
            .connect()
            .await?;
        let asked = Instant::now();
        let channel = connection.create_channel().await?;
        channel.confirm_select(ConfirmSelectOptions::default()).await?;
        let asked = asked.elapsed();
        let (state, _) = watch::channel(LinkState::Up);
        let (requests, queue) = mpsc::unbounded_channel();
        let exchanges = Arc::new(Exchanges::new(refusals.clone()));
        let watched = Watched { state: state.clone(), exchanges: exchanges.clone() };
        // Ends when the link is dropped and the last confirm is in; so does the watch, with
        // the connection's last handle.
        tokio::spawn(publisher::run(channel, queue, watched, state.subscribe()));
        tokio::spawn(watch_events(connection.events_listener(), state.clone()));
        Ok(Self {
            connection,
            exchanges,
            requests,
            state,
            left_behind: CancellationToken::new(),
            overdue: AtomicUsize::new(0),
            asked,
            carried: AtomicUsize::new(0),
            pulse: Pulse::new(),
        })
    }

    pub(super) fn state(&self) -> LinkState {
        self.state.borrow().clone()
    }

    /// The largest frame of this connection, in bytes; 0 for no limit.
    pub(super) fn frame_max(&self) -> u32 {
        self.connection.configuration().frame_max()
    }

    pub(super) fn exchanges(&self) -> LookUp<'_> {
        LookUp { exchanges: &self.exchanges, connection: &self.connection }
    }

    /// A channel for one message to a target that was forbidden.
    pub(super) async fn trial(&self) -> lapin::Result<Trial> {
        Trial::open(&self.connection, self.exchanges.clone(), self.state.subscribe()).await
    }

    /// Gives a message to the publisher.
    pub(super) fn hand_over(&self, request: Request) -> Result<(), ()> {
        self.requests.send(request).map_err(|_| ())
    }

    /// No further publish; those under way end now.
    pub(super) fn retire(&self, why: SinkDown) {
        go_down(&self.state, why);
    }

    /// Whether the broker answers on this connection.
    pub(super) async fn answers(&self, limit: Duration) -> bool {
        let asking = async {
            let channel = self.connection.create_channel().await?;
            channel.close(200, "probed".into()).await
        };
        matches!(tokio::time::timeout(limit, asking).await, Ok(Ok(())))
    }

    /// What an answer may take on this connection behind the payloads that are under way, if it is
    /// sound: a line for a megabyte a second is slow, and no more than that.
    pub(super) fn longest_answer(&self) -> Duration {
        let carried = self.carried.load(Ordering::Relaxed);
        let kilobytes = u32::try_from(carried >> 10).unwrap_or(u32::MAX);
        self.asked.saturating_mul(4) + Duration::from_secs(1).saturating_mul(kilobytes) / 1024
    }

    /// Counts a payload of so many bytes that waits for its confirm, until the answer is dropped.
    pub(super) fn count_payload(&self, bytes: usize) -> Counted<'_> {
        Counted::new(&self.carried, bytes)
    }

    pub(super) fn status(&self) -> ConnectionStatus {
        self.connection.status().clone()
    }

    /// Another link is in use: nothing is handed over to this one any more, and what waits on it is
    /// waited for.
    pub(super) fn leave_behind(&self) {
        self.left_behind.cancel();
    }

    /// Counts a message that waits for its confirm for long, until the answer is dropped.
    pub(super) fn count_overdue(&self) -> Counted<'_> {
        Counted::new(&self.overdue, 1)
    }

    /// How many messages wait for their confirms for long.
    pub(super) fn overdue(&self) -> usize {
        self.overdue.load(Ordering::Relaxed)
    }

    pub(super) fn is_left_behind(&self) -> bool {
        self.left_behind.is_cancelled()
    }

    /// Resolves when another link is in use.
    pub(super) async fn left_behind(&self) {
        self.left_behind.cancelled().await;
    }

    /// Resolves while the broker has blocked the connection.
    pub(super) async fn blocked(&self) -> SinkDown {
        let mut state = self.state.subscribe();
        let blocked = state.wait_for(|state| matches!(state, LinkState::Blocked(_))).await;
        match blocked.as_deref() {
            Ok(LinkState::Blocked(down)) => down.clone(),
            // The sender lives in this link.
            _ => SinkDown::new("connection lost"),
        }
    }

    /// Says goodbye to the broker.
    pub(super) async fn close(&self, limit: Duration) {
        go_down(&self.state, SinkDown::new("closed"));
        // A broker that does not answer sees the connection end all the same.
        let _ = tokio::time::timeout(limit, self.connection.close(200, "OK".into())).await;
    }
}

fn go_down(state: &watch::Sender<LinkState>, why: SinkDown) {
    state.send_if_modified(|state| {
        let was_down = matches!(state, LinkState::Down(_));
        if !was_down {
            *state = LinkState::Down(why);
        }
        !was_down
    });
}

async fn watch_events(
    events: impl futures_util::Stream<Item = Event> + Send + 'static,
    state: watch::Sender<LinkState>,
) {
    let mut events = std::pin::pin!(events);
    while let Some(event) = events.next().await {
        match event {
            Event::ConnectionBlocked(reason) => {
                let why = format!("the broker has blocked the connection: {reason}");
                state.send_if_modified(|state| {
                    let was_up = *state == LinkState::Up;
                    if was_up {
                        *state = LinkState::Blocked(SinkDown::new(why));
                    }
                    was_up
                });
            }
            Event::ConnectionUnblocked => {
                state.send_if_modified(|state| {
                    let was_blocked = matches!(state, LinkState::Blocked(_));
                    if was_blocked {
                        *state = LinkState::Up;
                    }
                    was_blocked
                });
            }
            // Errors are of single channels too, and reach whoever waits on these.
            _ => {}
        }
    }
    go_down(&state, SinkDown::new("connection lost"));
}

/// The publisher's view of its link.
struct Watched {
    state: watch::Sender<LinkState>,
    exchanges: Arc<Exchanges>,
}

impl Owner for Watched {
    fn channel_lost(&self, why: SinkDown) {
        go_down(&self.state, why);
    }

    fn refused(&self, target: &Target, refusal: Refusal) {
        self.exchanges.note(target, refusal);
    }
}
