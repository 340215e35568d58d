//! One connection to the broker: opened, watched, retired. A lost one is never revived; the next probe opens
//! another.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use lapin::options::ConfirmSelectOptions;
use lapin::types::ShortString;
use lapin::{Channel, ConnectionStatus, Event};
use postrider_relay::sink::{PublishError, SinkDown};
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use crate::active_link;
use crate::liveness::Liveness;
use crate::rabbitmq::broker_error::{self, CONNECTION_LOST, Refusal};
use crate::rabbitmq::config::RabbitMqSettings;
use crate::rabbitmq::connection::Connection;
use crate::rabbitmq::control_connection::{self, ControlConnection};
use crate::rabbitmq::exchanges::Exchanges;
use crate::rabbitmq::link_state::LinkState;
use crate::rabbitmq::metrics::RabbitMqMetrics;
use crate::rabbitmq::publisher::{self, Observer, Request};
use crate::rabbitmq::refused_targets::RefusedTargets;
use crate::rabbitmq::rendering::Target;
use crate::rabbitmq::topology;
use crate::rabbitmq::trial_channel::TrialChannel;
use crate::rabbitmq::uri::REQUIRED_CHANNELS;

/// How often the state of an idle connection is checked: `lapin` reports its end only to callers that wait for an
/// answer.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);

/// One connection with its publishing channel, which nothing else uses.
#[derive(Debug)]
pub(super) struct Link {
    connection: Connection,
    /// Has no other use. One that were opened for each question would get a number that was used before.
    liveness_channel: Channel,
    control: Arc<ControlConnection>,
    exchanges: Arc<Exchanges>,
    pub(super) requests: mpsc::UnboundedSender<Request>,
    state: watch::Sender<LinkState>,
    replaced: CancellationToken,
    /// The number of messages without a confirm for long.
    overdue: AtomicUsize,
    /// The time that the first requests to the broker took.
    round_trip: Duration,
    /// The bytes of the payloads without a confirm.
    unconfirmed_bytes: AtomicUsize,
    pub(super) liveness: Liveness,
    metrics: Arc<RabbitMqMetrics>,
}

/// Part of a sum, until it is dropped.
#[derive(Debug)]
pub(super) struct Summand<'a> {
    sum: &'a AtomicUsize,
    value: usize,
}

impl<'a> Summand<'a> {
    fn new(sum: &'a AtomicUsize, value: usize) -> Self {
        sum.fetch_add(value, Ordering::Relaxed);
        Self { sum, value }
    }
}

impl Drop for Summand<'_> {
    fn drop(&mut self) {
        self.sum.fetch_sub(self.value, Ordering::Relaxed);
    }
}

impl active_link::Link for Link {
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
                () = tokio::time::sleep(CHECK_INTERVAL) => {
                    if !self.connection.inner().status().connected() {
                        go_down(&self.state, SinkDown::new(CONNECTION_LOST));
                    }
                }
            }
        }
    }

    async fn is_usable(&self, limit: Duration) -> Result<bool, SinkDown> {
        match self.state() {
            LinkState::Up => tokio::select! {
                answers = self.answers(limit) => {
                    // The messages without a confirm stay on this one, whatever the other one does.
                    if answers {
                        self.control.probe().await?;
                    }
                    Ok(answers)
                }
                // `lapin` may leave a request open that came just before its end.
                down = self.lost() => match self.state() {
                    LinkState::Down(_) => Ok(false),
                    LinkState::Up | LinkState::Blocked(_) => Err(down),
                },
            },
            // The connection works again when the broker unblocks it.
            LinkState::Blocked(down) => Err(down),
            LinkState::Down(_) => Ok(false),
        }
    }

    fn retire(&self, cause: SinkDown) {
        go_down(&self.state, cause);
    }
}

