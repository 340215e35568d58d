//! Checks MongoDB: whether it is reached, then the rest.

use ::mongodb::{Client, Database};
use bson::{Document, doc};
use futures_util::future::{join, join5};
use tokio::time::timeout;

use crate::check::finding::{Finding, PROBE_TIMEOUT};
use crate::check::{
    clocks, context, feed, members, privileges, replica_set, schema, shard_key, version,
};
use crate::config::Resolved;
use crate::outbox::collections::Collections;
use crate::store::StoreError;
use crate::store::connect::{self, Topology, ask};
use crate::telemetry::chain;

const NAME: &str = "mongodb";

const STANDALONE: &str = "MongoDB is a standalone server, which has neither transactions nor change \
                          streams: a record is not written atomically with the application's change";

/// All findings about MongoDB. Without the first one the others are skipped.
pub(super) async fn probe(plan: &Resolved) -> Vec<Finding> {
    let databases = plan.databases();
    let reaching = connect::reach(&plan.mongo, &databases);
    // The driver times out first, with a better error, unless the URI says otherwise.
    let (client, topology) = match timeout(PROBE_TIMEOUT + PROBE_TIMEOUT / 5, reaching).await {
        Ok(Ok(reached)) => reached,
        Ok(Err(error)) => return with_skipped(plan, unreached(plan, &error).await),
        Err(_) => {
            let detail = format!("{} does not answer within {PROBE_TIMEOUT:?}", plan.mongo);
            return with_skipped(plan, vec![Finding::bad(NAME, detail, UNREACHED)]);
        }
    };
    let kind = match &topology {
        Topology::Standalone => "a standalone server".to_owned(),
        Topology::ReplicaSet(name) => format!("replica set {name}"),
        Topology::Sharded => "a sharded cluster".to_owned(),
    };
    let mut findings = vec![Finding::good(NAME, format!("connected; {kind}"))];
    let admin = client.database("admin");
    let collections = Collections::new(client.clone(), &plan.database, &plan.prefix);
    let (version, deployment, (schema, privileges), append, feed) = join5(
        bounded(version::NAME, version::probe(&admin)),
        deployment(plan, &topology, &admin, &collections),
        schema_and_privileges(plan, &admin, &collections),
        append_path(plan, &client, &admin),
        feed(plan, &topology, &client, &admin),
    )
    .await;
    findings.push(version);
    findings.extend(deployment);
    findings.push(schema);
    findings.push(privileges);
    findings.extend(append);
    findings.extend(feed);
    findings
}

/// The findings of the feed, if it is enabled.
async fn feed(
    plan: &Resolved,
    topology: &Topology,
    client: &Client,
    admin: &Database,
) -> Vec<Finding> {
    match topology {
        _ if plan.feed.is_none() => Vec::new(),
        Topology::Sharded => vec![feed::sharded()],
        Topology::Standalone => [privileges::FEED, feed::NAME]
            .map(|name| Finding::skipped(name, "since MongoDB is a standalone server"))
            .into(),
        Topology::ReplicaSet(_) => {
            let privileges = bounded(privileges::FEED, privileges::probe_feed(plan, admin)).await;
            let state = bounded(feed::NAME, feed::probe(plan, client)).await;
            // Without its privileges the state may be unknown for that reason alone.
            let is_known = privileges.ok || state.ok;
            let state = if is_known {
                state
            } else {
                Finding::skipped(feed::NAME, "since privileges of the feed are missing")
            };
            let mut findings = vec![privileges, state];
            if !plan.events_enabled && is_known {
                findings.push(bounded(context::NAME, context::probe(plan, client)).await);
            }
            findings
        }
    }
}

/// The findings of the append path, if it is enabled.
async fn append_path(plan: &Resolved, client: &Client, admin: &Database) -> Vec<Finding> {
    if !plan.events_enabled {
        return Vec::new();
    }
    let privileges = bounded(privileges::APPEND, privileges::probe_append(plan, admin)).await;
    // Without these the context of the databases cannot be read.
    if !privileges.ok {
        let skipped =
            Finding::skipped(context::NAME, "since privileges of the append path are missing");
        return vec![privileges, skipped];
    }
    vec![privileges, bounded(context::NAME, context::probe(plan, client)).await]
}

/// Why MongoDB is not reached; for a user without any privilege in the database, also those missing.
async fn unreached(plan: &Resolved, error: &StoreError) -> Vec<Finding> {
    if let StoreError::Deployment { action, detail, remedy } = error {
        return vec![Finding::bad(NAME, format!("failed to {action}: {detail}"), remedy)];
    }
    if error.code() != Some(UNAUTHORIZED) {
        return vec![Finding::bad(NAME, chain(error), remedy(error))];
    }
    let remedy = "set a user in mongo.uri with privileges on the database; `postrider schema print \
                  --roles` prints the roles";
    let mut findings = vec![Finding::bad(NAME, chain(error), remedy)];
    if let Ok(client) = connect::client(&plan.mongo).await {
        let admin = client.database("admin");
        let missing_actions = schema::missing_actions(plan, None);
        let privileges =
            bounded(privileges::NAME, privileges::probe(plan, &admin, &missing_actions)).await;
        // Without a login the missing privileges are unknown.
        findings.extend((!privileges.ok).then_some(privileges));
    }
    findings
}

