//! Finds out which dead records no longer block their keys (`relay.on_dead = "block"`).
//!
//! An operator requeues, discards, deletes or edits them, without a message to the relay. Nothing
//! else ends the wait of such a key, and there may be very many. So they are read again in *rounds*:
//! some hundreds with one command, for a tenth of the time, in every `poll_interval`.
//!
//! With more keys than one command reads, a stream of such changes replaces the rounds
//! (`change_stream::unblocking`), while the relay has a change stream at all. A round follows the
//! opening, since what happened before is not in the stream. Keys that are blocked later are read
//! again: they may have been read before a change that the stream has shown already. From then
//! on only the keys of changed records are read. As an audit a slow round takes place in every
//! `audit_interval`.
//!
//! A key that is unblocked is scanned. The scan decides, by what its own snapshot shows.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bson::{Bson, Timestamp};
use postrider_outbox::ids::RecordId;
use postrider_outbox::record::LaneKey;
use postrider_outbox::snapshot::OutboxSnapshot;
use postrider_outbox::wakeup::Wakeup;
use postrider_store::StoreError;
use postrider_store::text::chain;
use tokio::sync::watch;
use tracing::debug;

use crate::change_stream::Unblockings;
use crate::context::RelayContext;
use crate::metrics::ReadSource;
use crate::recheck::{BATCH_KEYS, REST_FACTOR};
use crate::scanner::Scanner;
use crate::sink::Sink;

/// Keys from which the stream is opened; with half as many it is closed.
const WATCHED_KEYS: usize = BATCH_KEYS;

/// The pause after each command of an audit, as a multiple of its duration.
const AUDIT_REST_FACTOR: u32 = 99;

/// The longest pause between two reads of the stream.
const MAX_PAUSE: Duration = Duration::from_millis(500);

/// The pause while the stream has more.
const BACKLOG_PAUSE: Duration = Duration::from_millis(10);

/// The pause before a lost stream is opened again.
const REOPEN_PAUSE: Duration = Duration::from_secs(5);

/// A key and the dead record that blocks it.
type DeadBlocked = (Arc<str>, RecordId);

/// An opening of the stream, by its number; `None` while there is no stream.
type Opening = Option<u64>;

/// Unblocks keys, forever.
pub(crate) async fn run<S: Sink>(context: Arc<RelayContext<S>>, wakeup: Wakeup) {
    let dead_blockers = DeadBlockers { context: &context, wakeup: &wakeup };
    let opening = watch::Sender::new(None);
    tokio::join!(dead_blockers.run_rounds(opening.subscribe()), dead_blockers.follow(&opening));
}

struct DeadBlockers<'a, S> {
    context: &'a RelayContext<S>,
    wakeup: &'a Wakeup,
}

