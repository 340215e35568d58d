//! Names of instances, so that one that comes back takes the place of its predecessor at once.
//!
//! A name is a document in `outbox_control` that says which instance holds it. A newcomer that finds
//! a holder writes a question there, and waits for [`ANSWER_TIMEOUT`] until the holder has removed it,
//! which an instance that runs does at once ([`keep`]). A holder that does not answer has crashed or
//! hangs, or does not reach MongoDB: the newcomer becomes the holder, by an update that names the
//! holder and the question. So either the answer or the replacement succeeds. An instance that finds
//! another one in its place publishes nothing more and ends. One that stood still looks before it
//! publishes ([`vigil`](crate::partition::vigil)).
//!
//! `tests/model/src/names` has the rules, and what breaks without each.

use std::fmt;
use std::time::Duration;

use bson::{Bson, Document, Uuid, doc};
use futures_util::TryStreamExt;
use mongodb::Collection;
use postrider_outbox::collections::{Collections, names as collections};
use postrider_outbox::fields::ID;
use postrider_outbox::ids::InstanceId;
use postrider_store::text::chain;
use postrider_store::{DUPLICATE_KEY, StoreError, limits, within};
use tracing::debug;

use crate::partition::fields;

/// How long a newcomer waits for the answer of a holder.
pub const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);

/// How often it reads meanwhile.
const READ_INTERVAL: Duration = Duration::from_millis(50);

/// How often a holder looks whether it is asked, from its start to its end.
const KEEP_INTERVAL: Duration = Duration::from_millis(250);

/// Instances of one default name.
const MAX_NUMBER: usize = 100;

/// How often a newcomer begins again because another one was first.
const MAX_ROUNDS: usize = 20;

/// In front of a name in the `_id` of its document.
const PREFIX: &str = "name:";

/// The instance that holds a name.
const HOLDER: &str = "holder";
/// The question whether it is alive: an id of its own.
const QUESTION: &str = "question";
/// When the holder or the question changed, by the server's clock.
const UPDATED_AT: &str = "updatedAt";

/// A name that has not changed for so long, and whose holder has no document, is removed: its pod will
/// not come back.
const UNUSED_AFTER: Duration = Duration::from_secs(3_600);

/// Whether a document has not changed for so long, as a view reads it ([`is_old`]).
pub(super) const IS_OLD: &str = "_isOld";

/// The longest name, in characters.
pub const MAX_NAME_LENGTH: usize = 200;

/// The name that an instance wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WantedName {
    /// The operator's: it, or none.
    Explicit(String),
    /// The default: it, or with the first free number behind it.
    Default(String),
}

impl WantedName {
    /// The default name: the host's, and the path of the configuration where there is one.
    pub fn of_process(config: Option<&std::path::Path>) -> Self {
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let path = config.map(|path| std::path::absolute(path).unwrap_or_else(|_| path.into()));
        let name = match path {
            Some(path) => format!("{host}:{}", path.display()),
            None => host,
        };
        // Its end tells paths apart.
        let excess = name.chars().count().saturating_sub(MAX_NAME_LENGTH);
        Self::Default(name.chars().skip(excess).collect())
    }

    /// The names in the order in which they are tried.
    fn candidates(&self) -> Vec<String> {
        match self {
            Self::Explicit(name) => vec![name.clone()],
            Self::Default(name) => {
                let numbered = (2..=MAX_NUMBER).map(|number| format!("{name}#{number}"));
                std::iter::once(name.clone()).chain(numbered).collect()
            }
        }
    }
}

/// Who holds a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NameEntry {
    /// The holder.
    pub holder: InstanceId,
    /// The question whether it is alive, until it has answered.
    pub question: Option<Uuid>,
    /// Whether it has not changed for an hour.
    pub is_old: bool,
}

/// A name that an instance has got.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldName {
    /// The name.
    pub name: String,
    /// The owner id of the instance that held it before and did not answer: its leases are taken over.
    pub predecessor: Option<InstanceId>,
}

/// Why an instance did not get a name.
#[derive(Debug, thiserror::Error)]
pub enum NameError {
    /// A live instance has it.
    #[error(
        "instance.name = {name:?}: instance {holder} has this name and is alive; give each \
         instance a name of its own, or stop that one"
    )]
    Taken {
        /// The name.
        name: String,
        /// The live instance, in words.
        holder: Holder,
    },
    /// Others were first, again and again.
    #[error("instance.name = {name:?}: too many instances start under this name at once")]
    Contended {
        /// The name.
        name: String,
    },
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// An instance in words: its id, and its host where that is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// Its id.
    pub id: InstanceId,
    /// Its host.
    pub host: Option<String>,
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.host {
            Some(host) => write!(f, "{} on host {host}", self.id),
            None => self.id.fmt(f),
        }
    }
}

