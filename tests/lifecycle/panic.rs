//! Panics, at places where the feature `failpoints` causes them.

use bson::doc;
use serde_json::Value;

use crate::support::outbox::{TestOutbox, record};
use crate::support::process::{Postrider, run_with};
use crate::support::queue::Queue;
use crate::util::{PROMPT_LIMIT, backlog};

fn start(outbox: &TestOutbox, queue: &Queue, place: &str) -> Postrider {
    let mut command = run_with(&queue.settings(outbox));
    command.env("FAILPOINTS", place);
    Postrider::of(command)
}

#[fixture::test]
async fn a_part_that_ends_by_itself_ends_the_process_with_1() {
    let (outbox, queue) = (TestOutbox::new().await, Queue::declare().await);
    for place in ["relay::after_lease", "relay::before_publish", "relay::before_settle"] {
        outbox.insert([record(place, place)]).await;

        let mut postrider = start(&outbox, &queue, &format!("{place}=panic"));
        let ended = postrider.until_ended(PROMPT_LIMIT).await.with_code(1);

        // Collectors of logs read nothing else.
        let lines = ended.stderr.lines().map(serde_json::from_str);
        let lines: Vec<Value> =
            lines.collect::<Result<_, _>>().unwrap_or_else(|_| panic!("{ended}"));
        let panicked = lines.iter().find(|line| line["message"] == "a thread panicked");
        let panicked = panicked.unwrap_or_else(|| panic!("{ended}"));
        assert_eq!(panicked["level"], "ERROR");
        assert!(panicked["place"].as_str().unwrap().contains(".rs:"), "{panicked}");
        assert!(panicked["reason"].is_string(), "{panicked}");
        let last = lines.last().unwrap();
        assert_eq!(last["message"], "ended with a failure", "{ended}");
        let error = last["error"].as_str().unwrap();
        assert!(error.starts_with("a task of the relay panicked"), "{ended}");
    }
}

#[fixture::test]
async fn a_publisher_that_panics_loses_a_connection_and_no_record() {
    let (outbox, queue) = (TestOutbox::new().await, Queue::declare().await);
    outbox.insert(backlog(20, 4)).await;

    let mut postrider = start(&outbox, &queue, "sink::after_handover=1*panic");

    outbox.until_count(doc! { "status": "done" }, 20).await;
    queue.ids(20).await;
    assert!(postrider.stderr().contains("panicked"), "it was made to: {}", postrider.stderr());
    postrider.stop().await;
}