/// These findings, with all others skipped that need a server.
fn with_skipped(plan: &Resolved, mut findings: Vec<Finding>) -> Vec<Finding> {
    let relay = [version::NAME, replica_set::NAME, clocks::NAME, schema::NAME, privileges::NAME];
    let append = [privileges::APPEND, context::NAME];
    let feed = [privileges::FEED, feed::NAME];
    let append = append.into_iter().filter(|_| plan.events_enabled);
    let feed = feed.into_iter().filter(|_| plan.feed.is_some());
    for name in relay.into_iter().chain(append).chain(feed) {
        if findings.iter().all(|finding| finding.name != name) {
            findings.push(Finding::skipped(name, "since MongoDB was not reached"));
        }
    }
    findings
}

/// The findings that depend on the kind of deployment.
async fn deployment(
    plan: &Resolved,
    topology: &Topology,
    admin: &Database,
    collections: &Collections,
) -> Vec<Finding> {
    match topology {
        Topology::Standalone => vec![Finding::bad(
            replica_set::NAME,
            STANDALONE,
            "make it a replica set of one member: start mongod with --replSet rs0, and run \
             rs.initiate() in mongosh; the relay runs on a standalone server, the event store does not",
        )],
        Topology::Sharded => {
            vec![bounded(shard_key::NAME, shard_key::probe(admin, collections)).await]
        }
        Topology::ReplicaSet(_) => {
            let hello = bounded_hello(admin).await;
            let members = members::ask_all(&plan.mongo, &hello).await;
            vec![
                bounded(replica_set::NAME, replica_set::probe(plan, admin, &hello, &members)).await,
                clocks::report(&members, plan.relay.lease / 3),
            ]
        }
    }
}

/// The primary's `hello`; empty if it is gone.
async fn bounded_hello(admin: &Database) -> Document {
    let asking = ask(admin, "read the members of the replica set", doc! { "hello": 1 });
    timeout(PROBE_TIMEOUT, asking).await.ok().and_then(Result::ok).unwrap_or_default()
}

/// A finding within the time limit.
async fn bounded(
    name: &str,
    finding: impl Future<Output = Result<Finding, StoreError>>,
) -> Finding {
    match timeout(PROBE_TIMEOUT, finding).await {
        Ok(Ok(finding)) => finding,
        Ok(Err(error)) => Finding::bad(name, chain(&error), remedy(&error)),
        Err(_) => Finding::bad(name, format!("no response within {PROBE_TIMEOUT:?}"), UNREACHED),
    }
}

/// The schema, and the privileges that its creation and the relay need.
async fn schema_and_privileges(
    plan: &Resolved,
    admin: &Database,
    collections: &Collections,
) -> (Finding, Finding) {
    let verifying = join(schema::verify(plan, collections), schema::hazards(plan, collections));
    let (found, hazards) = timeout(PROBE_TIMEOUT, verifying).await.ok().unzip();
    let missing_actions = schema::missing_actions(plan, found.as_ref());
    let privileges =
        bounded(privileges::NAME, privileges::probe(plan, admin, &missing_actions)).await;
    let schema = match found {
        None => {
            Finding::bad(schema::NAME, format!("no response within {PROBE_TIMEOUT:?}"), UNREACHED)
        }
        Some(Ok(differences)) if differences.is_empty() => {
            bounded(schema::NAME, schema::check_order(collections)).await
        }
        Some(found) => schema::report(plan, found)
            .unwrap_or_else(|error| Finding::bad(schema::NAME, chain(&error), remedy(&error))),
    };
    let schema = match hazards {
        // The finding says why already.
        None | Some(Err(_)) => schema,
        Some(Ok(hazards)) => schema::with_hazards(schema, &hazards),
    };
    (schema, privileges)
}

/// MongoDB's code for a missing privilege.
const UNAUTHORIZED: i32 = 13;

const UNREACHED: &str =
    "start MongoDB, or correct the hosts, replicaSet and TLS options of mongo.uri";

/// The remedy of an error of MongoDB.
fn remedy(error: &StoreError) -> &'static str {
    match error {
        error if error.code() == Some(UNAUTHORIZED) => {
            "grant the user the privileges that the check `privileges` lists"
        }
        StoreError::DatabaseCase { .. } => {
            "write the name of the existing database in mongo.uri, mongo.database or the keys of its parts"
        }
        error if error.is_refusal() => "correct the user, password or authSource in mongo.uri",
        error if mentions(error, &["certificate", "tls", "ssl"]) => {
            "correct the TLS options of mongo.uri (tls, tlsCAFile, tlsCertificateKeyFile), or the \
             certificate of the server"
        }
        _ => UNREACHED,
    }
}

fn mentions(error: &StoreError, words: &[&str]) -> bool {
    let text = chain(error).to_lowercase();
    words.iter().any(|word| text.contains(word))
}
