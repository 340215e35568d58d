//! Finds out which keys no dead record blocks any longer (`relay.on_dead = "block"`).
//!
//! An operator requeues, discards, deletes or edits them, without a message to the relay. Nothing
//! else ends the wait of such a key, and there may be very many. So their keys are read again in
//! *rounds*: some hundreds with one command, for a tenth of the time, in every `poll_interval`.
//!
//! With more keys than one command reads, a stream of such changes replaces the rounds
//! (`change_stream::unblocking`), while the relay has a change stream at all. From then on only the
//! keys of changed records are read, and each key once after the opening, or after it was added: it
//! may have been read before a change that the stream does not show, or has shown already. As an
//! audit a slow round takes place in every `audit_interval`.
//!
//! A key that is unblocked is scanned. The scan decides, by what its own snapshot shows.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bson::{Bson, Timestamp};
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
use crate::scanner::{Scanner, blocked_of};
use crate::sink::Sink;

/// Keys from which the stream is opened; with half as many it is closed.
const WATCHED_KEYS: usize = BATCH_KEYS;

/// The pause after each command of an audit, as a multiple of its duration.
const AUDIT_REST_FACTOR: u32 = 99;

/// The longest pause between two reads of the stream.
const MAX_PAUSE: Duration = Duration::from_millis(500);

/// The pause while the stream has more, or keys wait to be read.
const BACKLOG_PAUSE: Duration = Duration::from_millis(10);

/// The pause before a lost stream is opened again.
const REOPEN_PAUSE: Duration = Duration::from_secs(5);

/// Changes in one reply after which the stream may have many more.
const MANY_CHANGES: usize = 1_000;

/// Unblocks keys, forever.
pub(crate) async fn run<S: Sink>(context: Arc<RelayContext<S>>, wakeup: Wakeup) {
    let dead_blockers = DeadBlockers { context: &context, wakeup: &wakeup };
    let is_watched = watch::Sender::new(false);
    tokio::join!(
        dead_blockers.run_rounds(is_watched.subscribe()),
        dead_blockers.follow(&is_watched)
    );
}

/// What a read has shown of some keys.
struct Checked {
    /// The moment of the read.
    moment: Option<Timestamp>,
    /// The keys of which it has shown nothing.
    unknown: Vec<Arc<str>>,
}

struct DeadBlockers<'a, S> {
    context: &'a RelayContext<S>,
    wakeup: &'a Wakeup,
}