impl Link {
    /// Connects, makes sure that look-ups are answered, and creates the declared topology, within the sink's
    /// timeout.
    ///
    /// # Errors
    ///
    /// [`SinkDown`]: no broker, wrong credentials, a missing vhost, too few channels; without the password.
    pub(super) async fn open(
        settings: &RabbitMqSettings,
        control: &Arc<ControlConnection>,
        refused: &Arc<RefusedTargets>,
        metrics: &Arc<RabbitMqMetrics>,
    ) -> Result<Self, SinkDown> {
        let limit = settings.delivery.timeout;
        let opening = async {
            // Side by side: each handshake takes several round trips.
            let connecting = Self::connect(settings, control, refused, metrics);
            let (link, ()) = tokio::try_join!(connecting, control.probe())?;
            topology::declare(control, &settings.name, &settings.own.declare).await?;
            Ok(link)
        };
        tokio::time::timeout(limit, opening).await.unwrap_or_else(|_| {
            let down = SinkDown::new(format!("no response within {limit:?}"));
            Err(down.preceded_by(broker_error::cannot_connect(&settings.own)))
        })
    }

    /// Connects, and does nothing else.
    ///
    /// # Errors
    ///
    /// The same.
    pub(super) async fn connect(
        settings: &RabbitMqSettings,
        control: &Arc<ControlConnection>,
        refused: &Arc<RefusedTargets>,
        metrics: &Arc<RabbitMqMetrics>,
    ) -> Result<Self, SinkDown> {
        let failed = |error| broker_error::connect_error(&error, &settings.own);
        let name = format!("postrider {}", settings.name);
        let connection = Connection::open(settings, &name).await.map_err(failed)?;
        metrics.opened();
        let channel_max = connection.channel_max();
        if channel_max < REQUIRED_CHANNELS {
            return Err(broker_error::too_few_channels(channel_max, &settings.own));
        }
        let begin = Instant::now();
        let opening = async {
            let channel = connection.open_channel().await?;
            let confirming = channel.confirm_select(ConfirmSelectOptions::default());
            connection.answer(confirming).await?;
            Ok::<_, lapin::Error>((channel, begin.elapsed()))
        };
        let opened = tokio::try_join!(opening, connection.open_channel());
        let ((channel, round_trip), liveness_channel) = opened.map_err(failed)?;
        let (state, _) = watch::channel(LinkState::Up);
        let (requests, queue) = mpsc::unbounded_channel();
        let exchanges = Arc::new(Exchanges::new(refused.clone()));
        let observer = LinkObserver { state: state.clone(), exchanges: exchanges.clone() };
        // The publisher ends when the link is dropped and the last confirm has arrived; the watch ends with
        // the connection.
        tokio::spawn(publisher::run(channel, queue, observer, state.subscribe(), metrics.clone()));
        let events = connection.inner().events_listener();
        tokio::spawn(watch_events(events, state.clone(), metrics.clone()));
        Ok(Self {
            connection,
            liveness_channel,
            control: control.clone(),
            exchanges,
            requests,
            state,
            replaced: CancellationToken::new(),
            overdue: AtomicUsize::new(0),
            round_trip,
            unconfirmed_bytes: AtomicUsize::new(0),
            liveness: Liveness::new(),
            metrics: metrics.clone(),
        })
    }

    pub(super) fn state(&self) -> LinkState {
        self.state.borrow().clone()
    }

    /// Returns the frame limit of this connection, in bytes; 0 for none.
    pub(super) fn frame_max(&self) -> u32 {
        self.connection.inner().configuration().frame_max()
    }

    /// Makes sure that an exchange accepts messages: see [`Exchanges::look_up`].
    pub(super) async fn look_up(&self, exchange: &ShortString) -> Result<(), PublishError> {
        self.exchanges.look_up(&self.control, exchange).await
    }

    /// Returns whether [`look_up`](Self::look_up) would answer without a request.
    pub(super) fn knows(&self, exchange: &ShortString) -> bool {
        self.exchanges.knows(exchange)
    }

    /// Opens a channel for one message with a routing key that was forbidden, or was never tried.
    pub(super) async fn open_trial_channel(&self) -> Result<TrialChannel, SinkDown> {
        let state = self.state.subscribe();
        let metrics = self.metrics.clone();
        TrialChannel::open(&self.control, self.exchanges.clone(), state, metrics).await
    }

    /// Returns whether the broker answers on this connection.
    pub(super) async fn answers(&self, limit: Duration) -> bool {
        control_connection::answers(&self.liveness_channel, limit).await
    }

    /// Returns how long an answer may take behind the unconfirmed payloads, if the connection works: a line
    /// for one megabyte per second is only slow.
    pub(super) fn answer_limit(&self) -> Duration {
        let bytes = self.unconfirmed_bytes.load(Ordering::Relaxed);
        let kilobytes = u32::try_from(bytes >> 10).unwrap_or(u32::MAX);
        self.round_trip.saturating_mul(4) + Duration::from_secs(1).saturating_mul(kilobytes) / 1024
    }

