//! What a delivery report means for its record (contract, section 4.4).

use rdkafka::error::KafkaError;
use rdkafka::types::RDKafkaErrorCode as Code;

use crate::sink::{PublishError, Verdict};

/// The code of what went wrong with a record.
fn code(error: &KafkaError) -> Option<Code> {
    error.rdkafka_error_code()
}

/// Whether the broker refused a whole batch, and may have meant another record in it.
///
/// Sizes and times are judged by the batch, and where a broker names the record, librdkafka
/// reports its neighbours as failed with it.
pub(super) fn may_mean_a_neighbour(error: &KafkaError) -> bool {
    matches!(
        code(error),
        Some(
            Code::MessageSizeTooLarge
                | Code::MessageBatchTooLarge
                | Code::InvalidMessage
                | Code::InvalidMessageSize
                | Code::InvalidTimestamp
                | Code::InvalidRecord
                | Code::InvalidDifferentRecord
        )
    )
}

/// Whether the topic is gone, or was never there.
pub(super) fn unknown_topic(error: &KafkaError) -> bool {
    let gone = [Code::UnknownTopic, Code::UnknownTopicOrPartition, Code::UnknownPartition];
    code(error).is_some_and(|code| gone.contains(&code))
}

/// Judges a record by its report; one that was alone in its batch, where that matters.
pub(super) fn judge(error: &KafkaError, topic: &str) -> PublishError {
    let Some(code) = code(error) else {
        return PublishError::new(Verdict::Unknown, error);
    };
    PublishError::new(verdict(code), format!("topic {topic:?}: {code}"))
}

fn verdict(code: Code) -> Verdict {
    match code {
        Code::MessageSizeTooLarge | Code::MessageBatchTooLarge | Code::InvalidMessageSize => {
            Verdict::TooLarge
        }
        Code::InvalidMessage
        | Code::InvalidTimestamp
        | Code::InvalidRecord
        | Code::InvalidTopic
        | Code::InvalidArgument
        | Code::UnsupportedForMessageFormat
        | Code::UnsupportedCompressionType => Verdict::Refuse,
        Code::UnknownTopic
        | Code::UnknownTopicOrPartition
        | Code::UnknownPartition
        | Code::TopicAuthorizationFailed
        | Code::ClusterAuthorizationFailed
        | Code::PolicyViolation
        | Code::InvalidDifferentRecord => Verdict::Charge,
        // Purged from the queue: never sent.
        Code::PurgeQueue | Code::QueueFull | Code::Authentication | Code::SSL => Verdict::Down,
        // Sent, or not known to be unsent: timed out, purged in flight, fatal, transport.
        _ => Verdict::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_report_has_the_verdict_of_the_contract() {
        for (code, expected) in [
            (Code::MessageSizeTooLarge, Verdict::TooLarge),
            (Code::InvalidTimestamp, Verdict::Refuse),
            (Code::UnknownTopicOrPartition, Verdict::Charge),
            (Code::TopicAuthorizationFailed, Verdict::Charge),
            (Code::PurgeQueue, Verdict::Down),
            (Code::PurgeInflight, Verdict::Unknown),
            (Code::MessageTimedOut, Verdict::Unknown),
            (Code::BrokerTransportFailure, Verdict::Unknown),
            (Code::Fatal, Verdict::Unknown),
            (Code::NotEnoughReplicas, Verdict::Unknown),
        ] {
            assert_eq!(verdict(code), expected, "{code}");
        }
    }
}
