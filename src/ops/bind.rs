//! Addresses to listen on.

use std::io;
use std::net::SocketAddr;

use tokio::net::TcpListener;

/// An address that cannot be bound.
#[derive(Debug, thiserror::Error)]
#[error("{key} = {address}: cannot listen: {}; {}", reason(.cause), remedy(.cause))]
pub struct BindError {
    key: &'static str,
    address: String,
    cause: io::Error,
}

impl BindError {
    /// Returns whether a process uses the address.
    pub(crate) fn is_in_use(&self) -> bool {
        self.cause.kind() == io::ErrorKind::AddrInUse
    }
}

fn reason(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::AddrInUse => "address already in use".to_owned(),
        io::ErrorKind::PermissionDenied => "permission denied".to_owned(),
        io::ErrorKind::AddrNotAvailable => "address not available".to_owned(),
        _ => error.to_string(),
    }
}

fn remedy(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::AddrInUse => "stop the process that uses the port, or set another port",
        io::ErrorKind::PermissionDenied => "set a port of 1024 or above",
        io::ErrorKind::AddrNotAvailable => {
            "set an address of this host, or 0.0.0.0 for all addresses"
        }
        _ => "set host:port, for example 127.0.0.1:8080, with a name or an address of this host",
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
    let wrong = |cause| BindError { key, address: address.to_owned(), cause };
    let listener = TcpListener::bind(address).await.map_err(wrong)?;
    let bound = listener.local_addr().map_err(wrong)?;
    Ok((listener, bound))
}
