//! Maps a delivery report to its meaning for the record.

use postrider_relay::sink::{PublishError, PublishFailure};
use rdkafka::error::KafkaError;
use rdkafka::types::RDKafkaErrorCode as Code;

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

/// Returns whether the topic must be looked up again: it is gone or forbidden, and librdkafka caches
/// that until the next lookup.
pub(super) fn doubts_topic(error: &KafkaError) -> bool {
    matches!(
        code(error),
        Some(
            Code::UnknownTopic
                | Code::UnknownTopicOrPartition
                | Code::UnknownPartition
                | Code::TopicAuthorizationFailed
        )
    )
}

/// Whether the producer's own time for the record was up.
pub(super) fn is_timeout(error: &KafkaError) -> bool {
    code(error) == Some(Code::MessageTimedOut)
}

/// Judges a record by its report; one that was alone in its batch, where that matters.
pub(super) fn judge(error: &KafkaError, topic: &str) -> PublishError {
    let Some(code) = code(error) else {
        return PublishError::new(PublishFailure::Indeterminate, error);
    };
    let failure = failure(code);
    let limit = match failure {
        PublishFailure::TooLarge => "; the topic's max.message.bytes is the limit",
        _ => "",
    };
    PublishError::new(failure, format!("topic {topic:?}: {code}{limit}"))
}

/// Judges whatever a producer held when this error ended it for good.
pub(super) fn of_fatal(code: Code) -> PublishFailure {
    match code {
        // The broker gave it no producer id, without which it sends nothing.
        Code::ClusterAuthorizationFailed
        | Code::TransactionalIdAuthorizationFailed
        | Code::UnsupportedFeature
        | Code::UnsupportedVersion => PublishFailure::SinkDown,
        _ => PublishFailure::Indeterminate,
    }
}

fn failure(code: Code) -> PublishFailure {
    match code {
        Code::MessageSizeTooLarge | Code::MessageBatchTooLarge | Code::InvalidMessageSize => {
            PublishFailure::TooLarge
        }
        Code::InvalidMessage
        | Code::InvalidTimestamp
        | Code::InvalidRecord
        | Code::InvalidTopic
        | Code::InvalidArgument
        | Code::UnsupportedForMessageFormat
        | Code::UnsupportedCompressionType => PublishFailure::Rejected,
        Code::UnknownTopic
        | Code::UnknownTopicOrPartition
        | Code::UnknownPartition
        | Code::TopicAuthorizationFailed
        | Code::PolicyViolation
        | Code::InvalidDifferentRecord => PublishFailure::Retryable,
        Code::QueueFull
        | Code::Authentication
        | Code::SSL
        // Nobody may write at all: no record's doing.
        | Code::ClusterAuthorizationFailed => PublishFailure::SinkDown,
        // The broker's own words: the partition is in trouble, and the connection is not.
        Code::NotEnoughReplicas
        | Code::NotEnoughReplicasAfterAppend
        | Code::LeaderNotAvailable
        | Code::NotLeaderForPartition
        | Code::ReplicaNotAvailable
        | Code::FencedLeaderEpoch
        | Code::UnknownLeaderEpoch
        | Code::KafkaStorageError
        | Code::RequestTimedOut => PublishFailure::Unconfirmed,
        // Sent, or not known to be unsent: timed out, fatal, transport; purged from the queue
        // too, where a record also waits to be sent a second time.
        _ => PublishFailure::Indeterminate,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_report_has_the_verdict_of_the_contract() {
        for (code, expected) in [
            (Code::MessageSizeTooLarge, PublishFailure::TooLarge),
            (Code::InvalidTimestamp, PublishFailure::Rejected),
            (Code::UnknownTopicOrPartition, PublishFailure::Retryable),
            (Code::TopicAuthorizationFailed, PublishFailure::Retryable),
            (Code::PurgeQueue, PublishFailure::Indeterminate),
            (Code::PurgeInflight, PublishFailure::Indeterminate),
            (Code::MessageTimedOut, PublishFailure::Indeterminate),
            (Code::BrokerTransportFailure, PublishFailure::Indeterminate),
            (Code::Fatal, PublishFailure::Indeterminate),
            (Code::NotEnoughReplicas, PublishFailure::Unconfirmed),
            (Code::LeaderNotAvailable, PublishFailure::Unconfirmed),
            (Code::NotLeaderForPartition, PublishFailure::Unconfirmed),
        ] {
            assert_eq!(failure(code), expected, "{code}");
        }
    }

    #[test]
    fn an_end_that_came_before_anything_was_sent_is_no_loss() {
        assert_eq!(of_fatal(Code::ClusterAuthorizationFailed), PublishFailure::SinkDown);
        assert_eq!(of_fatal(Code::OutOfOrderSequenceNumber), PublishFailure::Indeterminate);
    }
}
