//! The schemas of stored documents, which are answered with their own fields ([`crate::json_view`]). Other
//! programs may have written them, so that answers are not built from these types.

use serde_json::Value;
use utoipa::ToSchema;

use crate::events::json::{Json, JsonObject};

/// A record of the outbox as it is stored. Absent fields are not set; one that is `invalid` may have
/// fields of other types.
#[derive(Debug, ToSchema)]
#[schema(rename_all = "camelCase")]
#[expect(dead_code, reason = "describes a stored document")]
pub struct RecordAnswer {
    /// The id: a string or an integer, as consumers see it.
    #[schema(value_type = IdForm, inline)]
    id: IdForm,
    /// The key: records of one key are delivered in order.
    #[schema(required = false)]
    key: String,
    /// The type.
    #[schema(required = false, rename = "type")]
    kind: String,
    /// The payload; not in lists.
    #[schema(required = false, value_type = Json)]
    payload: Value,
    /// The content type.
    #[schema(required = false)]
    content_type: String,
    /// The headers; not in lists.
    #[schema(required = false, value_type = JsonObject)]
    headers: Value,
    /// The exchange, topic or subject that routes are bypassed for.
    #[schema(required = false)]
    destination: String,
    /// The tenant.
    #[schema(required = false)]
    tenant_id: String,
    /// Unique while the record exists.
    #[schema(required = false)]
    dedup_key: String,
    /// pending, scheduled, done or dead.
    #[schema(required = false, example = "pending")]
    status: String,
    /// The partition of the key.
    #[schema(required = false, minimum = 0, maximum = 255)]
    partition: i32,
    /// The place in the order: a timestamp of MongoDB.
    #[schema(required = false, inline)]
    seq: Sequence,
    /// The time when it was produced.
    #[schema(required = false, format = DateTime)]
    created_at: String,
    /// The time before which it is not delivered.
    #[schema(required = false, format = DateTime)]
    visible_at: String,
    /// The counted attempts.
    #[schema(required = false)]
    attempt: i32,
    /// The error of the last attempt that failed.
    #[schema(required = false)]
    last_error: String,
    /// The time of that error.
    #[schema(required = false, format = DateTime)]
    last_error_at: String,
    /// The end of the lease.
    #[schema(required = false, format = DateTime)]
    lease_until: String,
    /// The instance that holds the lease.
    #[schema(required = false)]
    lease_owner: String,
    /// The time of its delivery.
    #[schema(required = false, format = DateTime)]
    done_at: String,
    /// The time when it became dead.
    #[schema(required = false, format = DateTime)]
    dead_at: String,
    /// The reason why it is dead.
    #[schema(required = false)]
    dead_reason: String,
    /// What is wrong with the record; absent where nothing is.
    #[schema(required = false)]
    invalid: Vec<String>,
}

/// An id as JSON.
#[derive(Debug, ToSchema)]
#[serde(untagged)]
#[expect(dead_code, reason = "describes a stored document")]
pub enum IdForm {
    /// UUID, ObjectId or string.
    Text(String),
    /// int32 or int64.
    Integer(i64),
}

/// A timestamp of MongoDB.
#[derive(Debug, ToSchema)]
#[expect(dead_code, reason = "describes a stored document")]
pub struct Sequence {
    /// Seconds since 1970.
    t: u32,
    /// The place in that second.
    i: u32,
}

/// An instance as it is stored.
#[derive(Debug, ToSchema)]
#[schema(rename_all = "camelCase")]
#[expect(dead_code, reason = "describes a stored document")]
pub struct InstanceAnswer {
    /// The id.
    id: String,
    /// The name of its host.
    #[schema(required = false)]
    hostname: String,
    /// The name that no other living instance has.
    #[schema(required = false, nullable = true)]
    name: String,
    /// active or draining.
    #[schema(required = false, example = "active")]
    status: String,
    /// Whether its heartbeat is stale.
    stale: bool,
    /// The number of its partitions.
    partitions_owned: i32,
    /// `assigned`, `none`, or the text of `partitions.static`.
    #[schema(required = false)]
    partitions: String,
    /// The time of its first heartbeat.
    #[schema(required = false, format = DateTime)]
    started_at: String,
    /// The time of its last heartbeat.
    #[schema(required = false, format = DateTime)]
    last_heartbeat: String,
    /// The version of Postrider.
    #[schema(required = false)]
    version: String,
    /// What its configuration says about the order.
    #[schema(required = false, value_type = Json)]
    fingerprint: Value,
    /// Whether it waits for partitions that others have.
    #[schema(required = false)]
    asks: bool,
    /// The id under which it leases.
    #[schema(required = false)]
    lease_owner: String,
    /// How often it lost its partitions.
    #[schema(required = false)]
    lapses: i32,
    /// The state of its relay.
    #[schema(required = false, value_type = Json)]
    relay: Value,
    /// What cannot be decoded; absent where everything can.
    #[schema(required = false)]
    invalid: Vec<String>,
}

/// The assignment of a partition as it is stored.
#[derive(Debug, ToSchema)]
#[schema(rename_all = "camelCase")]
#[expect(dead_code, reason = "describes a stored document")]
pub struct PartitionAnswer {
    /// The partition.
    #[schema(minimum = 0, maximum = 255)]
    id: i32,
    /// The instance that owns it.
    #[schema(required = false)]
    instance_id: String,
    /// The name of that instance's host; null where the instance is gone.
    #[schema(required = false, nullable = true)]
    hostname: String,
    /// Rises with each change of the owner.
    #[schema(required = false)]
    epoch: i64,
    /// What cannot be decoded; absent where everything can.
    #[schema(required = false)]
    invalid: Vec<String>,
}