/// Reads a document of `outbox_control`; `None` where it is not that of a name.
pub(super) fn read(document: &Document) -> Option<(String, NameEntry)> {
    let name = document.get_str(ID).ok()?.strip_prefix(PREFIX)?.to_owned();
    let holder = document.get(HOLDER).and_then(InstanceId::read)?;
    let question = document.get(QUESTION).and_then(|question| match question {
        Bson::Binary(binary) => binary.to_uuid().ok(),
        _ => None,
    });
    let is_old = document.get_bool(IS_OLD).unwrap_or(false);
    Some((name, NameEntry { holder, question, is_old }))
}

/// Whether a document has not changed for [`UNUSED_AFTER`]: an expression.
pub(super) fn is_old() -> Document {
    let millis = i64::try_from(UNUSED_AFTER.as_millis()).unwrap_or(i64::MAX);
    doc! { "$lt": [format!("${UPDATED_AT}"), { "$subtract": ["$$NOW", millis] }] }
}

/// The instance that holds a name, by what a majority has.
///
/// # Errors
///
/// Those of the store.
pub async fn holder(
    collections: &Collections,
    name: &str,
    limit: Duration,
) -> Result<Option<InstanceId>, StoreError> {
    let names = collections.collection(collections::CONTROL);
    let reading = names.find_one(doc! { ID: id(name) }).into_future();
    let document = within("read the holder of a name", limit, reading).await?;
    Ok(document.as_ref().and_then(read).map(|(_, entry)| entry.holder))
}

/// Gives a name up, at a stop in good order; or that of an instance that has no document.
///
/// # Errors
///
/// Those of the store. The next instance of the name then asks.
pub async fn give_up(
    collections: &Collections,
    name: &str,
    instance: InstanceId,
    limit: Duration,
) -> Result<(), StoreError> {
    let names = collections.collection(collections::CONTROL);
    let removing = names.delete_one(doc! { ID: id(name), HOLDER: instance }).into_future();
    within("give up a name", limit, removing).await.map(|_| ())
}

/// Another instance holds the name of this one, which did not answer when it was asked: it hung.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "instance.name = {name:?}: instance {by} has taken this name, since this one did not answer \
     within a second; give each instance a name of its own"
)]
pub struct Replaced {
    /// The name.
    pub name: String,
    /// The instance that holds it.
    pub by: InstanceId,
}

/// Answers newcomers that ask whether `instance` is alive, until another one holds its name.
/// Independent of all else that the instance does: an answer waits for MongoDB alone.
pub async fn keep(collections: Collections, name: String, instance: InstanceId) -> Replaced {
    let names = Names { collections: &collections, instance };
    loop {
        match names.keep(&name).await {
            Ok(None) => {}
            Ok(Some(by)) => return Replaced { name, by },
            // The heartbeat reports what is wrong with MongoDB.
            Err(error) => debug!(error = chain(&error), "the name was not read"),
        }
        tokio::time::sleep(KEEP_INTERVAL).await;
    }
}

/// Removes the documents of the earlier holders of this name: their processes have ended, or hang. Does
/// nothing where `instance` does not hold it.
///
/// The documents are read before the holder is, and removed by their ids: MongoDB may carry out the
/// removal much later, when a successor has replaced this instance and has a document.
///
/// # Errors
///
/// Those of the store.
pub async fn remove_predecessors(
    collections: &Collections,
    name: &str,
    instance: InstanceId,
) -> Result<(), StoreError> {
    let instances = collections.collection(collections::INSTANCES);
    let others = doc! { fields::NAME: name, ID: { "$ne": instance } };
    let reading = instances.distinct(ID, others).into_future();
    let ids = within("read replaced instances", limits::BATCH, reading).await?;
    if ids.is_empty() || holder(collections, name, limits::BATCH).await? != Some(instance) {
        return Ok(());
    }
    let removing = instances.delete_many(doc! { ID: { "$in": ids } }).into_future();
    within("remove replaced instances", limits::BATCH, removing).await.map(|_| ())
}

