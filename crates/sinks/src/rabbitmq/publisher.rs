//! The task that publishes on a channel and collects its confirms.
//!
//! It is a single task, so that a round of confirms can be complete: every answer that was ready
//! before another one is in the same round, or in an earlier one ([`ReturnMatcher`]).

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::future::{Future, ready};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use lapin::message::BasicReturnMessage;
use lapin::options::BasicPublishOptions;
use lapin::{Channel, Confirmation};
use postrider_relay::sink::{PublishError, PublishFailure, SinkDown};
use postrider_store::failpoint;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::coop::unconstrained;

use crate::rabbitmq::broker_error::{self, Refusal};
use crate::rabbitmq::link_state::LinkState;
use crate::rabbitmq::metrics::RabbitMqMetrics;
use crate::rabbitmq::rendering::{Rendered, Target};
use crate::rabbitmq::return_matcher::ReturnMatcher;

type Reply = oneshot::Sender<Result<(), PublishError>>;

/// One message to publish, and where its outcome goes.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) rendered: Rendered,
    pub(super) mandatory: bool,
    pub(super) reply: Reply,
}

/// Receives what the publisher learns about its channel.
pub(super) trait Observer: Send + Sync + 'static {
    fn channel_lost(&self, cause: SinkDown);
    fn target_refused(&self, target: &Target, refusal: Refusal);
}

/// How long the answers on a link that went down may take. If the broker closed the channel,
/// `lapin` reports that for each of its messages within milliseconds.
const LAST_ANSWERS_TIMEOUT: Duration = Duration::from_millis(250);

/// The limit of the publishes that stay unconfirmed after their callers gave up: each takes some hundred
/// bytes as long as the channel lives.
const MAX_ABANDONED_PUBLISHES: usize = 10_000;

/// The limit of the requests that are received at a time.
const MAX_BATCH_REQUESTS: usize = 256;

type Publishing = Pin<Box<dyn Future<Output = Published> + Send>>;

struct Published {
    outstanding: Outstanding,
    answer: Answer,
}

struct Outstanding {
    id: String,
    /// Distinguishes it from an earlier one of the same id.
    serial: u64,
    target: Target,
}

/// The latest publish of an id without an outcome.
struct Unanswered {
    serial: u64,
    reply: Reply,
    /// The requests of the same id that wait for its outcome, since a return names only the id.
    waiting: VecDeque<Request>,
}

enum Answer {
    NotSent(lapin::Error),
    Lost(lapin::Error),
    Acked(Option<Box<BasicReturnMessage>>),
    Nacked(Option<Box<BasicReturnMessage>>),
    /// Impossible on a channel in confirm mode.
    NotRequested,
}

impl From<Confirmation> for Answer {
    fn from(confirmation: Confirmation) -> Self {
        match confirmation {
            Confirmation::Ack(returned) => Self::Acked(returned.map(Box::new)),
            Confirmation::Nack(returned) => Self::Nacked(returned.map(Box::new)),
            Confirmation::NotRequested => Self::NotRequested,
        }
    }
}

struct Publisher<O> {
    channel: Channel,
    observer: O,
    outstanding: FuturesUnordered<Publishing>,
    unanswered: HashMap<String, Unanswered>,
    /// The number of publishes so far.
    published: u64,
    returns: ReturnMatcher<Outstanding>,
    /// Whether a message was lost with the channel: none of those that follow was the only one on it.
    has_lost: bool,
    /// Whether the link is down: nothing is published any more.
    is_ending: bool,
    wake_flag: Arc<WakeFlag>,
    metrics: Arc<RabbitMqMetrics>,
}

/// Whether more may be ready: `FuturesUnordered` sometimes ends a poll early, and wakes its task for the rest.
#[derive(Debug, Default)]
struct WakeFlag(AtomicBool);

impl Wake for WakeFlag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Release);
    }
}

/// Publishes requests until the link is dropped or goes down. When it goes down, every request is answered. It is
/// not dropped before: each caller that waits for an answer holds it.
pub(super) async fn run<O: Observer>(
    channel: Channel,
    mut requests: mpsc::UnboundedReceiver<Request>,
    observer: O,
    mut link: watch::Receiver<LinkState>,
    metrics: Arc<RabbitMqMetrics>,
) {
    let mut publisher = Publisher {
        channel,
        observer,
        outstanding: FuturesUnordered::new(),
        unanswered: HashMap::new(),
        published: 0,
        returns: ReturnMatcher::default(),
        has_lost: false,
        is_ending: false,
        wake_flag: Arc::default(),
        metrics,
    };
    let mut batch = Vec::new();
    let down = loop {
        tokio::select! {
            count = requests.recv_many(&mut batch, MAX_BATCH_REQUESTS) => {
                if count == 0 {
                    return;
                }
                batch.drain(..).for_each(|request| publisher.accept(request));
            }
            Some(first) = publisher.outstanding.next() => publisher.process_round(first),
            state = link.wait_for(|state| matches!(state, LinkState::Down(_))) => {
                break match state.as_deref() {
                    Ok(LinkState::Down(down)) => down.clone(),
                    _ => SinkDown::new("the link was dropped"),
                };
            }
        }
    };
    publisher.end(down, requests).await;
}