impl<S: Sink> DeadBlockers<'_, S> {
    /// Reads all keys in rounds. While a stream `is_watched`, that is only an audit.
    async fn run_rounds(&self, mut is_watched: watch::Receiver<bool>) {
        let settings = &self.context.settings;
        let mut changes = self.wakeup.changes();
        loop {
            let (began, is_audit) = (Instant::now(), *is_watched.borrow_and_update());
            if is_audit {
                tokio::select! {
                    () = tokio::time::sleep(settings.audit_interval) => {}
                    // (The senders live as long as this task.)
                    _ = is_watched.changed() => continue,
                }
            }
            // (It ends whatever changes: the stream may be lost again and again.)
            self.run_round(|| is_audit && *is_watched.borrow()).await;
            if !is_audit {
                let pause = settings.poll_interval.saturating_sub(began.elapsed());
                tokio::select! {
                    () = tokio::time::sleep(pause) => {}
                    _ = changes.changed() => {}
                    _ = is_watched.changed() => {}
                }
            }
        }
    }

    async fn run_round(&self, is_audit: impl Fn() -> bool) {
        let key_table = &self.context.state.key_table;
        let mut from = None;
        loop {
            let (keys, next) = key_table.dead_blocked(from.as_ref(), BATCH_KEYS);
            let rest = if is_audit() { AUDIT_REST_FACTOR } else { REST_FACTOR };
            if let Err(error) = self.check(&keys, rest).await {
                // The scan meets the same error and logs it.
                debug!(error = chain(&error), "failed to recheck dead blockers; retrying");
                tokio::time::sleep(self.context.settings.poll_interval).await;
                continue;
            }
            match next {
                Some(_) => from = next,
                None => break,
            }
        }
        // While the stream carries the records it reports these too, and a pass reads the others.
        if key_table.scan_start().follows {
            return;
        }
        let began = Instant::now();
        if let Err(error) = Scanner::new(self.context).block_all_dead().await {
            debug!(error = chain(&error), "failed to read all dead blockers");
        }
        tokio::time::sleep(began.elapsed() * REST_FACTOR).await;
    }

    /// Keeps the stream open while it is wanted, and reads the keys of changed records.
    async fn follow(&self, is_watched: &watch::Sender<bool>) {
        // A freed key must not wait for a whole `poll_interval`.
        let usual = MAX_PAUSE.min(self.context.settings.poll_interval / 2);
        let (mut stream, mut pause) = (None, usual);
        loop {
            tokio::time::sleep(pause).await;
            pause = usual;
            if self.wants_stream(stream.is_some()) {
                match self.read_stream(&mut stream).await {
                    Ok(true) => pause = BACKLOG_PAUSE,
                    Ok(false) => {}
                    Err(error) => {
                        debug!(
                            error = chain(&error),
                            "lost the stream of dead blockers; reopening"
                        );
                        (stream, pause) = (None, REOPEN_PAUSE);
                    }
                }
            } else {
                stream = None;
            }
            let is_open = stream.is_some();
            if !is_open {
                self.context.state.key_table.stop_verifying_dead();
            }
            is_watched.send_if_modified(|was| std::mem::replace(was, is_open) != is_open);
        }
    }

    fn wants_stream(&self, is_open: bool) -> bool {
        let wanted = if is_open { WATCHED_KEYS / 2 } else { WATCHED_KEYS };
        self.wakeup.is_followed() && self.context.state.key_table.dead_count() > wanted
    }

    /// Reads one batch of the stream, which also passes all deletions of delivered records, then
    /// the keys of changed records, and some of those that must be read again. Returns whether it
    /// should be called again soon.
    async fn read_stream(&self, stream: &mut Option<Unblockings>) -> Result<bool, StoreError> {
        let key_table = &self.context.state.key_table;
        let stream = match stream {
            Some(stream) => stream,
            None => {
                let opened = Unblockings::open(&self.context.collections).await?;
                // What was before is not in the stream.
                key_table.verify_all_dead();
                stream.insert(opened)
            }
        };
        let changed = stream.next().await?;
        // Not all that must be read again: the stream would not be read meanwhile.
        let (named, others) = key_table.take_dead(&changed, BATCH_KEYS);
        for keys in named.chunks(BATCH_KEYS).chain(others.chunks(BATCH_KEYS)) {
            let Checked { moment, unknown } = self.check(keys, REST_FACTOR).await?;
            // (A new primary may not know yet what the stream has shown.)
            let is_late = moment.is_some_and(|moment| moment >= stream.read_until());
            key_table.verify_dead(if is_late { unknown } else { keys.to_vec() });
        }
        Ok(changed.len() >= MANY_CHANGES || key_table.has_unverified_dead())
    }

    /// Unblocks those of these keys that no dead record blocks, then rests for so many times as
    /// long.
    async fn check(&self, keys: &[Arc<str>], rest: u32) -> Result<Checked, StoreError> {
        if keys.is_empty() {
            return Ok(Checked { moment: None, unknown: Vec::new() });
        }
        let (key_table, began) = (&self.context.state.key_table, Instant::now());
        let mut snapshot = OutboxSnapshot::begin(&self.context.collections).await?;
        let mut still = HashMap::new();
        let asked: Vec<Bson> = keys.iter().map(|key| Bson::String(key.to_string())).collect();
        let not_known = blocked_of(&mut still, &mut snapshot, &asked).await?;
        self.context.metrics.seen(ReadSource::Recheck, still.len());
        let mut unknown = Vec::new();
        for key in keys {
            let lane = LaneKey::Keyed(key.clone());
            if let Some(blocker) = still.remove(&lane) {
                key_table.update_dead(&lane, blocker);
            } else if not_known.contains(&lane) {
                unknown.push(key.clone());
            } else if let Some(hint) = key_table.unblock_from_dead(key) {
                self.wakeup.at(hint);
            }
        }
        tokio::time::sleep(began.elapsed() * rest).await;
        Ok(Checked { moment: snapshot.moment(), unknown })
    }
}
