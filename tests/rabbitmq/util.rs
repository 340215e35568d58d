//! Short words for what most tests here do.

use std::sync::Arc;
use std::time::{Duration, Instant};

use postrider::sink::rabbitmq::RabbitMq;
use postrider::sink::{Message, PublishError, Sink, Verdict};
use tokio::task::JoinHandle;

use crate::support::rabbitmq;

/// A limit that no test means to reach.
pub const AMPLE: Duration = Duration::from_secs(30);

/// What "at once" may take on a busy machine.
pub const AT_ONCE: Duration = Duration::from_secs(2);

pub type Outcome = Result<(), PublishError>;

/// A connected sink with ample time.
pub async fn connected(uri: &str) -> Arc<RabbitMq> {
    let sink = Arc::new(rabbitmq::sink(uri, AMPLE));
    sink.probe().await.unwrap();
    sink
}

/// Hands a message over without waiting.
pub fn start(sink: &Arc<RabbitMq>, message: Message) -> JoinHandle<Outcome> {
    let sink = sink.clone();
    tokio::spawn(async move { sink.publish(message).await })
}

/// All at once; the outcomes in the messages' order.
pub async fn publish_all(
    sink: &Arc<RabbitMq>,
    messages: impl IntoIterator<Item = Message>,
) -> Vec<Outcome> {
    let publishing: Vec<_> = messages.into_iter().map(|message| start(sink, message)).collect();
    let mut outcomes = Vec::new();
    for publishing in publishing {
        outcomes.push(publishing.await.unwrap());
    }
    outcomes
}

/// What a failure means for the record; `None` for a confirmed message.
pub fn verdict(outcome: &Outcome) -> Option<Verdict> {
    outcome.as_ref().err().map(|error| error.verdict)
}

/// Probes until the sink is up, as a relay does.
pub async fn until_up(sink: &RabbitMq) {
    let deadline = Instant::now() + AMPLE;
    while let Err(down) = sink.probe().await {
        assert!(Instant::now() < deadline, "{down}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