impl<O: Observer> Publisher<O> {
    fn accept(&mut self, request: Request) {
        match self.unanswered.get_mut(&request.rendered.id) {
            Some(earlier) if !earlier.reply.is_closed() => earlier.waiting.push_back(request),
            // No caller waits for an earlier one, if there is one: it may never be confirmed.
            _ => self.publish(request),
        }
    }

    /// Answers every request.
    async fn end(mut self, down: SinkDown, mut requests: mpsc::UnboundedReceiver<Request>) {
        self.is_ending = true;
        requests.close();
        while let Ok(request) = requests.try_recv() {
            refuse(request, &down);
        }
        let last_answers = async {
            while let Some(first) = self.outstanding.next().await {
                self.process_round(first);
            }
        };
        let _ = tokio::time::timeout(LAST_ANSWERS_TIMEOUT, last_answers).await;
        for (_, Unanswered { reply, waiting, .. }) in self.unanswered.drain() {
            let _ = reply.send(Err(PublishError::new(PublishFailure::Indeterminate, &down)));
            waiting.into_iter().for_each(|request| refuse(request, &down));
        }
    }

    /// Ends the link when too many publishes stay unconfirmed for which no caller waits.
    fn limit_abandoned(&self) {
        let count = self.outstanding.len();
        if count <= MAX_ABANDONED_PUBLISHES || !self.published.is_multiple_of(1_024) {
            return;
        }
        let awaited = self.unanswered.values().filter(|one| !one.reply.is_closed()).count();
        let abandoned = count.saturating_sub(awaited);
        if abandoned > MAX_ABANDONED_PUBLISHES {
            let cause = format!("the broker did not confirm {abandoned} messages");
            self.observer.channel_lost(SinkDown::new(cause));
        }
    }

    fn publish(&mut self, request: Request) {
        let Request { rendered, mandatory, reply } = request;
        let Rendered { id, target, properties, payload } = rendered;
        self.published += 1;
        let serial = self.published;
        match self.unanswered.entry(id.clone()) {
            Entry::Occupied(mut earlier) => {
                let earlier = earlier.get_mut();
                (earlier.serial, earlier.reply) = (serial, reply);
                self.returns.abandon(&id);
            }
            Entry::Vacant(entry) => {
                entry.insert(Unanswered { serial, reply, waiting: VecDeque::new() });
            }
        }
        self.limit_abandoned();
        let outstanding = Outstanding { id, serial, target: target.clone() };
        let channel = self.channel.clone();
        let unconfirmed = self.metrics.count_unconfirmed();
        let mut publishing: Publishing = Box::pin(unconstrained(async move {
            let _unconfirmed = unconfirmed;
            let options = BasicPublishOptions { mandatory, ..Default::default() };
            let was_connected = channel.status().connected();
            let Target { exchange, routing_key } = target;
            let sent =
                channel.basic_publish(exchange, routing_key, options, &payload, properties).await;
            // The confirm may take long.
            drop(payload);
            let answer = match sent {
                Ok(confirm) => {
                    failpoint::hit("sink::after_handover");
                    match confirm.await {
                        Ok(confirmation) => Answer::from(confirmation),
                        Err(error) => Answer::Lost(error),
                    }
                }
                // It may have been sent.
                Err(error) if was_connected => Answer::Lost(error),
                Err(error) => Answer::NotSent(error),
            };
            Published { outstanding, answer }
        }));
        // The first poll sends it: in order here, while the set would begin with the last one.
        let mut context = Context::from_waker(Waker::noop());
        match publishing.as_mut().poll(&mut context) {
            Poll::Ready(published) => self.outstanding.push(Box::pin(ready(published))),
            Poll::Pending => self.outstanding.push(publishing),
        }
    }

    /// Notes every answer that is ready now, and replies to the requests whose outcome is certain.
    fn process_round(&mut self, first: Published) {
        let mut has_clear = false;
        let mut next = Some(first);
        while let Some(published) = next {
            has_clear |= self.note(published);
            next = self.next_ready();
        }
        let is_idle = self.outstanding.is_empty();
        for outcome in self.returns.end_round(has_clear, is_idle) {
            let result = match outcome.returned {
                None => Ok(()),
                Some(detail) => Err(PublishError::new(PublishFailure::Retryable, detail)),
            };
            self.reply(outcome.message, result);
        }
    }

