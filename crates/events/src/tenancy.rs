//! Streams of some tenants only, for callers that may reach no others.

use bson::doc;
use bson::raw::RawDocumentBuf;
use postrider_store::{StoreError, limits, within};

use crate::append::{Append, Appended, Expected};
use crate::context::CollectionKind;
use crate::error::AppendError;
use crate::lookup::Certainty;
use crate::names::{AggregateId, AggregateName};
use crate::store::EventStore;
use crate::stream::fields::{AGGREGATE_ID, TENANT_ID, VERSION};

/// The tries of an append while others begin the stream.
const MAX_TRIES: u32 = 3;

/// Whose a stream is. It is of the tenant of its first append, which never changes: so what follows from an
/// answer other than [`Unknown`](Self::Unknown) stays right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tenancy {
    /// The aggregate has no events.
    Unknown,
    /// Of one of the tenants.
    Own,
    /// Of another tenant, or of none.
    Foreign,
}

impl EventStore {
    /// Whether a stream is of one of these tenants.
    ///
    /// # Errors
    ///
    /// [`StoreError`].
    pub async fn tenancy(
        &self,
        name: &AggregateName,
        id: &AggregateId,
        tenants: &[String],
    ) -> Result<Tenancy, StoreError> {
        self.known_tenancy(name, id, tenants, Certainty::Majority).await
    }

    /// Appends as [`append`](Self::append), if the stream is of one of these tenants, or begins. `None`: it
    /// is of another one; nothing was appended.
    ///
    /// # Errors
    ///
    /// [`AppendError`], as of an append.
    pub async fn append_in(
        &self,
        append: Append,
        tenants: &[String],
    ) -> Result<Option<Appended>, AppendError> {
        let mut certainty = Certainty::Majority;
        for _ in 0..MAX_TRIES {
            let found = self.known_tenancy(&append.name, &append.id, tenants, certainty).await;
            match found.map_err(|error| AppendError::Unavailable(error.into()))? {
                Tenancy::Own => return self.append(append).await.map(Some),
                Tenancy::Foreign => return Ok(None),
                Tenancy::Unknown => {}
            }
            if matches!(append.expected, Expected::Any) || append.expected.is_none() {
                // Only as the first append: another tenant may begin the stream meanwhile.
                let first = append.clone().expecting(Expected::None);
                match self.append(first).await {
                    Err(AppendError::DuplicateAggregate { .. }) => {}
                    // The answer of a stream that is not known yet.
                    Ok(done) if done.replayed => {}
                    answer => return answer.map(Some),
                }
            } else if certainty == Certainty::Confirmed {
                return Err(AppendError::conflict(append.expected, 0));
            }
            // After an election a majority may not show what the indexes have.
            certainty = Certainty::Confirmed;
        }
        Err(AppendError::Overloaded)
    }

    async fn known_tenancy(
        &self,
        name: &AggregateName,
        id: &AggregateId,
        tenants: &[String],
        certainty: Certainty,
    ) -> Result<Tenancy, StoreError> {
        let streams = self.context().collection(CollectionKind::Events, name.as_str());
        let streams = streams.clone_with_type::<RawDocumentBuf>();
        let finding = streams
            .find_one(doc! { AGGREGATE_ID: id.as_str() })
            .sort(doc! { VERSION: 1 })
            .projection(doc! { TENANT_ID: 1 })
            .read_concern(certainty.read_concern())
            .max_time(limits::BATCH_TIMEOUT);
        let found = within("read a stream's tenant", limits::BATCH_TIMEOUT, finding).await?;
        Ok(match found {
            None => Tenancy::Unknown,
            Some(first) => {
                let tenant = first.get_str(TENANT_ID);
                let is_own = tenant.is_ok_and(|tenant| tenants.iter().any(|own| own == tenant));
                if is_own { Tenancy::Own } else { Tenancy::Foreign }
            }
        })
    }
}
