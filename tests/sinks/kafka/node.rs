//! The tests' own broker stops and starts on command.

use std::io::{BufRead, BufReader};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::kafka::producer::{producer, record, send};
use crate::support::kafka::node::Node;
use crate::support::kafka::topic::Topic;
use crate::support::outbox::eventually;

#[fixture::test(long)]
async fn a_restarted_broker_has_what_it_had_confirmed() {
    let mut node = Node::start().await;
    let topic = Topic::on(&node.brokers(), 1, &[]).await;
    let producer = producer(&node.brokers(), &[("message.timeout.ms", "60000")]);
    send(&producer, record(&topic.name, "one", b"x")).await.outcome.unwrap();

    node.stop().await;
    assert!(TcpStream::connect(node.brokers()).is_err());
    node.start_again().await;
    send(&producer, record(&topic.name, "two", b"x")).await.outcome.unwrap();
    node.kill();
    assert!(TcpStream::connect(node.brokers()).is_err());
    node.start_again().await;
    send(&producer, record(&topic.name, "three", b"x")).await.outcome.unwrap();

    assert_eq!(topic.read_ids().await, ["one", "two", "three"]);
}

#[fixture::test(long)]
async fn a_frozen_broker_receives_nothing_until_it_is_thawed() {
    let node = Node::start().await;
    let topic = Topic::on(&node.brokers(), 1, &[]).await;
    let producer = producer(&node.brokers(), &[("message.timeout.ms", "60000")]);
    send(&producer, record(&topic.name, "before", b"x")).await.outcome.unwrap();

    node.freeze();
    let mut held = Box::pin(send(&producer, record(&topic.name, "held", b"x")));
    let patience = tokio::time::timeout(Duration::from_secs(2), &mut held).await;
    assert!(patience.is_err(), "{patience:?}");
    node.thaw();

    held.await.outcome.unwrap();
    assert_eq!(topic.read_ids().await, ["before", "held"]);
}

/// Set in the process that the test kills.
const CHILD: &str = "POSTRIDER_TEST_KAFKA_CHILD";

#[fixture::test]
#[ignore = "a process that the next test runs"]
async fn program_broker() {
    if std::env::var_os(CHILD).is_some() {
        let node = Node::start().await;
        println!("broker at {}", node.brokers());
        std::future::pending::<()>().await;
    }
}

#[fixture::test(long)]
async fn a_broker_ends_with_the_test_process_even_if_that_is_killed() {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "kafka::node::program_broker", "--ignored", "--nocapture"]);
    let mut process = command.env(CHILD, "1").stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
    let address = lines.find_map(|line| Some(line.ok()?.split_once("broker at ")?.1.to_owned()));
    let address = address.unwrap();
    assert!(TcpStream::connect(&address).is_ok());

    process.kill().unwrap();
    process.wait().unwrap();

    eventually("the broker to end", || async { TcpStream::connect(&address).is_err() }).await;
}
