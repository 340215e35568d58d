//! A door on loopback to a server: opened, shut and frozen by the test, or by what comes through.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

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
    /// The same for ever.
    Gone,
}

impl State {
    fn is_shut(self) -> bool {
        matches!(self, Self::Shut | Self::Gone)
    }
}

/// What a trap does to whom it catches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Then {
    /// The door is shut.
    Shut,
    /// The door is frozen.
    Freeze,
    /// This connection falls silent for good; the others go on.
    Silence,
}

/// Waits for the next requests that contain a text.
#[derive(Clone, Debug)]
struct Trap {
    text: Vec<u8>,
    /// Whether the server gets the request, and only its answer is caught.
    at_answer: bool,
    then: Then,
    /// How many it catches.
    times: usize,
}

/// A door that is there as long as this value.
pub struct Door {
    pub address: SocketAddr,
    state: watch::Sender<State>,
    trap: Arc<Mutex<Option<Trap>>>,
    /// Requests that are caught, and whose answers are yet to come.
    awaited: Arc<AtomicUsize>,
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
        let trap = Arc::new(Mutex::new(None));
        let awaited = Arc::default();
        let way = Way {
            state: state.clone(),
            trap: trap.clone(),
            awaited: Arc::clone(&awaited),
            caught: Arc::default(),
        };
        tokio::spawn(async move {
            let mut ended = watched;
            let accepting = async {
                while let Ok((client, _)) = listener.accept().await {
                    let server = server.clone();
                    let way = Way { caught: Arc::default(), ..way.clone() };
                    tokio::spawn(async move { connect(client, &server, way).await });
                }
            };
            tokio::select! {
                () = accepting => {}
                // Until the door is dropped.
                _ = ended.wait_for(|state| *state == State::Gone) => {}
            }
        });
        Self { address, state, trap, awaited }
    }

    /// Does this when the first request comes that contains `text`, which the server never sees
    /// (or, frozen, not before the door opens).
    pub fn before(&self, text: &str, then: Then) {
        self.set(text, false, then, 1);
    }

    /// Lets the connections of the next requests that contain `text` fall silent, as many as this.
    pub fn silence(&self, text: &str, times: usize) {
        self.set(text, false, Then::Silence, times);
    }

    /// The same when the server answers that request: it has done it, and the client does not
    /// hear (or, frozen, not before the door opens).
    pub fn at_answer_to(&self, text: &str, then: Then) {
        self.set(text, true, then, 1);
    }

    fn set(&self, text: &str, at_answer: bool, then: Then, times: usize) {
        let trap = Trap { text: text.as_bytes().to_vec(), at_answer, then, times };
        *self.trap.lock().unwrap() = Some(trap);
    }

    /// Whether the trap has caught all its requests, and done with them what it was to do.
    pub fn has_caught(&self) -> bool {
        self.trap.lock().unwrap().is_none() && self.awaited.load(Ordering::SeqCst) == 0
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

impl Drop for Door {
    fn drop(&mut self) {
        self.state.send_replace(State::Gone);
    }
}

/// One connection's way through the door.
#[derive(Clone)]
struct Way {
    state: watch::Sender<State>,
    trap: Arc<Mutex<Option<Trap>>>,
    awaited: Arc<AtomicUsize>,
    /// What becomes of the next answer.
    caught: Arc<Mutex<Option<Then>>>,
}

impl Way {
    /// Waits while it is frozen.
    async fn open(&self) {
        let _ = self.state.subscribe().wait_for(|state| *state != State::Frozen).await;
    }

    async fn spring_at_answer(&self, then: Then) {
        if then == Then::Silence {
            self.awaited.fetch_sub(1, Ordering::SeqCst);
        }
        self.spring(then).await;
        self.awaited.fetch_sub(1, Ordering::SeqCst);
    }

    async fn spring(&self, then: Then) {
        match then {
            Then::Shut => drop(self.state.send_replace(State::Shut)),
            Then::Freeze => drop(self.state.send_replace(State::Frozen)),
            Then::Silence => std::future::pending().await,
        }
    }

    /// The trap, if its text is in these bytes.
    fn sprung_by(&self, bytes: &[u8]) -> Option<Trap> {
        let mut set = self.trap.lock().unwrap();
        let trap = set.as_mut()?;
        let text = trap.text.as_slice();
        if !bytes.windows(text.len()).any(|window| window == text) {
            return None;
        }
        trap.times -= 1;
        let sprung = trap.clone();
        if sprung.at_answer {
            self.awaited.fetch_add(1, Ordering::SeqCst);
        }
        set.take_if(|trap| trap.times == 0);
        Some(sprung)
    }

    async fn requests(&self, mut from: OwnedReadHalf, mut to: OwnedWriteHalf) {
        let mut buffer = vec![0; 64 << 10];
        // A text may come in two parts.
        let mut seen = Vec::new();
        while let Ok(length @ 1..) = from.read(&mut buffer).await {
            seen.extend_from_slice(&buffer[..length]);
            if let Some(trap) = self.sprung_by(&seen) {
                match trap.at_answer {
                    true => *self.caught.lock().unwrap() = Some(trap.then),
                    false => self.spring(trap.then).await,
                }
            }
            seen.drain(..seen.len().saturating_sub(64));
            if self.pass(&buffer[..length], &mut to).await.is_none() {
                return;
            }
        }
    }

    async fn answers(&self, mut from: OwnedReadHalf, mut to: OwnedWriteHalf) {
        let mut buffer = vec![0; 64 << 10];
        while let Ok(length @ 1..) = from.read(&mut buffer).await {
            let caught = self.caught.lock().unwrap().take();
            if let Some(then) = caught {
                self.spring_at_answer(then).await;
            }
            if self.pass(&buffer[..length], &mut to).await.is_none() {
                return;
            }
        }
    }

    /// Judged after the reading: what comes while it is frozen waits here.
    async fn pass(&self, bytes: &[u8], to: &mut OwnedWriteHalf) -> Option<()> {
        self.open().await;
        if self.state.borrow().is_shut() {
            return None;
        }
        to.write_all(bytes).await.ok()
    }
}

async fn connect(client: TcpStream, server: &str, way: Way) {
    if way.state.borrow().is_shut() {
        return;
    }
    let Ok(server) = TcpStream::connect(server).await else { return };
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    let mut state = way.state.subscribe();
    tokio::select! {
        () = way.requests(from_client, to_server) => {}
        () = way.answers(from_server, to_client) => {}
        _ = state.wait_for(|state| state.is_shut()) => {}
    }
    // The server ended it before it answered.
    if way.caught.lock().unwrap().take().is_some() {
        way.awaited.fetch_sub(1, Ordering::SeqCst);
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
