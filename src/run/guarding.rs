//! Searches periodically for settings of others by which documents are lost: an index that was added
//! after the start would delete records unnoticed.

use std::collections::HashSet;
use std::time::Duration;

use metrics::gauge;
use tracing::{debug, info, warn};

use crate::config::Resolved;
use crate::context::Context;
use crate::ops::{Health, HealthPart};
use crate::outbox::collections::Collections;
use crate::partition::metrics::UNKNOWN;
use crate::schema::{Hazard, hazards};
use crate::store::StoreError;
use crate::telemetry::chain;
use crate::telemetry::metrics::SCHEMA_HAZARDS;

/// The pause after the first failed searches; later ones are at the usual interval.
const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// Searches at the start and in every `relay.audit_interval`, forever. Logs each hazard once, and
/// reports all in the part `schema`.
pub(super) async fn guard(
    plan: Resolved,
    collections: Collections,
    context: Context,
    health: Health,
) {
    let context = (plan.events_enabled || plan.feed.is_some()).then_some(context);
    let interval = plan.relay.audit_interval;
    let mut reported = HashSet::new();
    loop {
        let pause = match hazards(&plan, &collections, context.as_ref()).await {
            Ok(found) => {
                if let Some(note) = found.note() {
                    debug!(note, "searched for indexes that delete documents");
                }
                report(&found.found, &mut reported, &health);
                interval
            }
            Err(error) => {
                unknown(&error);
                interval.min(RETRY_PAUSE)
            }
        };
        tokio::time::sleep(pause).await;
    }
}

fn report(found: &[Hazard], reported: &mut HashSet<Hazard>, health: &Health) {
    gauge!(SCHEMA_HAZARDS).set(found.len() as f64);
    for hazard in found.iter().filter(|hazard| !reported.contains(hazard)) {
        warn!(
            subject = hazard.subject,
            detail = hazard.detail,
            remedy = hazard.remedy,
            "a setting of a collection removes, hides or refuses documents of Postrider"
        );
    }
    if found.is_empty() && !reported.is_empty() {
        info!(
            "no setting of a collection removes, hides or refuses documents of Postrider any more"
        );
    }
    *reported = found.iter().cloned().collect();
    health.set(
        "schema",
        match found {
            [] => HealthPart::ok(),
            [only] => HealthPart::degraded(only.to_string()),
            [first, others @ ..] => {
                HealthPart::degraded(format!("{first} (and {} others)", others.len()))
            }
        },
    );
}

fn unknown(error: &StoreError) {
    gauge!(SCHEMA_HAZARDS).set(UNKNOWN);
    debug!(error = chain(error), "failed to search for indexes that delete documents");
}