/// Makes `instance` the holder of the wanted name.
///
/// # Errors
///
/// [`NameError`].
pub async fn claim(
    collections: &Collections,
    instance: InstanceId,
    wanted: &WantedName,
) -> Result<HeldName, NameError> {
    let candidates = wanted.candidates();
    let names = Names { collections, instance };
    for _ in 0..MAX_ROUNDS {
        let held = names.held(&candidates).await?;
        if let Some(own) = held.iter().find(|held| held.entry.holder == instance) {
            // The answer to its own write was lost.
            return Ok(HeldName { name: own.name.clone(), predecessor: None });
        }
        let answers = names.ask(&held).await?;
        if answers.contains(&Answer::Unknown) {
            // Another newcomer asks.
            continue;
        }
        // Rather the place of one that has crashed than a free name: its partitions wait.
        let silent = held.iter().zip(&answers).find_map(|(held, answer)| match answer {
            Answer::Silent(question) => Some((held, *question)),
            Answer::Alive | Answer::Unknown => None,
        });
        let is_held = |name: &&String| held.iter().any(|held| held.name == **name);
        let (name, is_ours, predecessor) = if let Some((Held { name, entry }, question)) = silent {
            // Read before it is replaced: another newcomer may remove the document.
            let predecessor = names.owner_of(entry.holder).await?;
            let is_ours = names.replace(name, entry.holder, question).await?;
            (name.clone(), is_ours, Some(predecessor))
        } else if let Some(name) = candidates.iter().find(|name| !is_held(name)) {
            (name.clone(), names.insert(name).await?, None)
        } else {
            return Err(names.taken(held).await?);
        };
        if is_ours {
            return Ok(HeldName { name, predecessor });
        }
    }
    Err(NameError::Contended { name: candidates[0].clone() })
}

/// A name that is held.
struct Held {
    name: String,
    entry: NameEntry,
}

/// What came of a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    /// The holder answered.
    Alive,
    /// It did not answer this question.
    Silent(Uuid),
    /// It was not asked: another newcomer was first.
    Unknown,
}

struct Names<'a> {
    collections: &'a Collections,
    instance: InstanceId,
}

impl Names<'_> {
    /// Answers a question, if there is one. Returns the instance that holds the name, if it is another
    /// one.
    async fn keep(&self, name: &str) -> Result<Option<InstanceId>, StoreError> {
        let held = self.held(&[name.to_owned()]).await?;
        let Some(Held { entry, .. }) = held.first() else {
            // An operator may have removed it. Another one that was first is seen at the next read.
            self.insert(name).await?;
            return Ok(None);
        };
        if entry.holder != self.instance {
            return Ok(Some(entry.holder));
        }
        if let Some(question) = entry.question {
            let filter = doc! { ID: id(name), HOLDER: self.instance, QUESTION: question };
            let now = doc! { "$set": { UPDATED_AT: "$$NOW" } };
            self.update("answer for a name", filter, vec![now, doc! { "$unset": QUESTION }])
                .await?;
        }
        Ok(None)
    }

    /// Which of these names are held, in their order.
    async fn held(&self, candidates: &[String]) -> Result<Vec<Held>, StoreError> {
        let ids: Vec<Bson> = candidates.iter().map(|name| id(name).into()).collect();
        let found = self.find(self.control(), ids).await?;
        let mut held: Vec<Held> =
            found.iter().filter_map(read).map(|(name, entry)| Held { name, entry }).collect();
        held.sort_by_key(|held| candidates.iter().position(|name| *name == held.name));
        Ok(held)
    }

    /// Asks all holders at once, and waits for their answers.
    async fn ask(&self, held: &[Held]) -> Result<Vec<Answer>, StoreError> {
        let others: Vec<Option<Uuid>> = held.iter().map(|held| held.entry.question).collect();
        // The question of another newcomer has its time, too: otherwise two could ask for ever.
        self.wait_for_answers(held, others).await?;
        let mut questions = Vec::new();
        for Held { name, entry } in held {
            let question = Uuid::new();
            // Where the other question was answered, or another one was asked, nothing matches.
            let filter = doc! { ID: id(name), HOLDER: entry.holder, QUESTION: entry.question };
            let change = vec![doc! { "$set": { QUESTION: question, UPDATED_AT: "$$NOW" } }];
            let is_asked = self.update("ask for a name", filter, change).await?;
            questions.push(is_asked.then_some(question));
        }
        let silent = self.wait_for_answers(held, questions.clone()).await?;
        let answers =
            questions.into_iter().zip(silent).map(|(question, silent)| match (question, silent) {
                (_, Some(question)) => Answer::Silent(question),
                (Some(_), None) => Answer::Alive,
                (None, None) => Answer::Unknown,
            });
        Ok(answers.collect())
    }

    /// Waits until these questions are answered, at most [`ANSWER_TIMEOUT`]. Returns those that are not.
    async fn wait_for_answers(
        &self,
        held: &[Held],
        mut questions: Vec<Option<Uuid>>,
    ) -> Result<Vec<Option<Uuid>>, StoreError> {
        let names: Vec<String> = held.iter().map(|held| held.name.clone()).collect();
        let until = tokio::time::Instant::now() + ANSWER_TIMEOUT;
        while questions.iter().any(Option::is_some) && tokio::time::Instant::now() < until {
            tokio::time::sleep(READ_INTERVAL).await;
            let now = self.held(&names).await?;
            for (question, name) in questions.iter_mut().zip(&names) {
                let entry = now.iter().find(|held| held.name == *name).map(|held| held.entry);
                // A name that nobody holds any more is free at the next round.
                question.take_if(|question| {
                    entry.is_none_or(|entry| entry.question != Some(*question))
                });
            }
        }
        Ok(questions)
    }

    /// The error that names a live holder.
    async fn taken(&self, held: Vec<Held>) -> Result<NameError, StoreError> {
        let Some(Held { name, entry }) = held.into_iter().next() else {
            return Ok(NameError::Contended { name: String::new() });
        };
        let document = self.document_of(entry.holder).await?;
        let host = document
            .as_ref()
            .and_then(|document| Some(document.get_str(fields::HOSTNAME).ok()?.to_owned()));
        Ok(NameError::Taken { name, holder: Holder { id: entry.holder, host } })
    }

    /// The id under which an instance leases.
    async fn owner_of(&self, holder: InstanceId) -> Result<InstanceId, StoreError> {
        let document = self.document_of(holder).await?;
        let owner = document.as_ref().and_then(|document| document.get(fields::LEASE_OWNER));
        Ok(owner.and_then(InstanceId::read).unwrap_or(holder))
    }

    async fn insert(&self, name: &str) -> Result<bool, StoreError> {
        let control = self.control();
        let filter = doc! { ID: id(name), HOLDER: { "$exists": false } };
        let set = doc! { "$set": { HOLDER: self.instance, UPDATED_AT: "$$NOW" } };
        let inserting = control.update_one(filter, vec![set]).upsert(true).into_future();
        match within("hold a name", limits::BATCH, inserting).await {
            Ok(written) => Ok(written.matched_count > 0 || written.upserted_id.is_some()),
            Err(error) if error.code() == Some(DUPLICATE_KEY) => Ok(false),
            Err(error) => Err(error),
        }
    }

    async fn replace(
        &self,
        name: &str,
        before: InstanceId,
        question: Uuid,
    ) -> Result<bool, StoreError> {
        let filter = doc! { ID: id(name), HOLDER: before, QUESTION: question };
        let set = doc! { "$set": { HOLDER: self.instance, UPDATED_AT: "$$NOW" } };
        let change = vec![set, doc! { "$unset": QUESTION }];
        self.update("replace the holder of a name", filter, change).await
    }

    /// Returns whether a document matched.
    async fn update(
        &self,
        action: &'static str,
        filter: Document,
        change: Vec<Document>,
    ) -> Result<bool, StoreError> {
        let control = self.control();
        let updating = control.update_one(filter, change).into_future();
        Ok(within(action, limits::BATCH, updating).await?.matched_count > 0)
    }

    async fn document_of(&self, holder: InstanceId) -> Result<Option<Document>, StoreError> {
        let instances = self.collections.collection(collections::INSTANCES);
        Ok(self.find(instances, vec![holder.into()]).await?.pop())
    }

    async fn find(
        &self,
        collection: Collection<Document>,
        ids: Vec<Bson>,
    ) -> Result<Vec<Document>, StoreError> {
        let finding = collection.find(doc! { ID: { "$in": ids } });
        let reading = async { finding.await?.try_collect().await };
        within("read the names of instances", limits::BATCH, reading).await
    }

    fn control(&self) -> Collection<Document> {
        self.collections.collection(collections::CONTROL)
    }
}