impl<S: Sink> DeadBlockers<'_, S> {
    /// Reads all of them in rounds.
    async fn run_rounds(&self, mut opening: watch::Receiver<Opening>) {
        let poll = self.context.settings.poll_interval;
        let mut changes = self.wakeup.changes();
        // The opening after which all were read.
        let mut verified: Opening = None;
        loop {
            let (began, opened) = (Instant::now(), *opening.borrow_and_update());
            if opened.is_none() {
                // This round reads them.
                self.context.state.key_table.take_unverified();
            }
            match self.run_round(&opening, verified).await {
                Ok(()) => verified = opened,
                // The scan meets the same error and logs it.
                Err(error) => {
                    debug!(error = chain(&error), "failed to recheck dead blockers; retrying");
                }
            }
            let is_watched = opened.is_some() && verified == opened;
            let pause = if is_watched { self.context.settings.audit_interval } else { poll };
            // (The senders live as long as this task.)
            tokio::select! {
                () = tokio::time::sleep(pause.saturating_sub(began.elapsed())) => {}
                _ = changes.changed(), if !is_watched => {}
                _ = opening.changed() => {}
            }
        }
    }

    async fn run_round(
        &self,
        opening: &watch::Receiver<Opening>,
        verified: Opening,
    ) -> Result<(), StoreError> {
        let key_table = &self.context.state.key_table;
        let mut from = None;
        loop {
            let (keys, next) = key_table.dead_blockers(from.as_ref(), BATCH_KEYS);
            let opened = *opening.borrow();
            let is_audit = opened.is_some() && opened == verified;
            let rest = if is_audit { AUDIT_REST_FACTOR } else { REST_FACTOR };
            self.check(&keys, rest).await?;
            match next {
                Some(_) => from = next,
                None => break,
            }
        }
        // While the stream carries the records it reports these too, and a pass reads the others.
        if key_table.scan_start().follows || !self.context.settings.is_ordered() {
            return Ok(());
        }
        let began = Instant::now();
        Scanner::new(self.context).block_all_dead().await?;
        tokio::time::sleep(began.elapsed() * REST_FACTOR).await;
        Ok(())
    }

    /// Keeps the stream open while it is wanted, and reads the keys of changed records.
    async fn follow(&self, opening: &watch::Sender<Opening>) {
        // A freed key must not wait for a whole `poll_interval`.
        let usual = MAX_PAUSE.min(self.context.settings.poll_interval / 2);
        let (mut stream, mut number, mut pause) = (None, 0, usual);
        loop {
            tokio::time::sleep(pause).await;
            pause = usual;
            if !self.wants_stream(stream.is_some()) {
                stream = None;
                opening.send_if_modified(|opening| opening.take().is_some());
                continue;
            }
            match self.read_stream(&mut stream).await {
                Ok(has_more) => {
                    if opening.borrow().is_none() {
                        number += 1;
                        opening.send_replace(Some(number));
                    }
                    if has_more {
                        pause = BACKLOG_PAUSE;
                    }
                }
                Err(error) => {
                    debug!(error = chain(&error), "lost the stream of dead blockers; reopening");
                    stream = None;
                    opening.send_replace(None);
                    tokio::time::sleep(REOPEN_PAUSE).await;
                }
            }
        }
    }

    fn wants_stream(&self, is_open: bool) -> bool {
        let wanted = if is_open { WATCHED_KEYS / 2 } else { WATCHED_KEYS };
        self.wakeup.is_followed() && self.context.state.key_table.dead_count() > wanted
    }

    /// Reads one batch of the stream. Returns whether there may be more: it also passes all deletions of delivered
    /// records.
    async fn read_stream(&self, stream: &mut Option<Unblockings>) -> Result<bool, StoreError> {
        let key_table = &self.context.state.key_table;
        let stream = match stream {
            Some(stream) => stream,
            None => {
                // The round that follows reads them.
                key_table.take_unverified();
                stream.insert(Unblockings::open(&self.context.collections).await?)
            }
        };
        let changed = stream.next().await?;
        let has_more = !changed.is_empty();
        let mut keys = key_table.blocked_by(&changed);
        keys.extend(key_table.take_unverified());
        for some in keys.chunks(BATCH_KEYS) {
            let moment = self.check(some, REST_FACTOR).await?;
            // (A new primary may not know yet what the stream has shown.)
            if moment.is_none_or(|moment| moment < stream.read_until()) {
                key_table.verify_again(some.iter().map(|(key, _)| key.clone()));
            }
        }
        Ok(has_more)
    }

    /// Unblocks those of these keys that their records no longer block, then rests for so many times
    /// as long. Returns the moment of the read.
    async fn check(
        &self,
        keys: &[DeadBlocked],
        rest: u32,
    ) -> Result<Option<Timestamp>, StoreError> {
        if keys.is_empty() {
            return Ok(None);
        }
        let (context, began) = (self.context, Instant::now());
        let ids: Vec<Bson> = keys.iter().map(|(_, id)| Bson::from(id)).collect();
        let mut snapshot = OutboxSnapshot::begin(&context.collections).await?;
        let still: HashMap<RecordId, LaneKey> = snapshot.still_blocking(&ids).await?;
        context.metrics.seen(ReadSource::Recheck, still.len());
        // (A record may have moved to another key.)
        let blocks = |(key, id): &&DeadBlocked| {
            still.get(id).is_some_and(|lane| matches!(lane, LaneKey::Keyed(its) if its == key))
        };
        for (key, id) in keys.iter().filter(|dead| !blocks(dead)) {
            if let Some(hint) = context.state.key_table.unblock_from_dead(key, id) {
                self.wakeup.at(hint);
            }
        }
        tokio::time::sleep(began.elapsed() * rest).await;
        Ok(snapshot.moment())
    }
}
