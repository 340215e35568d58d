//! One suite for all sinks: the contract in the doc of [`postrider::sink::Sink`].
//!
//! `clauses` has each clause once, over [`harness::Harness`]; a new sink needs a harness, and a
//! line here.

mod clauses;
mod harness;
pub mod of_file;
mod of_kafka;
mod of_rabbitmq;
mod of_stdout;
mod of_test_sink;

use harness::Harness;

macro_rules! every_clause_holds_for {
    ($sink:ident: $harness:ty; $($clause:ident)*) => {
        mod $sink {
            use super::*;

            $(
                #[fixture::test]
                async fn $clause() {
                    let harness = <$harness>::new().await;
                    clauses::$clause(&harness).await;
                }
            )*
        }
    };
}

macro_rules! sinks {
    ($($sink:ident: $harness:ty,)*) => {
        $(every_clause_holds_for! {
            $sink: $harness;
            a_confirmed_message_can_be_consumed
            hundreds_of_messages_are_in_flight_at_once
            a_failure_affects_only_its_own_message
            the_same_message_can_be_published_again
            a_dropped_call_affects_no_other
            a_call_ends_in_time_without_a_confirm
            a_sink_that_is_not_connected_says_so_at_once
            a_probe_restores_a_lost_sink
            an_idle_loss_is_noticed
            a_closed_sink_is_down
            an_isolated_sink_connects_by_itself
            an_impossible_message_is_refused_before_it_is_sent
            no_text_contains_a_payload_or_a_password
        })*
    };
}

sinks! {
    file: of_file::Disk,
    kafka: of_kafka::Broker,
    rabbitmq: of_rabbitmq::Broker,
    stdout: of_stdout::Terminal,
    test_sink: of_test_sink::Scripted,
}
