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

/// Whether the topic is to be looked up again: it is gone, or forbidden, which librdkafka
/// remembers until it is asked.
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
        return PublishError::new(Verdict::Unknown, error);
    };
    let verdict = verdict(code);
    let limit = match verdict {
        Verdict::TooLarge => "; the topic's max.message.bytes is the limit",
        _ => "",
    };
    PublishError::new(verdict, format!("topic {topic:?}: {code}{limit}"))
}

/// Judges whatever a producer held when this error ended it for good.
pub(super) fn of_fatal(code: Code) -> Verdict {
    match code {
        // The broker gave it no producer id, without which it sends nothing.
        Code::ClusterAuthorizationFailed
        | Code::TransactionalIdAuthorizationFailed
        | Code::UnsupportedFeature
        | Code::UnsupportedVersion => Verdict::Down,
        _ => Verdict::Unknown,
    }
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
        | Code::PolicyViolation
        | Code::InvalidDifferentRecord => Verdict::Charge,
        Code::QueueFull
        | Code::Authentication
        | Code::SSL
        // Nobody may write at all: no record's doing.
        | Code::ClusterAuthorizationFailed => Verdict::Down,
        // The broker's own words: the partition is in trouble, and the connection is not.
        Code::NotEnoughReplicas
        | Code::NotEnoughReplicasAfterAppend
        | Code::LeaderNotAvailable
        | Code::NotLeaderForPartition
        | Code::ReplicaNotAvailable
        | Code::FencedLeaderEpoch
        | Code::UnknownLeaderEpoch
        | Code::KafkaStorageError
        | Code::RequestTimedOut => Verdict::Unconfirmed,
        // Sent, or not known to be unsent: timed out, fatal, transport; purged from the queue
        // too, where a record also waits to be sent a second time.
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
            (Code::PurgeQueue, Verdict::Unknown),
            (Code::PurgeInflight, Verdict::Unknown),
            (Code::MessageTimedOut, Verdict::Unknown),
            (Code::BrokerTransportFailure, Verdict::Unknown),
            (Code::Fatal, Verdict::Unknown),
            (Code::NotEnoughReplicas, Verdict::Unconfirmed),
            (Code::LeaderNotAvailable, Verdict::Unconfirmed),
            (Code::NotLeaderForPartition, Verdict::Unconfirmed),
        ] {
            assert_eq!(verdict(code), expected, "{code}");
        }
    }

    #[test]
    fn an_end_that_came_before_anything_was_sent_is_no_loss() {
        assert_eq!(of_fatal(Code::ClusterAuthorizationFailed), Verdict::Down);
        assert_eq!(of_fatal(Code::OutOfOrderSequenceNumber), Verdict::Unknown);
    }
}
