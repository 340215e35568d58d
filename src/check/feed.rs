//! Checks what the feed needs, and reports its state.

use ::mongodb::Client;

use crate::check::finding::Finding;
use crate::config::Resolved;
use crate::context::Context;
use crate::events::feed::{Feed, FeedReport};
use crate::schema::SchemaError;
use crate::store::StoreError;
use crate::telemetry::chain;

pub(super) const NAME: &str = "feed";

/// The finding on a sharded cluster.
pub(super) fn sharded() -> Finding {
    Finding::bad(
        NAME,
        "MongoDB is a sharded cluster, which has no common order of events; `run` refuses to start with the feed",
        "set feed.enabled = false, or use a replica set",
    )
}

/// # Errors
///
/// [`StoreError`].
pub(super) async fn probe(plan: &Resolved, client: &Client) -> Result<Finding, StoreError> {
    let context = Context::new(client.clone(), plan.context.clone());
    match Feed::new(context).report().await {
        Ok(report) => Ok(judge(&report, plan.context.auto_init_schema)),
        Err(SchemaError::Store(error)) => Err(error),
        Err(error) => Ok(Finding::bad(NAME, chain(&error), SCHEMA_REMEDY)),
    }
}

const SCHEMA_REMEDY: &str =
    "run `postrider schema apply --aggregate NAME`, which reports the conflict";

fn judge(report: &FeedReport, makes_indexes: bool) -> Finding {
    let mut detail = describe(report);
    let different: Vec<_> = report
        .collections
        .iter()
        .filter_map(|(name, difference)| Some((name, difference.as_ref()?)))
        .collect();
    if different.is_empty() {
        return Finding::good(NAME, detail);
    }
    let lines: Vec<String> =
        different.iter().map(|(_, difference)| difference.to_string()).collect();
    let can_be_made = different.iter().all(|(_, difference)| difference.made_by.is_some());
    if can_be_made && makes_indexes {
        let subjects: Vec<&str> =
            different.iter().map(|(_, difference)| difference.subject.as_str()).collect();
        detail = format!("{detail}; `run` creates: {}", subjects.join(", "));
        return Finding::good(NAME, detail);
    }
    let names: Vec<String> =
        different.iter().map(|(name, _)| format!("--aggregate {name}")).collect();
    let remedy = format!("run `postrider schema apply {}`", names.join(" "));
    let remedy = if can_be_made {
        format!("{remedy}, or set outbox.auto_init_schema = true")
    } else {
        format!("{remedy}, which reports the conflict and how to resolve it")
    };
    Finding::bad(NAME, format!("{detail}; events get no positions: {}", lines.join("; ")), remedy)
}

fn describe(report: &FeedReport) -> String {
    let Some(state) = &report.state else {
        return "the feed does not exist yet; the first `run` with feed.enabled = true creates it"
            .to_owned();
    };
    let owner = match &state.owner {
        Some(owner) if report.is_owned => format!("process {owner} assigns positions"),
        _ => "no process assigns positions at present; `run` does".to_owned(),
    };
    format!("feed {}, head {}; {owner}", state.feed, state.head)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::events::feed::FeedState;
    use crate::names::AggregateName;
    use crate::schema::Difference;

    fn report(difference: Option<Difference>, is_owned: bool) -> FeedReport {
        let state = FeedState {
            feed: "f".into(),
            head: 7,
            owner: Some("p".into()),
            ..FeedState::default()
        };
        let name = AggregateName::new("order").unwrap();
        FeedReport { state: Some(state), is_owned, collections: [(name, difference)].into() }
    }

    fn missing(made_by: Option<&'static str>) -> Option<Difference> {
        let subject = "index position_1_createTime_1 of order_event_stream".to_owned();
        Some(Difference { subject, found: "missing".into(), wanted: "{}".into(), made_by })
    }

    #[test]
    fn owner_is_named_while_it_assigns_positions() {
        let owned = judge(&report(None, true), true);
        let left = judge(&report(None, false), true);

        assert_eq!(owned.detail, "feed f, head 7; process p assigns positions");
        assert!(owned.ok && left.ok && left.detail.contains("no process assigns"), "{left:?}");
    }

    #[test]
    fn missing_index_is_bad_unless_run_creates_it() {
        let made = judge(&report(missing(Some("createIndex")), true), true);
        let needed = judge(&report(missing(Some("createIndex")), true), false);
        let conflicting = judge(&report(missing(None), true), true);

        assert!(made.ok && made.detail.contains("`run` creates: index position_1"), "{made:?}");
        for found in [&needed, &conflicting] {
            assert!(!found.ok && found.remedy.contains("apply --aggregate order"), "{found:?}");
        }
        assert!(needed.remedy.contains("outbox.auto_init_schema"), "{needed:?}");
        assert!(conflicting.remedy.contains("the conflict"), "{conflicting:?}");
    }
}
