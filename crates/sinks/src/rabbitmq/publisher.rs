//! The one task that publishes on a link and collects its confirms.
//!
//! It is one task, since only so can a round of confirms be closed: every answer that was ready
//! before another one is in the same round, or in one before ([`Returns`]).

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

use crate::rabbitmq::closure::{self, Refusal};
use crate::rabbitmq::link_state::LinkState;
use crate::rabbitmq::rendering::{Rendered, Target};
use crate::rabbitmq::returns::Returns;

type Reply = oneshot::Sender<Result<(), PublishError>>;

/// One message to publish, and whom to tell.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) rendered: Rendered,
    pub(super) mandatory: bool,
    pub(super) reply: Reply,
}

/// What the publisher tells its link.
pub(super) trait Owner: Send + Sync + 'static {
    /// The channel is gone.
    fn channel_lost(&self, why: SinkDown);
    /// The broker refuses what goes to this target.
    fn refused(&self, target: &Target, refusal: Refusal);
}

/// How long the answers of a link that went down are waited for. If the broker closed the channel,
/// the client library reports that for each of its messages within milliseconds.
const LAST_WORDS: Duration = Duration::from_millis(250);

/// How many publishes may stay unconfirmed after their callers gave up: each takes some hundred
/// bytes for as long as the channel lives.
const MAX_OWED: usize = 10_000;

type Publishing = Pin<Box<dyn Future<Output = Published> + Send>>;

struct Published {
    outstanding: Outstanding,
    answer: Answered,
}

struct Outstanding {
    id: String,
    /// Distinguishes it from an earlier one of the same id.
    serial: u64,
    target: Target,
}

/// The latest publish of an id that is not answered.
struct Unanswered {
    serial: u64,
    reply: Reply,
    /// What waits behind the same id, since a return names nothing else.
    behind: VecDeque<Request>,
}

enum Answered {
    NotSent(lapin::Error),
    Lost(lapin::Error),
    Acked(Option<Box<BasicReturnMessage>>),
    Nacked(Option<Box<BasicReturnMessage>>),
    /// Not asked for: impossible on a channel in confirm mode, and no proof of anything.
    Unconfirmed,
}

impl From<Confirmation> for Answered {
    fn from(confirmation: Confirmation) -> Self {
        match confirmation {
            Confirmation::Ack(returned) => Self::Acked(returned.map(Box::new)),
            Confirmation::Nack(returned) => Self::Nacked(returned.map(Box::new)),
            Confirmation::NotRequested => Self::Unconfirmed,
        }
    }
}

struct Publisher<O> {
    channel: Channel,
    owner: O,
    outstanding: FuturesUnordered<Publishing>,
    unanswered: HashMap<String, Unanswered>,
    /// How many there have been.
    published: u64,
    returns: Returns<Outstanding>,
    /// Some message was lost with the channel: none of those that follow was alone on it.
    lost: bool,
    /// The link is down: nothing more is published.
    ends: bool,
    woken: Arc<Woken>,
}

/// Whether there may be more that is ready: `FuturesUnordered` ends a poll early now and then,
/// and wakes itself to say so.
#[derive(Debug, Default)]
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Release);
    }
}

