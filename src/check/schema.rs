//! Checks that the outbox's schema exists or will be created, and that its index gives an order.

use bson::{Bson, doc};

use crate::check::finding::Finding;
use crate::config::Resolved;
use crate::context::Context;
use crate::outbox::collections::{Collections, names};
use crate::outbox::fields::{PARTITION, PENDING, STATUS};
use crate::outbox::snapshot::LANE_INDEX;
use crate::schema::{self, Difference, Hazards, SchemaError};
use crate::store::StoreError;
use crate::store::connect::ask;
use crate::telemetry::chain;

pub(super) const NAME: &str = "schema";

/// The actions that creating an unknown schema may need.
const ALL_ACTIONS: [&str; 3] = ["createCollection", "createIndex", "collMod"];

/// The differences, or why they are unknown.
pub(super) type Differences = Result<Vec<Difference>, SchemaError>;

pub(super) async fn verify(plan: &Resolved, collections: &Collections) -> Differences {
    schema::verify(collections, &plan.schema).await
}

/// Settings of others by which documents are lost.
///
/// # Errors
///
/// [`StoreError`].
pub(super) async fn hazards(
    plan: &Resolved,
    collections: &Collections,
) -> Result<Hazards, StoreError> {
    let is_used = plan.events_enabled || plan.feed.is_some();
    let context = is_used.then(|| Context::new(collections.client().clone(), plan.context.clone()));
    schema::hazards(plan, collections, context.as_ref()).await
}

/// The finding with the hazards, or with what is unknown of them.
pub(super) fn with_hazards(finding: Finding, hazards: &Hazards) -> Finding {
    // A collection that cannot be used is a difference already.
    let news = hazards.found.iter().filter(|hazard| !finding.detail.contains(&hazard.subject));
    let mut details: Vec<String> =
        news.clone().map(|hazard| format!("{} {}", hazard.subject, hazard.detail)).collect();
    let mut remedies: Vec<&str> = news.map(|hazard| hazard.remedy.as_str()).collect();
    let is_good = finding.ok && details.is_empty();
    details.insert(0, finding.detail.clone());
    details.extend(hazards.note().filter(|_| finding.ok));
    if !finding.ok {
        remedies.insert(0, &finding.remedy);
    }
    let detail = details.join("; ");
    if is_good {
        Finding::good(NAME, detail)
    } else {
        Finding::bad(NAME, detail, remedies.join("; "))
    }
}

/// The actions by which `run` creates what is missing.
pub(super) fn missing_actions(plan: &Resolved, found: Option<&Differences>) -> Vec<&'static str> {
    match found {
        _ if !plan.auto_init_schema => Vec::new(),
        Some(Ok(differences)) => {
            differences.iter().filter_map(|difference| difference.made_by).collect()
        }
        _ => ALL_ACTIONS.to_vec(),
    }
}

/// Checks whether the index of pending records gives their order: not once a record's partition was an
/// array.
///
/// # Errors
///
/// [`StoreError`].
pub(super) async fn check_order(collections: &Collections) -> Result<Finding, StoreError> {
    let explain = doc! {
        "explain": {
            "find": collections.name(names::RECORDS),
            "filter": { STATUS: PENDING, PARTITION: 0 },
            "hint": LANE_INDEX,
        },
        "verbosity": "queryPlanner",
    };
    let plan = ask(collections.database(), "explain a query", explain).await.map(Bson::Document);
    match plan {
        Ok(plan) if is_multikey(&plan) => Ok(Finding::bad(
            NAME,
            format!(
                "{LANE_INDEX} is multikey, since the partition of a record is or was an array: MongoDB \
                 sorts each page of pending records in memory"
            ),
            format!(
                "correct or discard records with {{ partition: {{ $type: \"array\" }} }}; then stop all \
                 instances, drop {LANE_INDEX} and run `postrider schema apply`"
            ),
        )),
        // Another finding names the missing privileges.
        Err(error) if !error.is_refusal() => Err(error),
        Ok(_) | Err(_) => Ok(Finding::good(NAME, "complete")),
    }
}

fn is_multikey(plan: &Bson) -> bool {
    match plan {
        Bson::Document(plan) => {
            plan.get_bool("isMultiKey").unwrap_or(false) || plan.values().any(is_multikey)
        }
        Bson::Array(plans) => plans.iter().any(is_multikey),
        _ => false,
    }
}

/// The finding of a schema with differences.
///
/// # Errors
///
/// [`StoreError`].
pub(super) fn report(plan: &Resolved, found: Differences) -> Result<Finding, StoreError> {
    let differences = match found {
        Ok(differences) => differences,
        Err(SchemaError::Store(error)) => return Err(error),
        Err(error) => {
            return Ok(Finding::bad(NAME, chain(&error), "run `postrider schema apply`"));
        }
    };
    let lines: Vec<String> = differences.iter().map(ToString::to_string).collect();
    let lines = lines.join("; ");
    let all_can_be_made = differences.iter().all(|difference| difference.made_by.is_some());
    Ok(match (all_can_be_made, plan.auto_init_schema) {
        (true, true) => {
            let made: Vec<String> = differences.iter().map(describe).collect();
            Finding::good(NAME, format!("`run` creates: {}", made.join(", ")))
        }
        (true, false) => Finding::bad(
            NAME,
            lines,
            "run `postrider schema apply`, or set outbox.auto_init_schema = true",
        ),
        (false, _) => Finding::bad(
            NAME,
            lines,
            "run `postrider schema apply`, which reports the conflict and how to resolve it",
        ),
    })
}

/// A missing thing by its name, a changed one with both states.
fn describe(difference: &Difference) -> String {
    if difference.is_missing() { difference.subject.clone() } else { difference.to_string() }
}
