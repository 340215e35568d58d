//! A rebuild next to the live generation: it is begun, followed, made live, and the old one dropped.
//!
//! ```text
//!  postrider_projections      { live: 1 } ── begin ──▶ { live: 1, building: 2 } ── switch ──▶ { live: 2 }
//!  readers                    1 ───────────────────────────────────────────────────────────▶ 2
//!  checkpoint of 1            ───▶ ───▶ ───▶ ───▶ ───▶ ───▶ ───▶ ───▶ ───▶ ───▶ ───▶ ───▶ … until dropped
//!  checkpoint of 2                           0 ─────▶ ─────▶ ─────▶ ─────▶ not behind 1 ───▶ …
//! ```

use std::time::Duration;

use bson::{Document, doc};
use futures_util::FutureExt;
use mongodb::{ClientSession, Database};
use postrider_events::feed::FeedState;
use postrider_store::{StoreError, limits, within};
use tokio_util::sync::CancellationToken;
use tracing::info;

use crate::checkpoint::fields::{BUILDING, DROPPED_AT, LIVE, NEWEST, READ_MODEL, SWITCHED_AT};
use crate::checkpoint::{CHECKPOINTS, Checkpoint, Generations, READ_MODELS, checkpoints};
use crate::error::ProjectionError;
use crate::name::Generation;
use crate::projector::Projector;
use crate::read_model::ReadModel;
use crate::resolver::MAX_STALENESS;

/// The pause between two looks at a checkpoint.
const LOOK_PAUSE: Duration = Duration::from_millis(50);

/// How long a generation is kept after the last switch: until no reader takes it for the live one.
const DROP_DELAY: Duration = Duration::from_secs(5);
const _: () = assert!(DROP_DELAY.as_secs() > 2 * MAX_STALENESS.as_secs());

/// What a switch compares.
#[derive(Clone)]
struct Planned {
    name: String,
    from: Generation,
    to: Generation,
    ids: [String; 2],
}

impl ReadModel {
    /// Rebuilds the read model next to the live generation, makes the new one live when it is not
    /// behind, and follows the feed with it until `stop`.
    ///
    /// Continues a rebuild that has begun. The generation before stays, and is still followed by the
    /// processes that run it: [`drop_generation`](Self::drop_generation) ends them.
    ///
    /// # Errors
    ///
    /// [`ProjectionError`]. While MongoDB is unreachable it waits.
    pub async fn rebuild(
        &self,
        projector: &impl Projector,
        stop: CancellationToken,
    ) -> Result<(), ProjectionError> {
        let generation = tokio::select! {
            begun = self.retry(|| self.begin_rebuild()) => begun?,
            () = stop.cancelled() => return Ok(()),
        };
        let following = self.run_generation(generation, projector, stop.clone());
        let mut following = std::pin::pin!(following);
        tokio::select! {
            ended = &mut following => return ended,
            switched = self.switch(generation) => drop(switched?),
        }
        following.await
    }

    /// Begins the next generation, and returns it; or the one whose rebuild has begun.
    ///
    /// Nothing is applied until a process [runs](Self::run_generation) it.
    ///
    /// # Errors
    ///
    /// [`ProjectionError::Missing`] before the first run; [`ProjectionError::OtherRevision`] and
    /// [`ProjectionError::OtherFilter`] where a rebuild has begun with another projector,
    /// [`ProjectionError::WrongFeed`] and [`ProjectionError::PositionAhead`] where it has begun before a
    /// restore: drop that generation first.
    pub async fn begin_rebuild(&self) -> Result<Generation, ProjectionError> {
        let generations = self.existing().await?;
        if let Some(building) = generations.building {
            let checkpoint = self.checkpoint(building).await?;
            checkpoint.check(&self.made_with())?;
            self.head_after(&checkpoint).await?;
            return Ok(building);
        }
        let next = Generation(generations.newest.0 + 1);
        let checkpoint = Checkpoint::new_document(&self.name, next, &self.made_with());
        let unbegun = doc! {
            "_id": self.name.as_str(),
            NEWEST: generations.newest.0,
            BUILDING: { "$exists": false },
        };
        let to = doc! { "$set": { NEWEST: next.0, BUILDING: next.0 } };
        let has_begun = self
            .transact("start a rebuild", &mut |session| {
                let (database, checkpoint) = (self.database.clone(), checkpoint.clone());
                let (unbegun, to) = (unbegun.clone(), to.clone());
                async move {
                    let models = database.collection::<Document>(READ_MODELS);
                    let begun = models.update_one(unbegun, to).session(&mut *session).await?;
                    if begun.matched_count == 1 {
                        let stored = database.collection::<Document>(CHECKPOINTS);
                        stored.insert_one(checkpoint).session(&mut *session).await?;
                    }
                    Ok(begun.matched_count == 1)
                }
                .boxed()
            })
            .await?;
        if has_begun {
            info!(read_model = self.name.as_str(), generation = next.0, "started a rebuild");
            return Ok(next);
        }
        // Another process has begun one.
        let building = self.existing().await?.building;
        building.ok_or(ProjectionError::NoGeneration { generation: next })
    }