fn id(name: &str) -> String {
    format!("{PREFIX}{name}")
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn a_default_name_is_tried_with_numbers_and_an_explicit_one_is_not() {
        let explicit = WantedName::Explicit("pod-1".into()).candidates();
        let default = WantedName::Default("host:/a.toml".into()).candidates();

        assert_eq!(explicit, ["pod-1"]);
        assert_eq!(default[..3], ["host:/a.toml", "host:/a.toml#2", "host:/a.toml#3"]);
    }

    #[test]
    fn a_default_name_tells_two_configurations_on_one_host_apart() {
        let of = |path: &str| WantedName::of_process(Some(Path::new(path)));

        assert_ne!(of("a.toml"), of("b.toml"));
        assert_eq!(of("/etc/a.toml"), of("/etc/a.toml"));
        let WantedName::Default(long) = of(&format!("/{}/a.toml", "x".repeat(300))) else {
            panic!("a default name");
        };
        assert!(long.chars().count() == MAX_NAME_LENGTH && long.ends_with("x/a.toml"), "{long}");
    }

    #[test]
    fn other_documents_of_outbox_control_are_no_names() {
        assert_eq!(read(&doc! { "_id": "relay", "paused": true }), None);
        assert_eq!(read(&doc! { "_id": "name:a", "holder": "text" }), None);
        let holder = InstanceId::fresh();

        let (name, entry) = read(&doc! { "_id": "name:a", "holder": holder }).unwrap();

        assert_eq!(
            (name.as_str(), entry),
            ("a", NameEntry { holder, question: None, is_old: false })
        );
    }
}
