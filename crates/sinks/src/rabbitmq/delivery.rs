//! Publishes a message on the link in use, and waits for its confirm.

use std::fmt;
use std::future::Future;
use std::sync::Arc;

use lapin::types::ShortString;
use postrider_relay::sink::{PublishError, PublishFailure, SinkDown};
use tokio::sync::{Mutex, MutexGuard, SemaphorePermit, mpsc, oneshot};
use tokio::time::Instant;

use crate::active_link::Link as _;
use crate::liveness::Unresponsive;
use crate::rabbitmq::RabbitMq;
use crate::rabbitmq::link::Link;
use crate::rabbitmq::link_state::LinkState;
use crate::rabbitmq::publisher::Request;
use crate::rabbitmq::refused_targets::Admission;
use crate::rabbitmq::rendering::Rendered;

const LINK_REPLACED: &str = "the broker does not respond on the sink's connection";

impl RabbitMq {
    /// Publishes a message until `until`.
    pub(super) async fn deliver(
        &self,
        rendered: Rendered,
        until: Instant,
    ) -> Result<(), PublishError> {
        let link = self.link_with(&rendered.target.exchange, until).await?;
        let result = match self.refused.admit(&rendered.target) {
            Admission::Allowed => {
                self.publish_on(&link, &link.requests, None, rendered, until).await
            }
            Admission::Trial | Admission::Untested(_) if self.is_isolated => {
                self.try_alone(&link, rendered, until).await
            }
            Admission::Trial => self.try_target(&link, rendered, until).await,
            Admission::Refused(error) => Err(error),
            Admission::Untested(trial) => self.test_target(&trial, &link, rendered, until).await,
        };
        result.map_err(|error| {
            // The loss of a replaced link is not the loss of the sink, which has another.
            let is_abandoned = !error.failure.is_answer() && link.is_replaced();
            let failure = if is_abandoned { PublishFailure::Abandoned } else { error.failure };
            PublishError { failure, ..error }
        })
    }

    /// Returns the link in use, if it can be published on.
    pub(super) fn usable_link(&self) -> Result<Arc<Link>, PublishError> {
        let link = self.link.get().ok_or_else(|| not_sent("not connected"))?;
        match link.state() {
            LinkState::Up => Ok(link),
            LinkState::Blocked(down) | LinkState::Down(down) => Err(down.into()),
        }
    }

    /// Returns the link in use after it has looked up the exchange. Until then nothing is sent.
    async fn link_with(
        &self,
        exchange: &ShortString,
        until: Instant,
    ) -> Result<Arc<Link>, PublishError> {
        loop {
            let link = self.usable_link()?;
            let looking_up = link.look_up(exchange);
            match self.prepare(&link, "the exchange's look-up", looking_up, until).await {
                Ok(looked_up) => return looked_up.map(|()| link),
                Err(error) if !link.is_replaced() => return Err(error),
                // Too little time is left for the other link.
                Err(error) if self.is_late(until) => {
                    return Err(PublishError { failure: PublishFailure::Abandoned, ..error });
                }
                Err(_) => {}
            }
        }
    }

    /// Returns whether less than half of a publish's time is left: a link that does not answer within it is not
    /// at fault.
    fn is_late(&self, until: Instant) -> bool {
        until < Instant::now() + self.settings.delivery.timeout / 2
    }

    /// Publishes a message to a target that was never tried: the first one on a trial channel, those that came
    /// meanwhile after it, in their order.
    async fn test_target(
        &self,
        trial: &Mutex<()>,
        link: &Link,
        rendered: Rendered,
        until: Instant,
    ) -> Result<(), PublishError> {
        let target = &rendered.target;
        let admission = async {
            let trial = trial.lock().await;
            match self.refused.admit(target) {
                Admission::Refused(error) => Err(error),
                Admission::Allowed => Ok((trial, None)),
                Admission::Untested(_) | Admission::Trial => Ok((trial, self.trial_permit().await)),
            }
        };
        let (trial, permit) = self.wait_for_trial(link, admission, until).await??;
        if self.is_late(until) {
            let detail = "the first messages to its destination took too long";
            return Err(PublishError::new(PublishFailure::Unconfirmed, detail));
        }
        if permit.is_none() {
            return self.publish_on(link, &link.requests, Some(trial), rendered, until).await;
        }
        let mut trying = std::pin::pin!(self.publish_on_trial(link, rendered, until));
        tokio::select! {
            biased;
            tried = &mut trying => return tried,
            // Another link can try it.
            () = link.replaced() => drop(trial),
        }
        trying.await
    }

    /// Publishes a message with a routing key that was forbidden some time ago.
    async fn try_target(
        &self,
        link: &Link,
        rendered: Rendered,
        until: Instant,
    ) -> Result<(), PublishError> {
        let _permit = self.wait_for_trial(link, self.trial_permit(), until).await?;
        self.publish_on_trial(link, rendered, until).await
    }

    /// Publishes a message to a target that was forbidden, or never tried, on a link that no other message uses.
    async fn try_alone(
        &self,
        link: &Link,
        rendered: Rendered,
        until: Instant,
    ) -> Result<(), PublishError> {
        let target = rendered.target.clone();
        self.publish_on(link, &link.requests, None, rendered, until).await?;
        self.refused.permit(&target);
        Ok(())
    }

