//! `postrider check`: everything that `run` needs, and what to mend.

use clap::Args;
use serde::Serialize;

use crate::cli::output::{self, Format};
use crate::cli::{Failure, Given, block_on};
use crate::config::{Resolved, resolve};
use crate::ops::OpsServer;
use crate::outbox::collections::Collections;
use crate::run::sinks;
use crate::schema;
use crate::sink::Sink;
use crate::sink::any::AnySink;
use crate::store::connect::{self, Topology};
use crate::telemetry::chain;

#[derive(Debug, Args)]
pub(super) struct Options {
    /// Judge the configuration alone: no server is asked
    #[arg(long)]
    offline: bool,
    /// Form of the output
    #[arg(long, value_enum, default_value = "table")]
    output: Format,
}

/// One thing that was probed.
#[derive(Debug, Serialize)]
struct Finding {
    name: String,
    ok: bool,
    detail: String,
    /// Empty where nothing is to be mended.
    remedy: String,
}

impl Finding {
    fn good(name: impl Into<String>, detail: impl Into<String>) -> Self {
        Self { name: name.into(), ok: true, detail: detail.into(), remedy: String::new() }
    }

    fn bad(name: impl Into<String>, detail: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { name: name.into(), ok: false, detail: detail.into(), remedy: remedy.into() }
    }
}

pub(super) fn run(given: &Given, options: &Options) -> Result<(), Failure> {
    let loaded = given.load()?;
    let findings = match resolve(&loaded) {
        Err(problems) => problems
            .into_iter()
            .map(|problem| {
                Finding::bad(
                    "configuration",
                    problem.to_string(),
                    format!("change {}", problem.key),
                )
            })
            .collect(),
        Ok(plan) => {
            let mut findings = vec![Finding::good("configuration", "every rule holds")];
            if !options.offline {
                block_on(async {
                    probe(&plan, &mut findings).await;
                    Ok(())
                })?;
            }
            findings
        }
    };
    print(&findings, options.output)?;
    match findings.iter().all(|finding| finding.ok) {
        true => Ok(()),
        false if findings[0].ok => Err(Failure::Told),
        // The configuration itself.
        false => Err(Failure::Usage(Vec::new())),
    }
}

async fn probe(plan: &Resolved, findings: &mut Vec<Finding>) {
    mongodb(plan, findings).await;
    match sinks(plan) {
        Err(error) => findings.push(Finding::bad("sinks", chain(&error), "change its settings")),
        Ok(sinks) => {
            for (name, sink) in sinks {
                let part = format!("sink {name}");
                let address = match sink {
                    AnySink::RabbitMq(_) => "uri",
                    AnySink::Kafka(_) => "brokers or properties",
                    AnySink::Stdout(_) => "kind",
                };
                findings.push(match sink.probe().await {
                    Ok(()) => Finding::good(part, "reached"),
                    Err(down) => Finding::bad(
                        part,
                        down.to_string(),
                        format!("start the broker, or change sinks.{name}.{address}"),
                    ),
                });
                sink.close().await;
            }
        }
    }
    findings.push(match OpsServer::bind(&plan.ops_listen).await {
        Ok(server) => Finding::good("ops.listen", format!("{} is free", server.address())),
        Err(error) => Finding::bad(
            "ops.listen",
            chain(&error),
            "free the port (a running postrider holds it), or change ops.listen",
        ),
    });
}

async fn mongodb(plan: &Resolved, findings: &mut Vec<Finding>) {
    let client = match connect::reach(plan.mongo.expose(), &plan.database).await {
        Err(error) => {
            let remedy = "start MongoDB, or mend mongo.uri or the privileges of its user";
            return findings.push(Finding::bad("mongodb", chain(&error), remedy));
        }
        Ok((client, Topology::Standalone)) => {
            let detail = "reached, a standalone server: no transactions, no change streams";
            findings.push(Finding::good("mongodb", detail));
            client
        }
        Ok((client, Topology::ReplicaSet(name))) => {
            findings.push(Finding::good("mongodb", format!("reached, replica set {name}")));
            client
        }
        Ok((client, Topology::Sharded)) => {
            findings.push(Finding::good("mongodb", "reached, sharded cluster"));
            client
        }
    };
    let collections = Collections::new(client, &plan.database, &plan.prefix);
    let options = plan.schema_options();
    let remedy = match plan.auto_init_schema {
        true => "`postrider run` makes it, or run `postrider schema apply`",
        false => "run `postrider schema apply`",
    };
    findings.push(match schema::verify(&collections, &options).await {
        Ok(differences) if differences.is_empty() => Finding::good("schema", "as it should be"),
        Ok(differences) => {
            let lines: Vec<String> = differences.iter().map(ToString::to_string).collect();
            Finding::bad("schema", lines.join("; "), remedy)
        }
        Err(error) => Finding::bad("schema", chain(&error), remedy),
    });
}

fn print(findings: &[Finding], format: Format) -> Result<(), Failure> {
    match format {
        Format::Json => {
            let findings = serde_json::to_value(findings);
            output::json(&findings.map_err(|error| Failure::Failed(error.into()))?)
        }
        Format::Table => {
            let rows: Vec<Vec<String>> = findings
                .iter()
                .map(|finding| {
                    let ok = if finding.ok { "ok" } else { "NOT OK" };
                    vec![
                        finding.name.clone(),
                        ok.to_owned(),
                        finding.detail.clone(),
                        finding.remedy.clone(),
                    ]
                })
                .collect();
            output::table(&["what", "", "detail", "remedy"], &rows)
        }
    }
}
