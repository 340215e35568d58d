//! Lists the ids of aggregates.

use bson::doc;
use bson::raw::RawDocumentBuf;
use postrider_outbox::fields::exactly;
use postrider_store::page::PageSize;
use postrider_store::{limits, within};

use crate::context::CollectionKind;
use crate::error::LoadError;
use crate::names::AggregateName;
use crate::store::EventStore;
use crate::stream::fields::{AGGREGATE_ID, ID, TENANT_ID, VERSION};

/// Ids of one reply of MongoDB: an id has up to 1 KiB, unless another program wrote it.
const BATCH_IDS: u32 = 1_000;

const ACTION: &str = "read the ids of aggregates";

/// A part of the list of aggregates.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AggregateIds {
    /// In the order of their bytes. A page may end before its number of ids, because of their size.
    pub ids: Vec<String>,
    /// Whether there are more.
    pub has_more: bool,
}

impl EventStore {
    /// Reads up to `limit` ids of aggregates behind `after`, in the order of their bytes.
    ///
    /// # Errors
    ///
    /// [`LoadError`].
    pub async fn aggregate_ids(
        &self,
        name: &AggregateName,
        after: Option<&str>,
        limit: u32,
        tenant_id: Option<&str>,
    ) -> Result<Vec<String>, LoadError> {
        let size = PageSize::of_any_size(limit);
        Ok(self.aggregate_page(name, after, size, tenant_id).await?.ids)
    }

    /// Reads a page of the ids of aggregates behind `after`, in the order of their bytes.
    ///
    /// # Errors
    ///
    /// [`LoadError`].
    pub async fn aggregate_page(
        &self,
        name: &AggregateName,
        after: Option<&str>,
        size: PageSize,
        tenant_id: Option<&str>,
    ) -> Result<AggregateIds, LoadError> {
        let mut page = AggregateIds::default();
        if size.count == 0 {
            return Ok(page);
        }
        // A scan of the version index alone, with one key per aggregate.
        let mut filter = doc! { AGGREGATE_ID: { "$gt": after.unwrap_or("") }, VERSION: 1 };
        if let Some(tenant) = tenant_id {
            filter.insert(TENANT_ID, exactly(tenant));
        }
        let streams = self.context().collection(CollectionKind::Events, name.as_str());
        let streams = streams.clone_with_type::<RawDocumentBuf>();
        let finding = streams
            .find(filter)
            .projection(doc! { AGGREGATE_ID: 1, ID: 0 })
            .sort(doc! { AGGREGATE_ID: 1 })
            .batch_size(size.count.saturating_add(1).min(BATCH_IDS));
        let mut cursor = within(ACTION, limits::BATCH_TIMEOUT, finding).await?;
        let mut bytes = 0_usize;
        while within(ACTION, limits::BATCH_TIMEOUT, cursor.advance()).await? {
            // An id that is not UTF-8 is left out.
            let Ok(id) = cursor.current().get_str(AGGREGATE_ID) else { continue };
            bytes = bytes.saturating_add(id.len());
            let is_short = page.ids.len() < size.count as usize;
            if !is_short || (bytes > size.bytes && !page.ids.is_empty()) {
                page.has_more = true;
                break;
            }
            page.ids.push(id.to_owned());
        }
        Ok(page)
    }
}
