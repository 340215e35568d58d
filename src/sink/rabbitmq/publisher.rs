//! The one task that publishes on a link and collects its confirms.
//!
//! It is one task, since only so can a round of confirms be closed: every answer that was ready
//! before another one is in the same round, or in one before ([`Returns`]).

use std::collections::{HashMap, VecDeque};
use std::future::{Future, ready};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use lapin::message::BasicReturnMessage;
use lapin::options::BasicPublishOptions;
use lapin::types::ShortString;
use lapin::{Channel, Confirmation};
use tokio::sync::{mpsc, oneshot};
use tokio::task::coop::unconstrained;

use crate::failpoint;
use crate::sink::rabbitmq::closure::{self, ACCESS_REFUSED, NOT_FOUND};
use crate::sink::rabbitmq::rendering::Rendered;
use crate::sink::rabbitmq::returns::Returns;
use crate::sink::{PublishError, SinkDown, Verdict};

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
    /// The broker refuses this exchange, for this reason and in these words.
    fn exchange_closed(&self, name: &ShortString, code: u16, words: &str);
}

type Publishing = Pin<Box<dyn Future<Output = Published> + Send>>;

struct Published {
    outstanding: Outstanding,
    answer: Answered,
}

struct Outstanding {
    id: String,
    exchange: ShortString,
    reply: Reply,
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
    /// Ids that are not answered, with what waits behind the same id: a return names nothing else.
    ids: HashMap<String, VecDeque<Request>>,
    returns: Returns<Outstanding>,
    /// Some message was lost with the channel: none of those that follow was alone on it.
    lost: bool,
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

/// Publishes whatever comes until the link is dropped: whoever waits for an answer holds it.
pub(super) async fn run<O: Owner>(
    channel: Channel,
    mut requests: mpsc::UnboundedReceiver<Request>,
    owner: O,
) {
    let mut publisher = Publisher {
        channel,
        owner,
        outstanding: FuturesUnordered::new(),
        ids: HashMap::new(),
        returns: Returns::default(),
        lost: false,
        woken: Arc::default(),
    };
    let mut open = true;
    let mut batch = Vec::new();
    while open {
        tokio::select! {
            count = requests.recv_many(&mut batch, 256) => {
                open = count > 0;
                batch.drain(..).for_each(|request| publisher.accept(request));
            }
            Some(first) = publisher.outstanding.next() => publisher.round(first),
        }
    }
}

impl<O: Owner> Publisher<O> {
    fn accept(&mut self, request: Request) {
        match self.ids.get_mut(&request.rendered.id) {
            Some(behind) => behind.push_back(request),
            None => self.publish(request),
        }
    }

    fn publish(&mut self, request: Request) {
        let Request { rendered, mandatory, reply } = request;
        let Rendered { id, exchange, routing_key, properties, payload } = rendered;
        self.ids.entry(id.clone()).or_default();
        let outstanding = Outstanding { id, exchange: exchange.clone(), reply };
        let channel = self.channel.clone();
        let mut publishing: Publishing = Box::pin(unconstrained(async move {
            let options = BasicPublishOptions { mandatory, ..Default::default() };
            let connected = channel.status().connected();
            let sent =
                channel.basic_publish(exchange, routing_key, options, &payload, properties).await;
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
                Some(words) => Err(PublishError::new(Verdict::Charge, words)),
            };
            self.answer(answer.of, result);
        }
    }

    /// Tells the outcome, and publishes what waited behind the same id: not before, since a
    /// return that is still to come would then be either's.
    fn answer(&mut self, outstanding: Outstanding, result: Result<(), PublishError>) {
        let Outstanding { id, reply, .. } = outstanding;
        // Whoever waited may have given up.
        let _ = reply.send(result);
        if let Some(mut behind) = self.ids.remove(&id)
            && let Some(next) = behind.pop_front()
        {
            self.publish(next);
            if let Some(slot) = self.ids.get_mut(&id) {
                *slot = behind;
            }
        }
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
                self.returns.note_confirm(outstanding.id.clone(), outstanding, clear);
                clear
            }
            Answered::Nacked(returned) => {
                let clear = self.note_return(returned);
                self.returns.forget(&outstanding.id);
                let detail = "the broker refused it (basic.nack)";
                self.answer(outstanding, Err(PublishError::new(Verdict::Charge, detail)));
                clear
            }
            Answered::Unconfirmed => {
                let detail = "the channel gives no confirms";
                self.answer(outstanding, Err(PublishError::new(Verdict::Unknown, detail)));
                false
            }
            Answered::NotSent(error) => {
                self.owner.channel_lost(SinkDown::new(format!("the channel is gone: {error}")));
                self.answer(outstanding, Err(PublishError::new(Verdict::Down, error)));
                false
            }
            Answered::Lost(error) => {
                self.owner.channel_lost(SinkDown::new(format!("the channel is gone: {error}")));
                // The last to be noted is not the only one that there was.
                let only = !self.lost && self.outstanding.is_empty();
                self.lost = true;
                let judged = closure::judge(&error, outstanding.exchange.as_str(), only);
                if judged.verdict == Verdict::Charge
                    && let Some((code @ (ACCESS_REFUSED | NOT_FOUND), words)) =
                        closure::broker_said(&error)
                {
                    self.owner.exchange_closed(&outstanding.exchange, code, &words);
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