    /// Replies to a request, and publishes the next one of the same id: not before, since a return of the
    /// earlier one could count for it.
    fn reply(&mut self, outstanding: Outstanding, result: Result<(), PublishError>) {
        let Outstanding { id, serial, .. } = outstanding;
        if !self.is_latest(&id, serial) {
            return;
        }
        let Some(Unanswered { reply, mut waiting, .. }) = self.unanswered.remove(&id) else {
            return;
        };
        // The callers of this one and of the next ones may have timed out.
        let _ = reply.send(result);
        waiting.retain(|request| !request.reply.is_closed());
        if self.is_ending {
            let down = SinkDown::new("the link is down");
            waiting.into_iter().for_each(|request| refuse(request, &down));
        } else if let Some(next) = waiting.pop_front() {
            self.publish(next);
            if let Some(unanswered) = self.unanswered.get_mut(&id) {
                unanswered.waiting = waiting;
            }
        }
    }

    /// Returns whether no later publish of the same id is outstanding.
    fn is_latest(&self, id: &str, serial: u64) -> bool {
        self.unanswered.get(id).is_some_and(|unanswered| unanswered.serial == serial)
    }

    /// Returns another publish with an answer; `None` if none was ready at a time after the last one.
    fn next_ready(&mut self) -> Option<Published> {
        let waker = Waker::from(self.wake_flag.clone());
        let mut context = Context::from_waker(&waker);
        loop {
            self.wake_flag.0.store(false, Ordering::Release);
            match self.outstanding.poll_next_unpin(&mut context) {
                Poll::Ready(published) => return published,
                Poll::Pending if self.wake_flag.0.load(Ordering::Acquire) => {}
                Poll::Pending => return None,
            }
        }
    }

    /// Notes one answer. Returns whether it is clear: it shows that no return was waiting.
    fn note(&mut self, published: Published) -> bool {
        let Published { outstanding, answer } = published;
        match answer {
            Answer::Acked(returned) => {
                let is_clear = self.note_return(returned);
                if self.is_latest(&outstanding.id, outstanding.serial) {
                    self.returns.note_confirm(outstanding.id.clone(), outstanding, is_clear);
                }
                is_clear
            }
            Answer::Nacked(returned) => {
                let is_clear = self.note_return(returned);
                if self.is_latest(&outstanding.id, outstanding.serial) {
                    self.returns.forget(&outstanding.id);
                }
                let detail = "the broker rejected it (basic.nack)";
                self.reply(outstanding, Err(PublishError::new(PublishFailure::Retryable, detail)));
                is_clear
            }
            Answer::NotRequested => {
                let detail = "the channel returns no confirms";
                let error = PublishError::new(PublishFailure::Indeterminate, detail);
                self.reply(outstanding, Err(error));
                false
            }
            Answer::NotSent(error) => {
                self.observer.channel_lost(channel_closed(&error));
                self.reply(outstanding, Err(PublishError::new(PublishFailure::SinkDown, error)));
                false
            }
            Answer::Lost(error) => {
                self.observer.channel_lost(channel_closed(&error));
                // The last one to be noted was not the only one.
                let is_only = !self.has_lost && self.outstanding.is_empty();
                self.has_lost = true;
                let (publish_error, refusal) =
                    broker_error::publish_error(&error, &outstanding.target, is_only);
                if let Some(refusal) = refusal {
                    self.observer.target_refused(&outstanding.target, refusal);
                }
                self.returns.forget(&outstanding.id);
                self.reply(outstanding, Err(publish_error));
                false
            }
        }
    }

    /// Notes the return that came with an answer. Returns whether there was none.
    fn note_return(&mut self, returned: Option<Box<BasicReturnMessage>>) -> bool {
        let Some(returned) = returned else { return true };
        self.metrics.returned();
        let id = returned.delivery.properties.message_id().as_ref();
        let id = id.map(|id| id.to_string()).unwrap_or_default();
        let detail = format!(
            "no queue is bound for it (basic.return {} {}, exchange {:?}, routing key {:?})",
            returned.reply_code,
            returned.reply_text,
            returned.delivery.exchange.as_str(),
            returned.delivery.routing_key.as_str(),
        );
        self.returns.note_return(id, detail);
        false
    }
}

/// Replies to a request that was not published.
fn refuse(request: Request, down: &SinkDown) {
    // Its caller may have timed out.
    let _ = request.reply.send(Err(down.clone().into()));
}

fn channel_closed(error: &lapin::Error) -> SinkDown {
    SinkDown::new(format!("the channel is closed: {error}"))
}
