//! Manages the names of instances: a restarted instance replaces its predecessor at once.
//!
//! A name is a document in `outbox_control` that names its holder. A new instance that finds a holder
//! writes a question there. A holder that runs removes it within [`ANSWER_TIMEOUT`] ([`answer_questions`]), if MongoDB
//! answers it in time. If the holder does not answer, the new instance replaces it by an update that matches the holder and the
//! question: either the answer or the replacement succeeds. A replaced instance publishes nothing more
//! and ends. A process that was suspended reads before it publishes ([`suspension`](crate::partition::suspension)).
//!
//! `tests/model/src/names` models the rules, and shows what fails without each.

use std::fmt;
use std::time::Duration;

use bson::raw::RawDocumentBuf;
use bson::{Bson, Document, Uuid, doc};
use futures_util::TryStreamExt;
use mongodb::Collection;
use postrider_outbox::collections::{Collections, names as collections};
use postrider_outbox::fields::ID;
use postrider_outbox::ids::InstanceId;
use postrider_outbox::undecoded::decode_valid_fields;
use postrider_store::text::chain;
use postrider_store::{DUPLICATE_KEY, StoreError, limits, within};
use tracing::debug;

use crate::partition::fields;

/// How long a newcomer with an explicit name waits for the answer of a holder: it is mostly a restart in place.
pub const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);

/// The same with a default name. The holder may be meant to run too, and MongoDB may answer it slowly.
const DEFAULT_NAME_ANSWER_TIMEOUT: Duration = Duration::from_secs(3);

/// How often it reads the name meanwhile.
const READ_INTERVAL: Duration = Duration::from_millis(50);

/// How often a holder reads whether there is a question.
const ANSWER_INTERVAL: Duration = Duration::from_millis(250);

/// The greatest number behind a default name.
const MAX_NUMBER: usize = 100;

/// How often a new instance starts again because another one was faster.
const MAX_ROUNDS: usize = 20;

/// The prefix of a name in the `_id` of its document.
const PREFIX: &str = "name:";

/// The instance that holds a name.
const HOLDER: &str = "holder";
/// The id of the question whether the holder is alive.
const QUESTION: &str = "question";
/// When the holder or the question changed, by the server's clock.
const UPDATED_AT: &str = "updatedAt";

/// The age from which a name whose holder has no document is removed.
const UNUSED_AFTER: Duration = Duration::from_secs(3_600);

/// The field of a view that says whether a name is that old ([`is_old`]).
pub(super) const IS_OLD: &str = "_isOld";

/// The longest name, in characters.
pub const MAX_NAME_LENGTH: usize = 200;

/// The name that an instance wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WantedName {
    /// Set by the operator: exactly this name.
    Explicit(String),
    /// The default name, with the first free number behind it if it is taken.
    Default(String),
}

impl WantedName {
    /// Returns the default name: the host, and the path of the configuration if there is one.
    pub fn of_process(config: Option<&std::path::Path>) -> Self {
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let path = config.map(|path| std::path::absolute(path).unwrap_or_else(|_| path.into()));
        let name = match path {
            Some(path) => format!("{host}:{}", path.display()),
            None => host,
        };
        // The end of a path distinguishes it.
        let excess = name.chars().count().saturating_sub(MAX_NAME_LENGTH);
        Self::Default(name.chars().skip(excess).collect())
    }

    fn answer_timeout(&self) -> Duration {
        match self {
            Self::Explicit(_) => ANSWER_TIMEOUT,
            Self::Default(_) => DEFAULT_NAME_ANSWER_TIMEOUT,
        }
    }

    /// Returns the names in the order of the attempts.
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

/// The holder of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NameEntry {
    /// The holder.
    pub holder: InstanceId,
    /// The unanswered question whether it is alive.
    pub question: Option<Uuid>,
    /// Whether it has not changed for an hour.
    pub is_old: bool,
}

/// A name that an instance holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldName {
    /// The name.
    pub name: String,
    /// The owner id of the previous holder, which did not answer: this instance takes over its leases.
    pub predecessor: Option<InstanceId>,
}

