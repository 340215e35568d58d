//! Publishes messages on any sink.

use std::sync::Arc;
use std::time::{Duration, Instant};

use postrider::sink::{Message, PublishError, PublishFailure, Sink};
use tokio::task::JoinHandle;

/// A timeout that no test reaches.
pub const AMPLE_TIMEOUT: Duration = Duration::from_secs(30);

/// The limit for "at once" on a busy machine.
pub const AT_ONCE_LIMIT: Duration = Duration::from_secs(2);

pub type Outcome = Result<(), PublishError>;

/// Starts to publish a message.
pub fn start<S: Sink>(sink: &Arc<S>, message: Message) -> JoinHandle<Outcome> {
    let sink = sink.clone();
    tokio::spawn(async move { sink.publish(message).await })
}

/// Publishes all of them at the same time; returns the outcomes in the messages' order.
pub async fn publish_all<S: Sink>(
    sink: &Arc<S>,
    messages: impl IntoIterator<Item = Message>,
) -> Vec<Outcome> {
    let publishing: Vec<_> = messages.into_iter().map(|message| start(sink, message)).collect();
    let mut outcomes = Vec::new();
    for publishing in publishing {
        outcomes.push(publishing.await.unwrap());
    }
    outcomes
}

/// The failure of a publish; `None` for a confirmed message.
pub fn failure(outcome: &Outcome) -> Option<PublishFailure> {
    outcome.as_ref().err().map(|error| error.failure)
}

/// Probes until the sink is up, as a relay does.
pub async fn until_up<S: Sink>(sink: impl AsRef<S>) {
    let sink = sink.as_ref();
    let deadline = Instant::now() + AMPLE_TIMEOUT;
    while let Err(down) = sink.probe().await {
        assert!(Instant::now() < deadline, "{down}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
