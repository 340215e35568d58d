//! The meaning of a delivery report for its record.

use postrider_relay::sink::{PublishError, PublishFailure};
use rdkafka::error::KafkaError;
use rdkafka::types::RDKafkaErrorCode as Code;

use crate::kafka::remedy;

/// Returns whether the broker refused a whole batch, perhaps for another record in it.
///
/// Brokers check sizes and times per batch, and if a broker names the record, librdkafka reports the others
/// as failed too.
pub(super) fn may_concern_other_record(error: &KafkaError) -> bool {
    matches!(
        error.rdkafka_error_code(),
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

/// Returns whether the topic must be looked up again: it is missing or forbidden, and librdkafka caches
/// that until the next look-up.
pub(super) fn invalidates_topic(error: &KafkaError) -> bool {
    matches!(
        error.rdkafka_error_code(),
        Some(
            Code::UnknownTopic
                | Code::UnknownTopicOrPartition
                | Code::UnknownPartition
                | Code::TopicAuthorizationFailed
        )
    )
}

/// Returns whether the topic refuses the time of a record, or of another one in its batch.
pub(super) fn refuses_time(error: &KafkaError) -> bool {
    error.rdkafka_error_code() == Some(Code::InvalidTimestamp)
}

/// Returns whether the producer's own time for the record was up.
pub(super) fn is_timeout(error: &KafkaError) -> bool {
    error.rdkafka_error_code() == Some(Code::MessageTimedOut)
}

/// Returns what a negative report means for its record. If it [may concern another
/// one](may_concern_other_record), the record must have been alone in its batch.
pub(super) fn publish_error(error: &KafkaError, topic: &str) -> PublishError {
    let Some(code) = error.rdkafka_error_code() else {
        return PublishError::new(PublishFailure::Indeterminate, error);
    };
    let failure = failure(code);
    let remedy = match code {
        // The record has the time of its publishing by now.
        Code::InvalidTimestamp => {
            "; the time of publishing is refused too: correct this host's clock, or the topic's \
             message.timestamp.before.max.ms and message.timestamp.after.max.ms"
        }
        Code::UnsupportedCompressionType => "; change the property compression.type of the sink",
        _ if failure == PublishFailure::TooLarge => "; the topic's max.message.bytes is the limit",
        _ => "",
    };
    let cause = remedy::of_code(code);
    PublishError::new(failure, format!("topic {topic:?}: {cause}{remedy}"))
}

/// Returns what a fatal error of the producer means for the records in it.
pub(super) fn fatal_failure(code: Code) -> PublishFailure {
    match code {
        // The broker assigned no producer id, without which nothing is sent.
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
        Code::InvalidRecord | Code::InvalidTopic | Code::InvalidArgument => {
            PublishFailure::Rejected
        }
        Code::UnknownTopic
        | Code::UnknownTopicOrPartition
        | Code::UnknownPartition
        | Code::TopicAuthorizationFailed
        | Code::PolicyViolation
        // Damaged under way: the checksum of the batch is wrong.
        | Code::InvalidMessage
        // The topic refuses how this producer writes, or this host's clock: the next record too.
        | Code::UnsupportedForMessageFormat
        | Code::UnsupportedCompressionType
        | Code::InvalidTimestamp => PublishFailure::Retryable,
        // Another record was at fault, although this one was alone in its batch.
        Code::InvalidDifferentRecord => PublishFailure::Abandoned,
        Code::QueueFull
        | Code::Authentication
        | Code::SSL
        // The user must not write at all: the record is not at fault.
        | Code::ClusterAuthorizationFailed => PublishFailure::SinkDown,
        // The broker reports a fault of the partition: the connection works.
        Code::NotEnoughReplicas
        | Code::NotEnoughReplicasAfterAppend
        | Code::LeaderNotAvailable
        | Code::NotLeaderForPartition
        | Code::ReplicaNotAvailable
        | Code::FencedLeaderEpoch
        | Code::UnknownLeaderEpoch
        | Code::KafkaStorageError
        // An unexpected error within the broker, which may be that of this partition alone.
        | Code::Unknown
        | Code::RequestTimedOut => PublishFailure::Unconfirmed,
        // Sent, or perhaps sent: timed out, fatal, transport; purged from the queue too, in which a
        // record also waits to be sent a second time.
        _ => PublishFailure::Indeterminate,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failure_follows_from_the_code_of_the_report() {
        for (code, expected) in [
            (Code::MessageSizeTooLarge, PublishFailure::TooLarge),
            (Code::InvalidRecord, PublishFailure::Rejected),
            (Code::InvalidTimestamp, PublishFailure::Retryable),
            (Code::InvalidMessage, PublishFailure::Retryable),
            (Code::UnsupportedCompressionType, PublishFailure::Retryable),
            (Code::InvalidDifferentRecord, PublishFailure::Abandoned),
            (Code::Unknown, PublishFailure::Unconfirmed),
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
    fn fatal_error_before_the_first_send_means_the_sink_is_down() {
        assert_eq!(fatal_failure(Code::ClusterAuthorizationFailed), PublishFailure::SinkDown);
        assert_eq!(fatal_failure(Code::OutOfOrderSequenceNumber), PublishFailure::Indeterminate);
    }
}