/// Publishes requests until the link is dropped or goes down. When it goes down, all that is under
/// way is answered. It is not dropped before: each caller that waits for an answer holds it.
pub(super) async fn run<O: Owner>(
    channel: Channel,
    mut requests: mpsc::UnboundedReceiver<Request>,
    owner: O,
    mut link: watch::Receiver<LinkState>,
) {
    let mut publisher = Publisher {
        channel,
        owner,
        outstanding: FuturesUnordered::new(),
        unanswered: HashMap::new(),
        published: 0,
        returns: Returns::default(),
        lost: false,
        ends: false,
        woken: Arc::default(),
    };
    let mut batch = Vec::new();
    let down = loop {
        tokio::select! {
            count = requests.recv_many(&mut batch, 256) => {
                if count == 0 {
                    return;
                }
                batch.drain(..).for_each(|request| publisher.accept(request));
            }
            Some(first) = publisher.outstanding.next() => publisher.round(first),
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

impl<O: Owner> Publisher<O> {
    fn accept(&mut self, request: Request) {
        match self.unanswered.get_mut(&request.rendered.id) {
            Some(before) if !before.reply.is_closed() => before.behind.push_back(request),
            // No caller waits for an earlier one, if there is any: it may never be confirmed.
            _ => self.publish(request),
        }
    }

    /// Answers all that is under way.
    async fn end(mut self, down: SinkDown, mut requests: mpsc::UnboundedReceiver<Request>) {
        self.ends = true;
        requests.close();
        while let Ok(request) = requests.try_recv() {
            let _ = request.reply.send(Err(PublishError::new(PublishFailure::SinkDown, &down)));
        }
        let last_words = async {
            while let Some(first) = self.outstanding.next().await {
                self.round(first);
            }
        };
        let _ = tokio::time::timeout(LAST_WORDS, last_words).await;
        for (_, Unanswered { reply, behind, .. }) in self.unanswered.drain() {
            let _ = reply.send(Err(PublishError::new(PublishFailure::Indeterminate, &down)));
            for request in behind {
                let _ = request.reply.send(Err(PublishError::new(PublishFailure::SinkDown, &down)));
            }
        }
    }

    /// Gives the link up when it owes too many confirms for which no caller waits.
    fn limit_owed(&self) {
        if self.outstanding.len() <= MAX_OWED || !self.published.is_multiple_of(1_024) {
            return;
        }
        let waited_for = self.unanswered.values().filter(|one| !one.reply.is_closed()).count();
        let owed = self.outstanding.len() - waited_for.min(self.outstanding.len());
        if owed > MAX_OWED {
            let why = format!("the broker has left {owed} messages without a confirm");
            self.owner.channel_lost(SinkDown::new(why));
        }
    }

    fn publish(&mut self, request: Request) {
        let Request { rendered, mandatory, reply } = request;
        let Rendered { id, target, properties, payload } = rendered;
        self.published += 1;
        let serial = self.published;
        match self.unanswered.entry(id.clone()) {
            Entry::Occupied(mut before) => {
                let before = before.get_mut();
                (before.serial, before.reply) = (serial, reply);
                self.returns.give_up(&id);
            }
            Entry::Vacant(slot) => {
                slot.insert(Unanswered { serial, reply, behind: VecDeque::new() });
            }
        }
        self.limit_owed();
        let outstanding = Outstanding { id, serial, target: target.clone() };
        let channel = self.channel.clone();
        let mut publishing: Publishing = Box::pin(unconstrained(async move {
            let options = BasicPublishOptions { mandatory, ..Default::default() };
            let connected = channel.status().connected();
            let Target { exchange, routing_key } = target;
            let sent =
                channel.basic_publish(exchange, routing_key, options, &payload, properties).await;
            // It may be long until the confirm.
            drop(payload);
            let answer = match sent {
                Ok(confirm) => {
                    failpoint::hit("sink::after_handover");
                    match confirm.await {
                        Ok(confirmation) => Answered::from(confirmation),
                        Err(error) => Answered::Lost(error),
                    }
                }
                // Whether it was on its way is not known.
                Err(error) if connected => Answered::Lost(error),
                Err(error) => Answered::NotSent(error),
            };
            Published { outstanding, answer }
        }));
        // The first poll hands it to the channel: here, since the set would poll the last one first.
        let mut context = Context::from_waker(Waker::noop());
        match publishing.as_mut().poll(&mut context) {
            Poll::Ready(published) => self.outstanding.push(Box::pin(ready(published))),
            Poll::Pending => self.outstanding.push(publishing),
        }
    }

    /// Notes everything that is ready now, and answers what is certain.
    fn round(&mut self, first: Published) {
        let mut clear = false;
        let mut next = Some(first);
        while let Some(published) = next {
            clear |= self.note(published);
            next = self.next_ready();
        }
        let idle = self.outstanding.is_empty();
        for answer in self.returns.end_round(clear, idle) {
            let result = match answer.returned {
                None => Ok(()),
                Some(words) => Err(PublishError::new(PublishFailure::Retryable, words)),
            };
            self.answer(answer.of, result);
        }
    }

    /// Tells the outcome, and publishes what waited behind the same id: not before, since a
    /// return that is still to come would then be either's.
    fn answer(&mut self, outstanding: Outstanding, result: Result<(), PublishError>) {
        let Outstanding { id, serial, .. } = outstanding;
        if !self.is_latest(&id, serial) {
            return;
        }
        let Some(Unanswered { reply, mut behind, .. }) = self.unanswered.remove(&id) else {
            return;
        };
        // The publish that waited may have timed out.
        let _ = reply.send(result);
        // So may those behind it.
        behind.retain(|request| !request.reply.is_closed());
        if self.ends {
            for request in behind {
                let error = PublishError::new(PublishFailure::SinkDown, "the link is down");
                let _ = request.reply.send(Err(error));
            }
        } else if let Some(next) = behind.pop_front() {
            self.publish(next);
            if let Some(unanswered) = self.unanswered.get_mut(&id) {
                unanswered.behind = behind;
            }
        }
    }

    /// Whether no later message of the same id is under way.
    fn is_latest(&self, id: &str, serial: u64) -> bool {
        self.unanswered.get(id).is_some_and(|unanswered| unanswered.serial == serial)
    }

    /// One more that is ready; `None` when none was at a time after the last one.
    fn next_ready(&mut self) -> Option<Published> {
        let waker = Waker::from(self.woken.clone());
        let mut context = Context::from_waker(&waker);
        loop {
            self.woken.0.store(false, Ordering::Release);
            match self.outstanding.poll_next_unpin(&mut context) {
                Poll::Ready(published) => return published,
                Poll::Pending if self.woken.0.load(Ordering::Acquire) => {}
                Poll::Pending => return None,
            }
        }
    }

    /// Notes one answer; true where it shows that no return was waiting.
    fn note(&mut self, published: Published) -> bool {
        let Published { outstanding, answer } = published;
        match answer {
            Answered::Acked(returned) => {
                let clear = self.note_return(returned);
                if self.is_latest(&outstanding.id, outstanding.serial) {
                    self.returns.note_confirm(outstanding.id.clone(), outstanding, clear);
                }
                clear
            }
            Answered::Nacked(returned) => {
                let clear = self.note_return(returned);
                if self.is_latest(&outstanding.id, outstanding.serial) {
                    self.returns.forget(&outstanding.id);
                }
                let detail = "the broker refused it (basic.nack)";
                self.answer(outstanding, Err(PublishError::new(PublishFailure::Retryable, detail)));
                clear
            }
            Answered::Unconfirmed => {
                let detail = "the channel gives no confirms";
                self.answer(
                    outstanding,
                    Err(PublishError::new(PublishFailure::Indeterminate, detail)),
                );
                false
            }
            Answered::NotSent(error) => {
                self.owner.channel_lost(SinkDown::new(format!("the channel is gone: {error}")));
                self.answer(outstanding, Err(PublishError::new(PublishFailure::SinkDown, error)));
                false
            }
            Answered::Lost(error) => {
                self.owner.channel_lost(SinkDown::new(format!("the channel is gone: {error}")));
                // The last to be noted is not the only one that there was.
                let only = !self.lost && self.outstanding.is_empty();
                self.lost = true;
                let (judged, refusal) = closure::judge(&error, &outstanding.target, only);
                if let Some(refusal) = refusal {
                    self.owner.refused(&outstanding.target, refusal);
                }
                self.returns.forget(&outstanding.id);
                self.answer(outstanding, Err(judged));
                false
            }
        }
    }

    fn note_return(&mut self, returned: Option<Box<BasicReturnMessage>>) -> bool {
        let Some(returned) = returned else { return true };
        let id = returned.delivery.properties.message_id().as_ref();
        let id = id.map(|id| id.to_string()).unwrap_or_default();
        let words = format!(
            "no queue takes it (basic.return {} {}, exchange {:?}, routing key {:?})",
            returned.reply_code,
            returned.reply_text,
            returned.delivery.exchange.as_str(),
            returned.delivery.routing_key.as_str(),
        );
        self.returns.note_return(id, words);
        false
    }
}