    async fn trial_permit(&self) -> Option<SemaphorePermit<'_>> {
        // It is never closed.
        self.control.trial_permits.acquire().await.ok()
    }

    /// Waits until other trials have an outcome.
    async fn wait_for_trial<T>(
        &self,
        link: &Link,
        trial: impl Future<Output = T>,
        until: Instant,
    ) -> Result<T, PublishError> {
        tokio::select! {
            trial = trial => Ok(trial),
            down = link.lost() => Err(down.into()),
            () = link.replaced() => Err(not_sent(LINK_REPLACED)),
            () = tokio::time::sleep_until(until) => {
                let detail = "the first messages to its destination are not confirmed";
                Err(PublishError::new(PublishFailure::Unconfirmed, detail))
            }
        }
    }

    /// Publishes a message on a channel of its own, and notes whether its target is permitted.
    async fn publish_on_trial(
        &self,
        link: &Link,
        rendered: Rendered,
        until: Instant,
    ) -> Result<(), PublishError> {
        // (In a box, since it is part of the future of each publish.)
        let opening = Box::pin(link.open_trial_channel());
        let channel = self.prepare(link, "a new channel", opening, until).await?;
        // Messages to other destinations need no such channel.
        let channel = channel.map_err(|down| {
            let detail = format!("cannot be tried on a channel of its own: {down}");
            PublishError::new(PublishFailure::Unconfirmed, detail)
        })?;
        let target = rendered.target.clone();
        let result = self.publish_on(link, &channel.requests, None, rendered, until).await;
        let is_answered = result.as_ref().err().is_none_or(|error| error.failure.is_answer());
        if is_answered && !channel.is_refused() {
            self.refused.permit(&target);
        }
        result
    }

    /// Waits for the broker's part on the control connection before a message can be sent.
    async fn prepare<T>(
        &self,
        link: &Link,
        what: &str,
        preparation: impl Future<Output = T>,
        until: Instant,
    ) -> Result<T, PublishError> {
        tokio::select! {
            biased;
            done = preparation => Ok(done),
            down = link.lost() => Err(down.into()),
            () = link.replaced() => Err(not_sent(LINK_REPLACED)),
            () = tokio::time::sleep_until(until) => {
                let limit = self.settings.delivery.timeout;
                let down = SinkDown::new(format!("no response to {what} within {limit:?}"));
                self.control.renew();
                // Nor was there one on the connection that publishes.
                if !link.liveness.has_replied_within(limit) {
                    link.retire(down.clone());
                }
                Err(down.into())
            }
        }
    }

    /// Publishes a message on a channel of the link. `lock` is released when it is sent.
    async fn publish_on(
        &self,
        link: &Link,
        channel: &mpsc::UnboundedSender<Request>,
        lock: Option<MutexGuard<'_, ()>>,
        rendered: Rendered,
        until: Instant,
    ) -> Result<(), PublishError> {
        let _payload = link.count_payload(rendered.payload.len());
        let (reply, answer) = oneshot::channel();
        let request = Request { rendered, mandatory: self.settings.own.mandatory, reply };
        let sent = channel.send(request);
        drop(lock);
        if sent.is_err() {
            link.retire(SinkDown::new("its publisher has stopped"));
            return Err(link.lost().await.into());
        }
        let answer = async {
            tokio::select! {
                biased;
                answer = answer => answer,
                // The broker reads nothing for now, or has read it and will answer. Neither
                // is the record's fault, nor a lost connection.
                down = link.blocked() => Ok(Err(down.into())),
            }
        };
        let handed_over = Instant::now();
        let limit = self.settings.delivery.timeout;
        let answer = link.liveness.confirm(answer, limit, until, link.answers(limit));
        let answer = tokio::select! {
            biased;
            answer = answer => answer,
            never = self.watch(link) => match never {},
        };
        let no_confirm = format!("no confirm within {limit:?}");
        match answer {
            Ok(Ok(answer)) => {
                let is_from_broker =
                    |error: &PublishError| error.failure == PublishFailure::Retryable;
                if answer.as_ref().err().is_none_or(is_from_broker) {
                    link.liveness.note_confirm(handed_over);
                }
                answer
            }
            Ok(Err(_)) => {
                let detail = "the connection was closed before the confirm";
                Err(PublishError::new(PublishFailure::Indeterminate, detail))
            }
            Err(Unresponsive::Destination) => {
                Err(PublishError::new(PublishFailure::Unconfirmed, no_confirm))
            }
            Err(Unresponsive::Broker) => {
                // On a replaced link each message keeps its own time.
                if !link.is_replaced() {
                    link.retire(SinkDown::new(&no_confirm));
                }
                // If the broker has confirmed others meanwhile, one queue without confirms may have made
                // it stop reading from the connection.
                let has_replied = link.liveness.has_replied_well_after(handed_over);
                let failure = if has_replied {
                    PublishFailure::Unconfirmed
                } else {
                    PublishFailure::Indeterminate
                };
                Err(PublishError::new(failure, no_confirm))
            }
        }
    }
}

fn not_sent(cause: impl fmt::Display) -> PublishError {
    PublishError::new(PublishFailure::SinkDown, cause)
}
