//! A door on loopback to a server: opened, shut and frozen by the test.

use std::net::SocketAddr;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// What becomes of bytes and connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Open,
    /// Connections stand, and nothing passes.
    Frozen,
    /// Connections are cut, and new ones end at once.
    Shut,
}

/// A door that is there as long as this value.
pub struct Door {
    pub address: SocketAddr,
    state: watch::Sender<State>,
}

impl Door {
    /// An open door to `host:port`.
    pub async fn to(server: &str) -> Self {
        Self::in_state(server, State::Open).await
    }

    /// A door that is shut as yet.
    pub async fn shut_to(server: &str) -> Self {
        Self::in_state(server, State::Shut).await
    }

    async fn in_state(server: &str, first: State) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (state, watched) = watch::channel(first);
        let server = server.to_owned();
        tokio::spawn(async move {
            let mut ended = watched.clone();
            let accepting = async {
                while let Ok((client, _)) = listener.accept().await {
                    let (server, state) = (server.clone(), watched.clone());
                    tokio::spawn(async move { connect(client, &server, state).await });
                }
            };
            tokio::select! {
                () = accepting => {}
                // Until the door is dropped.
                _ = async { while ended.changed().await.is_ok() {} } => {}
            }
        });
        Self { address, state }
    }

    /// Lets everything pass, what waited included.
    pub fn open(&self) {
        self.state.send_replace(State::Open);
    }

    /// Holds back every byte; connections stand.
    pub fn freeze(&self) {
        self.state.send_replace(State::Frozen);
    }

    /// Cuts every connection, and lets none in.
    pub fn shut(&self) {
        self.state.send_replace(State::Shut);
    }
}

async fn connect(client: TcpStream, server: &str, state: watch::Receiver<State>) {
    if *state.borrow() == State::Shut {
        return;
    }
    let Ok(server) = TcpStream::connect(server).await else { return };
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    let mut shut = state.clone();
    tokio::select! {
        () = pass(from_client, to_server, state.clone()) => {}
        () = pass(from_server, to_client, state) => {}
        _ = shut.wait_for(|state| *state == State::Shut) => {}
    }
}

async fn pass(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, mut state: watch::Receiver<State>) {
    let mut buffer = vec![0; 64 << 10];
    loop {
        let Ok(length @ 1..) = from.read(&mut buffer).await else { return };
        // Judged after the reading: what comes while it is frozen waits here.
        if state.wait_for(|state| *state != State::Frozen).await.is_err() {
            return;
        }
        if to.write_all(&buffer[..length]).await.is_err() {
            return;
        }
    }
}

/// A port of loopback on which nobody listens. Below the range that Linux gives to outgoing
/// connections, so that it stays free until the test binds it.
pub async fn dead_port() -> u16 {
    loop {
        let port = rand::random_range(20_000..32_000);
        if TcpListener::bind(("127.0.0.1", port)).await.is_ok() {
            return port;
        }
    }
}
