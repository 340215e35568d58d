//! Records by the ids that an operator writes.

use anyhow::Context;
use serde_json::json;

use crate::cli::global::Failure;
use crate::outbox::inspect::Inspector;
use crate::outbox::undecoded::{DecodedRecord as Record, RawId};

/// What a `raw:` id may be.
const RAW_REMEDY: &str = "use the id that `outbox list` prints; it cannot be an array, a regular expression, undefined, \
    code, or a document with a name that begins with $";

/// The ids that a text can mean: at least one.
pub(super) fn parse_ids(text: &str) -> Result<Vec<RawId>, Failure> {
    let ids = RawId::parse_candidates(text);
    if ids.is_empty() {
        let prefix = text.split(':').next().unwrap_or_default();
        let id = json!(text);
        let detail = format!(
            "ID = {id}: invalid {prefix} id; {}",
            if prefix == "raw" { RAW_REMEDY } else { "correct it, or omit the prefix" }
        );
        return Err(Failure::Usage(vec![detail]));
    }
    Ok(ids)
}

pub(super) async fn find(inspector: &Inspector, text: &str) -> Result<Option<Record>, Failure> {
    Ok(inspector.show(&parse_ids(text)?).await.context("cannot read the record")?)
}
