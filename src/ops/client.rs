//! Requests to the ops server, and to the API, of a `postrider run` on this host.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use http_body_util::{BodyExt, Empty, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper::{Request, StatusCode, header};
use hyper_util::rt::TokioIo;
use postrider_settings::files::io_text;
use tokio::net::TcpStream;
use tokio::time::timeout;

/// Below the timeout of HEALTHCHECK in images, so that the command reports why.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(3);

/// The address by which a listener is reached from this host: one on all addresses is at loopback.
///
/// # Errors
///
/// What is wrong with the address.
pub fn reachable(listen: &str) -> Result<String, &'static str> {
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

/// Requests a page, with a body of at most `longest` bytes.
///
/// # Errors
///
/// No server listens, it does not answer in time, or it does not speak HTTP.
pub async fn ask(
    address: &str,
    page: &str,
    longest: usize,
) -> Result<(StatusCode, String), AskError> {
    timeout(ANSWER_TIMEOUT, get(address, page, longest))
        .await
        .map_err(|_| format!("no response within {}s", ANSWER_TIMEOUT.as_secs()).into())
        .flatten()
        .map_err(|source| AskError { url: format!("http://{address}{page}"), source })
}

/// A page that could not be read.
#[derive(Debug, thiserror::Error)]
#[error("{url}")]
pub struct AskError {
    url: String,
    source: Cause,
}

type Cause = Box<dyn std::error::Error + Send + Sync>;

async fn get(address: &str, page: &str, longest: usize) -> Result<(StatusCode, String), Cause> {
    let stream = TcpStream::connect(address).await.map_err(|error| {
        format!(
            "{}; no `postrider run` answers at ops.listen of this configuration (in Kubernetes, run \
             the command in its pod)",
            io_text(&error)
        )
    })?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    let request = Request::get(page).header(header::HOST, address).body(Empty::<Bytes>::new())?;
    let response = sender.send_request(request).await?;
    let status = response.status();
    let body = Limited::new(response.into_body(), longest).collect().await;
    let body = body.map_err(|error| format!("cannot read the response: {error}"))?.to_bytes();
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
            assert_eq!(reachable(listen), Ok(asked.to_owned()));
        }
    }
}
