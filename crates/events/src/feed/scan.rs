//! Reads the appends without a position from the index, by their time.

use std::time::Duration;

use bson::raw::RawDocumentBuf;
use bson::{Bson, doc};
use futures_util::TryStreamExt;
use mongodb::Cursor;
use mongodb::options::Hint;
use postrider_store::{StoreError, limits, within};

use crate::commits::CommittedAppend;
use crate::context::{CollectionKind, Context};
use crate::feed::found::{projection, read};
use crate::names::AggregateName;
use crate::schema::POSITION as INDEX;
use crate::stream::fields::{CREATE_TIME, POSITION};

/// The documents of one batch of the server.
const BATCH_DOCUMENTS: u32 = 1_000;

/// A read may pass over many deleted index entries.
const TIMEOUT: Duration = limits::REPORT_TIMEOUT;

const ACTION: &str = "read appends without a position";

/// The server has closed the cursor (`error_codes.yml`), for example after ten idle minutes.
const CURSOR_NOT_FOUND: i32 = 43;

/// Appends without a position of all names, ascending by `createTime`, aggregate and version.
pub(super) struct Scan {
    context: Context,
    names: Vec<NameScan>,
    /// Documents that are no append: they have no aggregate or version.
    pub(super) invalid: u64,
}

/// The rest of one collection.
struct NameScan {
    name: AggregateName,
    /// `None` before the first read.
    cursor: Option<Cursor<RawDocumentBuf>>,
    next: Option<CommittedAppend>,
    /// The time of the last one.
    reached: Option<i64>,
    is_over: bool,
}

impl Scan {
    /// A scan of these collections. Reads nothing yet.
    pub(super) fn new(context: Context, names: impl Iterator<Item = AggregateName>) -> Self {
        let names = names.map(|name| NameScan {
            name,
            cursor: None,
            next: None,
            reached: None,
            is_over: false,
        });
        Self { context, names: names.collect(), invalid: 0 }
    }

    /// Reads the next ones, up to `limit`; none at the end.
    pub(super) async fn next(&mut self, limit: usize) -> Result<Vec<CommittedAppend>, StoreError> {
        let mut page = Vec::new();
        while page.len() < limit {
            for at in 0..self.names.len() {
                self.fill(at).await?;
            }
            let first = self
                .names
                .iter_mut()
                .filter(|scan| scan.next.is_some())
                .min_by_key(|scan| scan.next.as_ref().map(|next| next.create_time));
            let Some(append) = first.and_then(|scan| scan.next.take()) else { break };
            page.push(append);
        }
        // The index has the time only.
        page.sort_by(|one, other| {
            let order = |it: &CommittedAppend| (it.create_time, it.aggregate.clone(), it.version);
            order(one).cmp(&order(other))
        });
        Ok(page)
    }

    /// Reads the next append of a collection, if none is read yet.
    async fn fill(&mut self, at: usize) -> Result<(), StoreError> {
        let mut is_reopened = false;
        loop {
            let scan = &mut self.names[at];
            if scan.is_over || scan.next.is_some() {
                return Ok(());
            }
            let cursor = match &mut scan.cursor {
                Some(cursor) => cursor,
                None => scan.cursor.insert(open(&self.context, &scan.name, scan.reached).await?),
            };
            let reading = async { cursor.try_next().await };
            match within(ACTION, TIMEOUT, reading).await {
                Ok(Some(raw)) => match read(&scan.name, &raw) {
                    Some(found) => {
                        scan.reached = Some(found.append.create_time);
                        scan.next = Some(found.append);
                    }
                    None => self.invalid += 1,
                },
                Ok(None) => scan.is_over = true,
                Err(error) if error.code() == Some(CURSOR_NOT_FOUND) && !is_reopened => {
                    scan.cursor = None;
                    is_reopened = true;
                }
                Err(error) => return Err(error),
            }
        }
    }
}

async fn open(
    context: &Context,
    name: &AggregateName,
    from: Option<i64>,
) -> Result<Cursor<RawDocumentBuf>, StoreError> {
    let streams = context.collection(CollectionKind::Events, name.as_str());
    let streams = streams.clone_with_type::<RawDocumentBuf>();
    let mut filter = doc! { POSITION: Bson::Null };
    if let Some(from) = from {
        filter.insert(CREATE_TIME, doc! { "$gte": from });
    }
    let finding = streams
        .find(filter)
        .projection(projection())
        .sort(doc! { POSITION: 1, CREATE_TIME: 1 })
        .hint(Hint::Name(INDEX.name.to_owned()))
        .batch_size(BATCH_DOCUMENTS);
    let opened = within(ACTION, TIMEOUT, async { finding.await }).await;
    opened.map_err(|error| error.of_index(streams.name(), INDEX.name))
}