/// Why an instance did not get a name.
#[derive(Debug, thiserror::Error)]
pub enum NameError {
    /// A live instance holds it.
    #[error(
        "instance.name = {name:?}: instance {holder} has this name and is alive; set a \
         different name for each instance, or stop that instance"
    )]
    Taken {
        /// The name.
        name: String,
        /// The live instance.
        holder: Holder,
    },
    /// Others were first, again and again.
    #[error(
        "instance.name = {name:?}: too many instances start with this name at the same time; \
         start them one after the other"
    )]
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

/// Returns an expression: the document has not changed for [`UNUSED_AFTER`].
pub(super) fn is_old() -> Document {
    let millis = i64::try_from(UNUSED_AFTER.as_millis()).unwrap_or(i64::MAX);
    doc! { "$lt": [format!("${UPDATED_AT}"), { "$subtract": ["$$NOW", millis] }] }
}

/// Reads the instance that holds a name, with read concern `majority`.
pub async fn holder(
    collections: &Collections,
    name: &str,
    limit: Duration,
) -> Result<Option<InstanceId>, StoreError> {
    let names = collections.collection(collections::CONTROL).clone_with_type::<RawDocumentBuf>();
    let reading = names.find_one(doc! { ID: id(name) }).into_future();
    let document = within("read the holder of a name", limit, reading).await?;
    let document = document.map(|found| decode_valid_fields(&found).0);
    Ok(document.as_ref().and_then(read).map(|(_, entry)| entry.holder))
}

/// Removes a name at a graceful stop, or one whose holder has no document.
///
/// # Errors
///
/// [`StoreError`]. The next instance of the name then writes a question.
pub async fn release_name(
    collections: &Collections,
    name: &str,
    instance: InstanceId,
    limit: Duration,
) -> Result<(), StoreError> {
    let names = collections.collection(collections::CONTROL);
    let removing = names.delete_one(doc! { ID: id(name), HOLDER: instance }).into_future();
    within("release a name", limit, removing).await.map(|_| ())
}

/// Another instance holds the name of this one, which hung and did not answer a question.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "instance.name = {name:?}: instance {by} took over this name, since this instance did not \
     respond in time; set a different name for each instance"
)]
pub struct Replaced {
    /// The name.
    pub name: String,
    /// The instance that holds it.
    pub by: InstanceId,
}

/// Answers questions whether `instance` is alive, until another instance holds its name.
/// An answer waits for MongoDB alone.
pub async fn answer_questions(
    collections: Collections,
    name: String,
    instance: InstanceId,
) -> Replaced {
    let names = Names { collections: &collections, instance };
    loop {
        match names.answer(&name).await {
            Ok(None) => {}
            Ok(Some(by)) => return Replaced { name, by },
            // The heartbeat reports what is wrong with MongoDB.
            Err(error) => debug!(error = chain(&error), "failed to read the name of this instance"),
        }
        tokio::time::sleep(ANSWER_INTERVAL).await;
    }
}