    /// Counts a payload without a confirm until the returned value is dropped.
    pub(super) fn count_payload(&self, bytes: usize) -> Summand<'_> {
        Summand::new(&self.unconfirmed_bytes, bytes)
    }

    /// Counts a message without a confirm for long until the returned value is dropped.
    pub(super) fn count_overdue(&self) -> Summand<'_> {
        Summand::new(&self.overdue, 1)
    }

    /// Returns the number of messages without a confirm for long.
    pub(super) fn overdue(&self) -> usize {
        self.overdue.load(Ordering::Relaxed)
    }

    pub(super) fn status(&self) -> ConnectionStatus {
        self.connection.inner().status().clone()
    }

    /// Marks that another link is in use: nothing more is sent on this one, and its messages keep their time
    /// for a confirm.
    pub(super) fn mark_replaced(&self) {
        self.replaced.cancel();
    }

    pub(super) fn is_replaced(&self) -> bool {
        self.replaced.is_cancelled()
    }

    /// Resolves when another link is in use.
    pub(super) async fn replaced(&self) {
        self.replaced.cancelled().await;
    }

    /// Resolves when the broker blocks the connection.
    pub(super) async fn blocked(&self) -> SinkDown {
        let mut state = self.state.subscribe();
        let blocked = state.wait_for(|state| matches!(state, LinkState::Blocked(_))).await;
        match blocked.as_deref() {
            Ok(LinkState::Blocked(down)) => down.clone(),
            // The sender lives in this link.
            _ => SinkDown::new(CONNECTION_LOST),
        }
    }

    /// Closes the connection gracefully.
    pub(super) async fn close(&self, limit: Duration) {
        go_down(&self.state, SinkDown::new("closed"));
        // A broker that does not answer sees the end of the connection in any case.
        let _ = tokio::time::timeout(limit, self.connection.inner().close(200, "OK".into())).await;
    }
}

fn go_down(state: &watch::Sender<LinkState>, cause: SinkDown) {
    change_state(state, LinkState::Down(cause), |state| !matches!(state, LinkState::Down(_)));
}

/// Changes the state if the present one allows it.
fn change_state(
    state: &watch::Sender<LinkState>,
    new: LinkState,
    is_allowed: impl FnOnce(&LinkState) -> bool,
) {
    state.send_if_modified(|state| {
        let changes = is_allowed(state);
        if changes {
            *state = new;
        }
        changes
    });
}

async fn watch_events(
    events: impl futures_util::Stream<Item = Event> + Send + 'static,
    state: watch::Sender<LinkState>,
    metrics: Arc<RabbitMqMetrics>,
) {
    let mut blocked_connection = None;
    let mut events = std::pin::pin!(events);
    let mut link = state.subscribe();
    loop {
        let event = tokio::select! {
            event = events.next() => event,
            // `lapin` (4.12) does not end the events of a connection that is lost.
            _ = link.wait_for(|state| matches!(state, LinkState::Down(_))) => return,
        };
        let Some(event) = event else { break };
        match event {
            Event::ConnectionBlocked(reason) => {
                blocked_connection.get_or_insert_with(|| metrics.count_blocked());
                let cause = format!("the broker has blocked the connection: {reason}");
                let blocked = LinkState::Blocked(SinkDown::new(cause));
                change_state(&state, blocked, |state| *state == LinkState::Up);
            }
            Event::ConnectionUnblocked => {
                blocked_connection = None;
                change_state(&state, LinkState::Up, |state| matches!(state, LinkState::Blocked(_)));
            }
            // Errors of single channels are among them, and reach the callers that wait on these.
            _ => {}
        }
    }
    go_down(&state, SinkDown::new(CONNECTION_LOST));
}

/// Applies what the publisher learns to its link.
struct LinkObserver {
    state: watch::Sender<LinkState>,
    exchanges: Arc<Exchanges>,
}

impl Observer for LinkObserver {
    fn channel_lost(&self, cause: SinkDown) {
        go_down(&self.state, cause);
    }

    fn target_refused(&self, target: &Target, refusal: Refusal) {
        self.exchanges.note_refusal(target, refusal);
    }
}
