//! Addresses to listen on.

use std::io;
use std::net::SocketAddr;

use tokio::net::TcpListener;

/// An address that cannot be bound.
#[derive(Debug, thiserror::Error)]
#[error("{key}: cannot listen on {address}; {}", remedy(.source))]
pub struct BindError {
    key: &'static str,
    address: String,
    #[source]
    source: io::Error,
}

fn remedy(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::AddrInUse => "free the port or choose another (port 0 takes any)",
        io::ErrorKind::PermissionDenied => "choose a port of 1024 or above",
        io::ErrorKind::AddrNotAvailable => "choose an address of this host, or 0.0.0.0 for all",
        _ => "write host:port, such as 127.0.0.1:8080, with a name or an address of this host",
    }
}

/// Binds `host:port`, the value of a key.
///
/// # Errors
///
/// [`BindError`], with the key.
pub(crate) async fn bind(
    key: &'static str,
    address: &str,
) -> Result<(TcpListener, SocketAddr), BindError> {
    let wrong = |source| BindError { key, address: address.to_owned(), source };
    let listener = TcpListener::bind(address).await.map_err(wrong)?;
    let bound = listener.local_addr().map_err(wrong)?;
    Ok((listener, bound))
}
