//! A projector as a process of its own, which is this test binary: a test can kill it.

use std::process::{Command, Stdio};
use std::time::Duration;

use postrider_projections::ReadModelSettings;
use tokio_util::sync::CancellationToken;

use crate::carts::CartProjector;
use crate::shopping_cart::example;
use crate::support::child_guard::watched;
use crate::support::process::{Ended, Process};
use crate::world::{World, settings};

const WHAT: &str = "POSTRIDER_TEST_PROJECTOR";
const URI: &str = "POSTRIDER_TEST_PROJECTOR_URI";
const DATABASE: &str = "POSTRIDER_TEST_PROJECTOR_DATABASE";
const AMQP: &str = "POSTRIDER_TEST_PROJECTOR_AMQP";
const QUEUE: &str = "POSTRIDER_TEST_PROJECTOR_QUEUE";

/// What a process projects.
#[derive(Clone, Debug)]
pub enum Projects {
    /// The read model of these tests: the live generation.
    Live,
    /// The same: the next generation, which it switches to.
    Rebuild,
    /// The example, from the feed.
    Feed,
    /// The example, from a queue.
    Queue { uri: String, name: String },
}

/// A process that projects until it is killed.
pub struct ProjectorProcess(Process);

impl ProjectorProcess {
    /// Starts it, with these fail points.
    pub fn start(what: &Projects, uri: &str, database: &str, fail_points: &str) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "child::program_projector", "--ignored", "--nocapture"]);
        let word = match what {
            Projects::Live => "live",
            Projects::Rebuild => "rebuild",
            Projects::Feed => "feed",
            Projects::Queue { .. } => "queue",
        };
        command.env(WHAT, word).env(URI, uri).env(DATABASE, database);
        command.env("FAILPOINTS", fail_points);
        if let Projects::Queue { uri, name } = what {
            command.env(AMQP, uri).env(QUEUE, name);
        }
        let mut command = watched(&command, None);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        Self(Process::spawn(command))
    }

    /// Whether it has ended.
    pub fn has_ended(&mut self) -> bool {
        self.0.has_ended()
    }

    /// Waits until it has ended.
    pub async fn until_ended(&mut self) -> Ended {
        self.0.until_ended(Duration::from_secs(60)).await
    }
}

/// Not a test: what [`ProjectorProcess`] starts.
#[fixture::test]
#[ignore = "a process that other tests start"]
async fn program_projector() {
    let Ok(what) = std::env::var(WHAT) else { return };
    let _fail_points = postrider::failpoint::init();
    let variable = |name: &str| std::env::var(name).unwrap();
    let (uri, name) = (variable(URI), variable(DATABASE));
    let client = postrider::store::connect::client(&uri).await.unwrap();
    let database = client.database(&name);
    let small = ReadModelSettings { batch_events: 5, ..settings() };
    match what.as_str() {
        "live" => {
            let model = World::model_at(client, &name, small);
            model.run(&CartProjector::default(), CancellationToken::new()).await.unwrap();
        }
        "rebuild" => {
            let model = World::model_at(client, &name, small);
            model.rebuild(&CartProjector::default(), CancellationToken::new()).await.unwrap();
        }
        "feed" => example::project_from_feed(database).await.unwrap(),
        "queue" => {
            let (amqp, queue) = (variable(AMQP), variable(QUEUE));
            example::project_from_queue(database, &amqp, &queue).await.unwrap();
        }
        other => panic!("unknown: {other}"),
    }
}
