//! Checks that the ports of `run` are free, or in use by a Postrider of this host.

use tokio_util::sync::CancellationToken;

use crate::check::finding::Finding;
use crate::config::Resolved;
use crate::http::{ApiServer, StartError};
use crate::ops::OpsServer;
use crate::ops::client::{ask, reachable};
use crate::telemetry::chain;
use crate::telemetry::metrics::BUILD_INFO;

/// Above `/metrics` with thousands of series, and above the OpenAPI document.
const MAX_ANSWER_BYTES: usize = 8 << 20;

const IN_USE: &str = "in use by a Postrider, which runs on this host";

/// The findings of the ops server, and of the API if it is enabled.
pub(super) async fn probe(plan: &Resolved) -> Vec<Finding> {
    let (ops, is_postrider) = ops(&plan.ops_listen).await;
    let mut findings = vec![ops];
    if let Some((api, tokens)) = &plan.api {
        let (name, listen) = ("api.listen", &api.listen);
        let bound = ApiServer::bind(api, tokens.clone(), 1, CancellationToken::new()).await;
        findings.push(match bound {
            Ok(server) => Finding::good(name, format!("{} is free", server.address())),
            // With TLS it answers no plain request.
            Err(StartError::Bind(error))
                if error.is_in_use()
                    && (is_api(listen).await || (is_postrider && api.tls.cert_file.is_some())) =>
            {
                Finding::good(name, format!("{listen} is {IN_USE}"))
            }
            Err(error @ StartError::Bind(_)) => Finding::bad(
                name,
                chain(&error),
                "stop the process that uses the port, change api.listen, or set api.enabled = false",
            ),
            Err(error @ StartError::Tls(_)) => Finding::bad(
                "api.tls",
                chain(&error),
                "set api.tls.cert_file to a certificate and api.tls.key_file to its private key, both in PEM",
            ),
        });
    }
    findings
}

/// The finding of the ops server, and whether a Postrider runs behind its port.
async fn ops(listen: &str) -> (Finding, bool) {
    const NAME: &str = "ops.listen";
    match OpsServer::bind(listen).await {
        Ok(server) => (Finding::good(NAME, format!("{} is free", server.address())), false),
        Err(error) if error.is_in_use() && is_ops(listen).await => {
            (Finding::good(NAME, format!("{listen} is {IN_USE}")), true)
        }
        Err(error) => {
            let remedy = "stop the process that uses the port, or change ops.listen";
            (Finding::bad(NAME, chain(&error), remedy), false)
        }
    }
}

async fn is_ops(listen: &str) -> bool {
    page_contains(listen, "/metrics", &format!("\n{BUILD_INFO}{{")).await
}

async fn is_api(listen: &str) -> bool {
    page_contains(listen, "/openapi.json", "Postrider").await
}

async fn page_contains(listen: &str, page: &str, text: &str) -> bool {
    let Ok(address) = reachable(listen) else { return false };
    ask(&address, page, MAX_ANSWER_BYTES).await.is_ok_and(|(_, body)| body.contains(text))
}