    /// Waits until a generation has applied everything up to the present head of the feed.
    ///
    /// # Errors
    ///
    /// [`ProjectionError::Stopped`] where the projector failed; [`ProjectionError::WrongFeed`] and
    /// [`ProjectionError::PositionAhead`] where it cannot continue; [`ProjectionError::NoGeneration`];
    /// errors of MongoDB.
    pub async fn caught_up(&self, generation: Generation) -> Result<(), ProjectionError> {
        let mut target = None;
        loop {
            let checkpoint = self.checkpoint(generation).await?;
            let head = self.head_after(&checkpoint).await?;
            if checkpoint.position >= *target.get_or_insert(head) {
                return Ok(());
            }
            fail_if_stopped(&checkpoint)?;
            tokio::time::sleep(LOOK_PAUSE).await;
        }
    }

    /// The head of the feed, read after this checkpoint. Fails where a process that runs its generation
    /// would.
    async fn head_after(&self, checkpoint: &Checkpoint) -> Result<i64, ProjectionError> {
        let FeedState { feed, head, .. } = self.feed.state().await?.unwrap_or_default();
        let is_of_feed = checkpoint.feed.as_ref().is_none_or(|given| *given == feed);
        if is_of_feed && checkpoint.position <= head {
            return Ok(head);
        }
        // After an election the state may be older than the checkpoint; a page confirms it.
        let (given, filter) = (checkpoint.feed.as_deref(), &checkpoint.made_with.filter);
        let page = self.feed.page(given, checkpoint.position, filter, 1).await;
        page.map(|page| page.head).map_err(|error| checkpoint.unreadable(error))
    }

    /// Makes a generation live, as soon as it has caught up and is not behind the live one; returns the
    /// generation that was live. A process must [run](Self::run_generation) it meanwhile.
    ///
    /// It is one conditional update of the document that readers resolve, in a transaction with both
    /// checkpoints: no reader sees an older state after the switch than before. A switch back to an
    /// earlier generation works the same way, as long as a process runs that one.
    ///
    /// # Errors
    ///
    /// As [`caught_up`](Self::caught_up). While MongoDB is unreachable it waits.
    pub async fn switch(&self, to: Generation) -> Result<Generation, ProjectionError> {
        loop {
            if let Some(from) = self.retry(|| self.try_switch(to)).await? {
                return Ok(from);
            }
            tokio::time::sleep(LOOK_PAUSE).await;
        }
    }

    /// The generation that was live; `None` where another try may succeed.
    async fn try_switch(&self, to: Generation) -> Result<Option<Generation>, ProjectionError> {
        self.caught_up(to).await?;
        let from = self.existing().await?.live;
        // Also after a try whose outcome was unknown.
        if from == to {
            return Ok(Some(from));
        }
        // A position of another feed, or beyond the head, cannot be reached.
        let is_reachable = match self.head_after(&self.checkpoint(from).await?).await {
            Ok(_) => true,
            Err(ProjectionError::WrongFeed { .. } | ProjectionError::PositionAhead { .. }) => false,
            Err(error) => return Err(error),
        };
        let planned = Planned {
            name: self.name.as_str().to_owned(),
            from,
            to,
            ids: [from, to].map(|generation| self.id(generation)),
        };
        let is_switched = self
            .transact("switch a read model", &mut |session| {
                let (database, planned) = (self.database.clone(), planned.clone());
                async move {
                    let Some([live, new]) = touch(&database, &planned.ids, session).await? else {
                        return Ok(false);
                    };
                    if is_reachable && new.position < live.position {
                        return Ok(false);
                    }
                    let models = database.collection::<Document>(READ_MODELS);
                    let is_live = doc! { "_id": &planned.name, LIVE: planned.from.0 };
                    let set = vec![doc! { "$set": {
                        LIVE: planned.to.0,
                        BUILDING: building_without(planned.to),
                        SWITCHED_AT: "$$NOW",
                    } }];
                    let updated = models.update_one(is_live, set).session(&mut *session).await?;
                    Ok(updated.matched_count == 1)
                }
                .boxed()
            })
            .await?;
        if is_switched {
            let name = self.name.as_str();
            info!(read_model = name, from = from.0, to = to.0, "switched");
        }
        Ok(is_switched.then_some(from))
    }