/// Removes the documents of the earlier holders of this name, if `instance` holds it.
///
/// Reads the documents before the holder, and removes them by id: MongoDB may apply the removal much
/// later, when a successor of this instance has a document.
pub async fn remove_predecessors(
    collections: &Collections,
    name: &str,
    instance: InstanceId,
) -> Result<(), StoreError> {
    let instances = collections.collection(collections::INSTANCES);
    let others = doc! { fields::NAME: name, ID: { "$ne": instance } };
    let reading = instances.distinct(ID, others).into_future();
    let ids = within("read replaced instances", limits::BATCH_TIMEOUT, reading).await?;
    if ids.is_empty() || holder(collections, name, limits::BATCH_TIMEOUT).await? != Some(instance) {
        return Ok(());
    }
    let removing = instances.delete_many(doc! { ID: { "$in": ids } }).into_future();
    within("remove replaced instances", limits::BATCH_TIMEOUT, removing).await.map(|_| ())
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
            // The reply to its own write was lost.
            return Ok(HeldName { name: own.name.clone(), predecessor: None });
        }
        let answers = names.question_holders(&held, wanted.answer_timeout()).await?;
        if answers.contains(&Answer::Unknown) {
            // Another new instance was faster.
            continue;
        }
        // A crashed instance's name is preferred to a free one: its partitions wait.
        let silent = held.iter().zip(&answers).find_map(|(held, answer)| match answer {
            Answer::Silent(question) => Some((held, *question)),
            Answer::Alive | Answer::Unknown => None,
        });
        let is_held = |name: &&String| held.iter().any(|held| held.name == **name);
        let (name, is_ours, predecessor) = if let Some((Held { name, entry }, question)) = silent {
            // Read before the replacement: another new instance may remove the document.
            let predecessor = names.owner_of(entry.holder).await?;
            let is_ours = names.replace(name, entry.holder, question).await?;
            (name.clone(), is_ours, Some(predecessor))
        } else if let Some(name) = candidates.iter().find(|name| !is_held(name)) {
            (name.clone(), names.insert(name).await?, None)
        } else {
            return Err(names.taken_error(held).await?);
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

/// The outcome of a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    /// The holder answered.
    Alive,
    /// It did not answer this question.
    Silent(Uuid),
    /// The question was not written: another new instance was faster.
    Unknown,
}

struct Names<'a> {
    collections: &'a Collections,
    instance: InstanceId,
}

