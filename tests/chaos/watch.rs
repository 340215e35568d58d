//! Reads the records' changes in a change stream, through all faults of the replica set.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use bson::{DateTime, Document};
use futures_util::StreamExt;
use mongodb::change_stream::event::{ChangeStreamEvent, OperationType, ResumeToken};
use mongodb::error::Result;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::commands::{Settles, id_of};
use crate::ledger::{Change, Ledger, What};
use crate::support::outbox::TestOutbox;

/// A ledger that is being written.
pub struct Watch {
    pub ledger: Arc<Mutex<Ledger>>,
    task: JoinHandle<()>,
}

impl Watch {
    /// Starts to watch from here on.
    pub async fn start(outbox: &TestOutbox, settles: Arc<Settles>) -> Self {
        let ledger = Arc::<Mutex<Ledger>>::default();
        let (records, book) = (outbox.records(), ledger.clone());
        let (opened, is_open) = oneshot::channel();
        let task = tokio::spawn(async move {
            let mut opened = Some(opened);
            let mut after = None;
            loop {
                let _ = follow(&records, &mut after, &mut opened, |event| {
                    book.lock().unwrap().note(change(event), &settles);
                })
                .await;
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        });
        is_open.await.unwrap();
        Self { ledger, task }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Reads until the stream breaks; the next one continues after the last event.
async fn follow(
    records: &mongodb::Collection<Document>,
    after: &mut Option<ResumeToken>,
    opened: &mut Option<oneshot::Sender<()>>,
    mut note: impl FnMut(ChangeStreamEvent<Document>),
) -> Result<()> {
    let mut stream = records.watch().resume_after(after.clone()).await?;
    // The position of a stream that has delivered nothing yet.
    if after.is_none() {
        *after = stream.resume_token();
    }
    if let Some(opened) = opened.take() {
        let _ = opened.send(());
    }
    while let Some(event) = stream.next().await {
        let event = event?;
        *after = Some(event.id.clone());
        note(event);
    }
    Ok(())
}

fn change(event: ChangeStreamEvent<Document>) -> Change {
    let id = event.document_key.as_ref().and_then(|key| key.get("_id")).and_then(id_of);
    let Some(id) = id else { panic!("neither a text nor a UUID: {event:?}") };
    let what = match event.operation_type {
        OperationType::Insert => What::Inserted(event.full_document.expect("an insert has it")),
        OperationType::Replace => What::Replaced(event.full_document.expect("a replace has it")),
        OperationType::Delete => What::Deleted,
        OperationType::Update => {
            let update = event.update_description.expect("an update has it");
            What::Updated { set: update.updated_fields, unset: update.removed_fields }
        }
        other => panic!("nobody does {other:?} here"),
    };
    let at = event.wall_time.unwrap_or(DateTime::MIN);
    Change { id, at, brought: DateTime::now(), what }
}
