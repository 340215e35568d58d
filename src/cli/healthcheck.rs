//! `postrider healthcheck`: a container's HEALTHCHECK without shell and curl.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use anyhow::{Context, anyhow};
use clap::Args;
use http_body_util::{BodyExt, Empty, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper::{Request, StatusCode, header};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::cli::global::{Failure, GlobalArgs, block_on};
use crate::cli::output;

/// Below the timeout of HEALTHCHECK in images, so that this command reports why.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(3);

/// Far above any report, which has a part for each sink and a few more.
const MAX_ANSWER_BYTES: usize = 64 * 1024;

#[derive(Debug, Args)]
pub(super) struct Options {
    /// Request /readyz instead of /livez: whether the instance can deliver, not only whether it is alive
    #[arg(long)]
    ready: bool,
}

pub(super) fn run(global: &GlobalArgs, options: &Options) -> Result<(), Failure> {
    // Not resolved: `run` reports other errors of the configuration.
    let address = reachable(&global.load()?.config.ops.listen)?;
    let page = if options.ready { "/readyz" } else { "/livez" };
    block_on(async {
        let (status, body) = ask(&address, page, MAX_ANSWER_BYTES).await?;
        let line = format!("http://{address}{page}: {} {body}", status.as_u16());
        match status {
            StatusCode::OK => output::text(&format!("{line}\n")),
            _ => Err(Failure::Failed(anyhow!(line))),
        }
    })
}

fn wrong(listen: &str, detail: &str) -> Failure {
    Failure::Usage(vec![format!("ops.listen = {listen:?}: {detail}")])
}

/// The address by which `ops.listen` is reached from this host.
pub(super) fn reachable(listen: &str) -> Result<String, Failure> {
    address(listen).map_err(|detail| wrong(listen, detail))
}

/// The same, or what is wrong with it. A listener on all addresses is reached at loopback.
fn address(listen: &str) -> Result<String, &'static str> {
    let port = listen.rsplit_once(':').and_then(|(_, port)| port.parse::<u16>().ok());
    match port {
        None => return Err("must be host:port, for example 127.0.0.1:9464"),
        Some(0) => {
            return Err("has port 0, which gives each process a random port; set a fixed port");
        }
        Some(_) => {}
    }
    Ok(match listen.parse::<SocketAddr>() {
        Ok(address) if address.ip().is_unspecified() => {
            let loopback = match address.ip() {
                IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::LOCALHOST),
                IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::LOCALHOST),
            };
            SocketAddr::new(loopback, address.port()).to_string()
        }
        // An address of this host, or a name.
        _ => listen.to_owned(),
    })
}

/// Requests a page of the ops server, with a body of at most `longest` bytes.
pub(super) async fn ask(
    address: &str,
    page: &str,
    longest: usize,
) -> anyhow::Result<(StatusCode, String)> {
    timeout(ANSWER_TIMEOUT, get(address, page, longest))
        .await
        .map_err(|_| anyhow!("no response within {}s", ANSWER_TIMEOUT.as_secs()))
        .flatten()
        .with_context(|| format!("http://{address}{page}"))
}

async fn get(address: &str, page: &str, longest: usize) -> anyhow::Result<(StatusCode, String)> {
    let stream = TcpStream::connect(address).await?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    let request = Request::get(page).header(header::HOST, address).body(Empty::<Bytes>::new())?;
    let response = sender.send_request(request).await?;
    let status = response.status();
    let body = Limited::new(response.into_body(), longest).collect().await;
    let body = body.map_err(|error| anyhow!(error).context("cannot read the response"))?.to_bytes();
    Ok((status, String::from_utf8_lossy(&body).into_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listener_on_all_addresses_is_reached_at_loopback() {
        for (listen, asked) in [
            ("0.0.0.0:9464", "127.0.0.1:9464"),
            ("[::]:1", "[::1]:1"),
            ("10.1.2.3:1", "10.1.2.3:1"),
            ("localhost:1", "localhost:1"),
        ] {
            assert_eq!(address(listen).as_deref(), Ok(asked));
        }
    }
}