    /// Drops a generation that is not live: its checkpoint, which stops the processes that run it, and
    /// its collections. Ends a rebuild that has not been switched to.
    ///
    /// Waits until some seconds after the last switch, since readers may know it a little later. A query
    /// that runs longer than that fails.
    ///
    /// # Errors
    ///
    /// [`ProjectionError::Live`], [`ProjectionError::NoGeneration`], [`ProjectionError::Missing`], errors
    /// of MongoDB. It can be repeated.
    pub async fn drop_generation(&self, generation: Generation) -> Result<(), ProjectionError> {
        let Generations { live, newest, .. } = self.existing().await?;
        if live == generation {
            return Err(ProjectionError::Live { generation });
        }
        if generation > newest || generation.0 < 1 {
            return Err(ProjectionError::NoGeneration { generation });
        }
        self.until_no_reader_uses_it().await?;
        let (name, id) = (self.name.as_str().to_owned(), self.id(generation));
        let is_dropped = self
            .transact("drop a generation", &mut |session| {
                let (database, name, id) = (self.database.clone(), name.clone(), id.clone());
                async move {
                    let models = database.collection::<Document>(READ_MODELS);
                    let other = doc! { "_id": name, LIVE: { "$ne": generation.0 } };
                    // In any case a write, which a switch at the same time conflicts with.
                    let building = building_without(generation);
                    let set = vec![doc! { "$set": { BUILDING: building, DROPPED_AT: "$$NOW" } }];
                    let updated = models.update_one(other, set).session(&mut *session).await?;
                    if updated.matched_count == 1 {
                        let stored = database.collection::<Document>(CHECKPOINTS);
                        stored.delete_one(doc! { "_id": id }).session(&mut *session).await?;
                    }
                    Ok(updated.matched_count == 1)
                }
                .boxed()
            })
            .await?;
        if !is_dropped {
            return Err(ProjectionError::Live { generation });
        }
        self.drop_collections(generation).await?;
        info!(read_model = self.name.as_str(), generation = generation.0, "dropped");
        Ok(())
    }

    async fn drop_collections(&self, generation: Generation) -> Result<(), StoreError> {
        let prefix = self.collections(generation).prefix();
        let listing = self.database.list_collection_names();
        let action = "drop a generation";
        let names = within(action, limits::BATCH_TIMEOUT, listing.into_future()).await?;
        for name in names.iter().filter(|name| name.starts_with(&prefix)) {
            let collection = self.database.collection::<Document>(name);
            let dropping = collection.drop();
            within(action, limits::REPORT_TIMEOUT, dropping.into_future()).await?;
        }
        Ok(())
    }

    /// Waits until the last switch was some time ago, by MongoDB's clock.
    async fn until_no_reader_uses_it(&self) -> Result<(), StoreError> {
        let millis = i64::try_from(DROP_DELAY.as_millis()).unwrap_or(i64::MAX);
        let is_recent = doc! {
            "_id": self.name.as_str(),
            "$expr": { "$gt": [{ "$add": [format!("${SWITCHED_AT}"), millis] }, "$$NOW"] },
        };
        let models = crate::checkpoint::read_models(&self.database);
        loop {
            let finding = models.find_one(is_recent.clone()).into_future();
            if within("read a read model", limits::BATCH_TIMEOUT, finding).await?.is_none() {
                return Ok(());
            }
            tokio::time::sleep(LOOK_PAUSE * 4).await;
        }
    }

    /// The checkpoints of all generations, by number.
    pub(crate) async fn all_checkpoints(&self) -> Result<Vec<Checkpoint>, StoreError> {
        use futures_util::TryStreamExt;
        let stored = checkpoints(&self.database);
        let filter = doc! { READ_MODEL: self.name.as_str() };
        let finding = async { stored.find(filter).await?.try_collect::<Vec<Document>>().await };
        let found = within("read checkpoints", limits::BATCH_TIMEOUT, finding).await?;
        let mut all: Vec<Checkpoint> = found.iter().filter_map(Checkpoint::read).collect();
        all.sort_unstable_by_key(|checkpoint| checkpoint.generation);
        Ok(all)
    }
}

/// Writes to two checkpoints, and reads them: a transaction that moves one of them conflicts.
async fn touch(
    database: &Database,
    ids: &[String; 2],
    session: &mut ClientSession,
) -> mongodb::error::Result<Option<[Checkpoint; 2]>> {
    let stored = database.collection::<Document>(CHECKPOINTS);
    let mut found = Vec::new();
    for id in ids {
        let touching = doc! { "$currentDate": { SWITCHED_AT: true } };
        let touched = stored.find_one_and_update(doc! { "_id": id }, touching);
        let touched = touched.session(&mut *session).await?;
        found.extend(touched.as_ref().and_then(Checkpoint::read));
    }
    Ok(found.try_into().ok())
}

/// The generation that is being built, unless it is this one; an expression.
fn building_without(generation: Generation) -> Document {
    let building = format!("${BUILDING}");
    let is_this = doc! { "$eq": [&building, generation.0] };
    let other = doc! { "$ifNull": [building, "$$REMOVE"] };
    doc! { "$cond": [is_this, "$$REMOVE", other] }
}

fn fail_if_stopped(checkpoint: &Checkpoint) -> Result<(), ProjectionError> {
    match &checkpoint.failure {
        Some(failure) if failure.is_final => Err(ProjectionError::Stopped {
            generation: checkpoint.generation,
            position: failure.position,
            detail: failure.detail.clone(),
        }),
        _ => Ok(()),
    }
}
