//! A MongoDB client that records the commands it sends, and can pause after one.

use std::sync::{Arc, Mutex};

use bson::Document;
use futures_util::future::BoxFuture;
use mongodb::Client;
use mongodb::event::EventHandler;
use mongodb::event::command::CommandEvent;
use mongodb::options::ClientOptions;
use postrider::outbox::collections::Collections;
use tokio::sync::watch;

use super::outbox::TestOutbox;

/// One command that the server has answered.
#[derive(Clone, Debug)]
pub struct Command {
    pub name: String,
    pub sent: Document,
    pub answer: Document,
}

/// What runs between the answer to a command and the client's next action.
type Pause = Box<dyn FnOnce() -> BoxFuture<'static, ()> + Send>;
type Such = Box<dyn Fn(&Command) -> bool + Send>;
type Stop = (Such, Pause);

#[derive(Default)]
struct Inner {
    under_way: Mutex<Vec<(i32, String, Document)>>,
    answered: Mutex<Vec<Command>>,
    /// The names of those that failed.
    failed: Mutex<Vec<String>>,
    stop: Mutex<Option<Stop>>,
    /// Which answers are held, until this changes.
    held: Mutex<Option<(Such, watch::Receiver<()>)>>,
}

/// The outbox through another client, which records its commands.
pub struct CommandRecorder {
    pub collections: Collections,
    inner: Arc<Inner>,
}

impl CommandRecorder {
    pub async fn on(outbox: &TestOutbox) -> Self {
        Self::at(&outbox.uri, outbox).await
    }

    /// The same on another server.
    pub async fn at(uri: &str, outbox: &TestOutbox) -> Self {
        let inner = Arc::new(Inner::default());
        let seeing = inner.clone();
        let mut options = ClientOptions::parse(uri).await.unwrap();
        options.command_event_handler =
            Some(EventHandler::callback(move |event| seeing.note(event)));
        let client = Client::with_options(options).unwrap();
        let collections = Collections::new(client, &outbox.database, "");
        Self { collections, inner }
    }

    /// Runs `pause` once, when the first command that is `such` is answered, before the client sees
    /// the answer.
    pub fn after<F>(
        &self,
        such: impl Fn(&Command) -> bool + Send + 'static,
        pause: impl FnOnce() -> F + Send + 'static,
    ) where
        F: Future<Output = ()> + Send + 'static,
    {
        let pause: Pause = Box::new(|| Box::pin(pause()));
        *self.inner.stop.lock().unwrap() = Some((Box::new(such), pause));
    }

    /// From now on holds the answer to each command that is `such`, until the result is dropped.
    pub fn hold(&self, such: impl Fn(&Command) -> bool + Send + 'static) -> watch::Sender<()> {
        let (hold, held) = watch::channel(());
        *self.inner.held.lock().unwrap() = Some((Box::new(such), held));
        hold
    }

    /// Whether the pause has been made.
    pub fn has_paused(&self) -> bool {
        self.inner.stop.lock().unwrap().is_none()
    }

    /// Whether a command of this name has failed.
    pub fn has_failed(&self, name: &str) -> bool {
        self.inner.failed.lock().unwrap().iter().any(|failed| failed == name)
    }

    /// All commands so far, in the order of their answers.
    pub fn all(&self) -> Vec<Command> {
        self.inner.answered.lock().unwrap().clone()
    }

    /// The commands of this name so far, in the order of their answers.
    pub fn commands(&self, name: &str) -> Vec<Command> {
        let answered = self.inner.answered.lock().unwrap();
        answered.iter().filter(|command| command.name == name).cloned().collect()
    }
}

impl Inner {
    fn note(&self, event: CommandEvent) {
        match event {
            CommandEvent::Started(event) => {
                let command = (event.request_id, event.command_name, event.command);
                self.under_way.lock().unwrap().push(command);
            }
            CommandEvent::Succeeded(event) => {
                let started = self.taken(event.request_id);
                let Some((_, name, sent)) = started else { return };
                self.answered(Command { name, sent, answer: event.reply });
            }
            CommandEvent::Failed(event) => {
                if let Some((_, name, _)) = self.taken(event.request_id) {
                    self.failed.lock().unwrap().push(name);
                }
            }
            _ => {}
        }
    }

    fn taken(&self, request: i32) -> Option<(i32, String, Document)> {
        let mut under_way = self.under_way.lock().unwrap();
        let at = under_way.iter().position(|(id, ..)| *id == request)?;
        Some(under_way.remove(at))
    }

    fn answered(&self, command: Command) {
        let pause = {
            let mut stop = self.stop.lock().unwrap();
            match stop.take() {
                Some((such, pause)) if such(&command) => Some(pause),
                other => {
                    *stop = other;
                    None
                }
            }
        };
        let held = {
            let held = self.held.lock().unwrap();
            held.as_ref().filter(|(such, _)| such(&command)).map(|(_, until)| until.clone())
        };
        self.answered.lock().unwrap().push(command);
        if let Some(mut until) = held {
            let until = async { while until.changed().await.is_ok() {} };
            tokio::task::block_in_place(|| tokio::runtime::Handle::current().block_on(until));
        }
        if let Some(pause) = pause {
            // The driver calls this in the task that awaits the answer.
            tokio::task::block_in_place(|| tokio::runtime::Handle::current().block_on(pause()));
        }
    }
}