impl Names<'_> {
    /// Answers a question, if there is one. Returns the holder if it is another instance.
    async fn answer(&self, name: &str) -> Result<Option<InstanceId>, StoreError> {
        let held = self.held(&[name.to_owned()]).await?;
        let Some(Held { entry, .. }) = held.first() else {
            // An operator may have removed it. The next read shows whether another instance was faster.
            self.insert(name).await?;
            return Ok(None);
        };
        if entry.holder != self.instance {
            return Ok(Some(entry.holder));
        }
        if let Some(question) = entry.question {
            let filter = doc! { ID: id(name), HOLDER: self.instance, QUESTION: question };
            let now = doc! { "$set": { UPDATED_AT: "$$NOW" } };
            self.update(
                "respond to a query about a name",
                filter,
                vec![now, doc! { "$unset": QUESTION }],
            )
            .await?;
        }
        Ok(None)
    }

    /// Returns those of the names that are held, in their order.
    async fn held(&self, candidates: &[String]) -> Result<Vec<Held>, StoreError> {
        let ids: Vec<Bson> = candidates.iter().map(|name| id(name).into()).collect();
        let found = self.find(self.control(), ids).await?;
        let mut held: Vec<Held> =
            found.iter().filter_map(read).map(|(name, entry)| Held { name, entry }).collect();
        held.sort_by_key(|held| candidates.iter().position(|name| *name == held.name));
        Ok(held)
    }

    /// Writes a question to all holders, and waits for their answers.
    async fn question_holders(
        &self,
        held: &[Held],
        limit: Duration,
    ) -> Result<Vec<Answer>, StoreError> {
        let others: Vec<Option<Uuid>> = held.iter().map(|held| held.entry.question).collect();
        // Waits for another instance's question too: otherwise two could replace each other's questions for ever.
        self.wait_for_answers(held, others, limit).await?;
        let mut questions = Vec::new();
        for Held { name, entry } in held {
            let question = Uuid::new();
            // Matches nothing if the other question was answered or replaced.
            let filter = doc! { ID: id(name), HOLDER: entry.holder, QUESTION: entry.question };
            let change = vec![doc! { "$set": { QUESTION: question, UPDATED_AT: "$$NOW" } }];
            let is_asked = self.update("query the holder of a name", filter, change).await?;
            questions.push(is_asked.then_some(question));
        }
        let silent = self.wait_for_answers(held, questions.clone(), limit).await?;
        let answers =
            questions.into_iter().zip(silent).map(|(question, silent)| match (question, silent) {
                (_, Some(question)) => Answer::Silent(question),
                (Some(_), None) => Answer::Alive,
                (None, None) => Answer::Unknown,
            });
        Ok(answers.collect())
    }

    /// Waits for these answers, at most `limit`. Returns the unanswered questions.
    async fn wait_for_answers(
        &self,
        held: &[Held],
        mut questions: Vec<Option<Uuid>>,
        limit: Duration,
    ) -> Result<Vec<Option<Uuid>>, StoreError> {
        let names: Vec<String> = held.iter().map(|held| held.name.clone()).collect();
        let until = tokio::time::Instant::now() + limit;
        while questions.iter().any(Option::is_some) && tokio::time::Instant::now() < until {
            tokio::time::sleep(READ_INTERVAL).await;
            let now = self.held(&names).await?;
            for (question, name) in questions.iter_mut().zip(&names) {
                let entry = now.iter().find(|held| held.name == *name).map(|held| held.entry);
                // A name that is no longer held is free in the next round.
                question.take_if(|question| {
                    entry.is_none_or(|entry| entry.question != Some(*question))
                });
            }
        }
        Ok(questions)
    }

    /// Returns the error that names a live holder.
    async fn taken_error(&self, held: Vec<Held>) -> Result<NameError, StoreError> {
        let Some(Held { name, entry }) = held.into_iter().next() else {
            return Ok(NameError::Contended { name: String::new() });
        };
        let document = self.document_of(entry.holder).await?;
        let host = document
            .as_ref()
            .and_then(|document| Some(document.get_str(fields::HOSTNAME).ok()?.to_owned()));
        Ok(NameError::Taken { name, holder: Holder { id: entry.holder, host } })
    }

    /// Reads the owner id of an instance.
    async fn owner_of(&self, holder: InstanceId) -> Result<InstanceId, StoreError> {
        let document = self.document_of(holder).await?;
        let owner = document.as_ref().and_then(|document| document.get(fields::LEASE_OWNER));
        Ok(owner.and_then(InstanceId::read).unwrap_or(holder))
    }

    async fn insert(&self, name: &str) -> Result<bool, StoreError> {
        let control = self.control();
        // (What is not the id of an instance holds no name.)
        let filter = doc! { ID: id(name), HOLDER: { "$not": { "$type": "binData" } } };
        let set = doc! { "$set": { HOLDER: self.instance, UPDATED_AT: "$$NOW" } };
        let inserting = control.update_one(filter, vec![set]).upsert(true).into_future();
        match within("acquire a name", limits::BATCH_TIMEOUT, inserting).await {
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
        Ok(within(action, limits::BATCH_TIMEOUT, updating).await?.matched_count > 0)
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
        let collection = collection.clone_with_type::<RawDocumentBuf>();
        let finding = collection.find(doc! { ID: { "$in": ids } });
        let reading = async { finding.await?.try_collect().await };
        let found: Vec<RawDocumentBuf> =
            within("read the names of instances", limits::BATCH_TIMEOUT, reading).await?;
        // (A field that cannot be decoded is none.)
        Ok(found.iter().map(|found| decode_valid_fields(found).0).collect())
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
    fn default_name_gets_numbers_and_explicit_name_does_not() {
        let explicit = WantedName::Explicit("pod-1".into()).candidates();
        let default = WantedName::Default("host:/a.toml".into()).candidates();

        assert_eq!(explicit, ["pod-1"]);
        assert_eq!(default[..3], ["host:/a.toml", "host:/a.toml#2", "host:/a.toml#3"]);
    }

    #[test]
    fn default_name_differs_between_configurations_of_a_host() {
        let of = |path: &str| WantedName::of_process(Some(Path::new(path)));

        assert_ne!(of("a.toml"), of("b.toml"));
        assert_eq!(of("/etc/a.toml"), of("/etc/a.toml"));
        let WantedName::Default(long) = of(&format!("/{}/a.toml", "x".repeat(300))) else {
            panic!("a default name");
        };
        assert!(long.chars().count() == MAX_NAME_LENGTH && long.ends_with("x/a.toml"), "{long}");
    }

    #[test]
    fn other_documents_of_outbox_control_are_not_names() {
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
