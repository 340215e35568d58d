//! A TCP proxy in front of a server, which cuts, holds, delays or loses what passes.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// What passes at the moment.
#[derive(Clone, Copy, Debug, Default)]
struct Rules {
    /// New connections are closed at once.
    refuses: bool,
    /// The same, for a server that runs and is not ready.
    is_unready: bool,
    /// Nothing passes to the server; nothing is lost.
    holds_requests: bool,
    /// The same for what the server sends.
    holds_answers: bool,
    /// Nothing passes on the first connections, this many, in either direction.
    frozen: usize,
    /// The delay of all bytes, in each direction.
    delay: Duration,
}

/// What the proxy does when a text passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProxyFault {
    /// Closes the proxy: every connection is cut, and new ones are refused.
    Close,
    /// Freezes the proxy: connections stay open, and nothing passes.
    Freeze,
    /// Cuts this connection only.
    Cut,
    /// Nothing passes to the server on this connection any more (or from it, at an answer).
    Silence,
}

/// Waits for requests that contain a text.
#[derive(Clone, Debug)]
struct Trap {
    text: Vec<u8>,
    /// Whether the server gets the request, and the fault happens at its answer.
    at_answer: bool,
    fault: ProxyFault,
    /// How many requests it catches.
    times: usize,
}

/// Sees each whole message of MongoDB's protocol, and may change it.
pub type MessageFilter = Box<dyn Fn(Direction, &mut Vec<u8>) + Send + Sync>;

struct Shared {
    rules: watch::Sender<Rules>,
    /// Increases when every connection is cut.
    cuts: watch::Sender<u64>,
    /// The same for one direction, while the other continues.
    half_cuts: watch::Sender<(Direction, u64)>,
    trap: Mutex<Option<Trap>>,
    /// Requests that the trap caught, and whose fault has not happened yet.
    awaited: AtomicUsize,
    caught: AtomicUsize,
    accepted: AtomicUsize,
    sent: AtomicUsize,
    through: Option<MessageFilter>,
}

/// A listener on loopback in front of a server. It ends when the value is dropped.
pub struct FaultProxy {
    address: SocketAddr,
    shared: Arc<Shared>,
    accepting: JoinHandle<()>,
}

impl Drop for FaultProxy {
    fn drop(&mut self) {
        self.accepting.abort();
        self.cut();
    }
}

impl FaultProxy {
    /// A proxy to `host:port`, which lets everything pass.
    pub async fn to(server: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        Self::on(listener, server.to_owned(), None)
    }

    /// The same to an address.
    pub async fn to_address(server: SocketAddr) -> Self {
        Self::to(&server.to_string()).await
    }

    /// A proxy to `host:port` that refuses connections until it is [opened](Self::open).
    pub async fn closed_to(server: &str) -> Self {
        let proxy = Self::to(server).await;
        proxy.refuse(true);
        proxy
    }

    /// A proxy to a member of a replica set, whose messages all go through `through`.
    pub fn to_member(listener: TcpListener, member: SocketAddr, through: MessageFilter) -> Self {
        Self::on(listener, member.to_string(), Some(through))
    }

    fn on(listener: TcpListener, server: String, through: Option<MessageFilter>) -> Self {
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared {
            rules: watch::Sender::new(Rules::default()),
            cuts: watch::Sender::new(0),
            half_cuts: watch::Sender::new((Direction::Answer, 0)),
            trap: Mutex::default(),
            awaited: AtomicUsize::new(0),
            caught: AtomicUsize::new(0),
            accepted: AtomicUsize::new(0),
            sent: AtomicUsize::new(0),
            through,
        });
        let accepting = tokio::spawn(accept(listener, server, shared.clone()));
        Self { address, shared, accepting }
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The URI of a database of the mongod behind it. The client does not learn the server's own
    /// address.
    pub fn mongodb_uri(&self, database: &str) -> String {
        format!("mongodb://{}/{database}?directConnection=true", self.address())
    }

    /// How many connections there have been.
    pub fn accepted(&self) -> usize {
        self.shared.accepted.load(Ordering::SeqCst)
    }

    /// How many bytes clients have sent.
    pub fn sent(&self) -> usize {
        self.shared.sent.load(Ordering::SeqCst)
    }

    /// Cuts every connection, on both sides, and loses what is in transit.
    pub fn cut(&self) {
        self.shared.cut();
    }

    /// Ends what the server sends on every connection; the server still receives.
    pub fn half_close_answers(&self) {
        self.half_close(Direction::Answer);
    }

    /// Ends what the server receives on every connection; the server still sends.
    pub fn half_close_requests(&self) {
        self.half_close(Direction::Request);
    }

    fn half_close(&self, direction: Direction) {
        self.shared.half_cuts.send_modify(|(which, count)| {
            *which = direction;
            *count += 1;
        });
    }

    /// Sets whether new connections are closed at once.
    pub fn refuse(&self, refuses: bool) {
        self.shared.rules.send_modify(|rules| rules.refuses = refuses);
    }

    /// The same, independent of [`refuse`](Self::refuse): for a server that runs and is not ready.
    pub fn set_ready(&self, is_ready: bool) {
        self.shared.rules.send_modify(|rules| rules.is_unready = !is_ready);
    }

    /// Cuts every connection, and refuses new ones.
    pub fn close(&self) {
        self.shared.close();
    }

    /// Ends [`close`](Self::close) and [`freeze`](Self::freeze); what was held passes.
    pub fn open(&self) {
        self.refuse(false);
        self.thaw();
    }

    /// Holds every byte, in both directions; connections stay open.
    pub fn freeze(&self) {
        self.shared.hold_all(true);
    }

    /// Ends [`freeze`](Self::freeze); what was held passes.
    pub fn thaw(&self) {
        self.shared.hold_all(false);
    }

    /// Freezes the present connections for good. New ones pass.
    pub fn freeze_existing(&self) {
        let accepted = self.accepted();
        self.shared.rules.send_modify(|rules| rules.frozen = accepted);
    }

    /// Sets whether answers are held, while the server still receives.
    pub fn hold_answers(&self, holds: bool) {
        self.shared.rules.send_modify(|rules| rules.holds_answers = holds);
    }

    /// Delays all bytes from now on, in each direction.
    pub fn delay(&self, by: Duration) {
        self.shared.rules.send_modify(|rules| rules.delay = by);
    }

    /// Does this at the next request that contains `text`. The server does not get that request
    /// (or, if frozen, not before the proxy is opened). This method and the four below replace each
    /// other's effect.
    pub fn on_request(&self, text: &str, fault: ProxyFault) {
        self.set_trap(text, false, fault, 1);
    }

    /// Does this at the answer to the next request that contains `text`: the server has executed
    /// it, and the client does not get the answer (or, if frozen, not before the proxy is opened).
    pub fn on_answer_to(&self, text: &str, fault: ProxyFault) {
        self.set_trap(text, true, fault, 1);
    }

    /// Silences the connections of the next `times` requests that contain `text`.
    pub fn silence(&self, text: &str, times: usize) {
        self.set_trap(text, false, ProxyFault::Silence, times);
    }

    /// Loses the answers to the next `times` requests that contain `text`, and cuts their
    /// connections.
    pub fn lose_answers_to(&self, text: &str, times: usize) {
        self.set_trap(text, true, ProxyFault::Cut, times);
    }

    /// Cuts each connection on which a client sends `text`, before the server receives it; an empty
    /// text ends this.
    pub fn cut_at(&self, text: &str) {
        self.set_trap(text, false, ProxyFault::Cut, usize::MAX);
    }

    fn set_trap(&self, text: &str, at_answer: bool, fault: ProxyFault, times: usize) {
        let trap = Trap { text: text.as_bytes().to_vec(), at_answer, fault, times };
        *self.shared.trap.lock().unwrap() = (!text.is_empty()).then_some(trap);
    }

    /// Whether the trap has caught all its requests, and their faults have happened.
    pub fn has_caught(&self) -> bool {
        let is_set = self.shared.trap.lock().unwrap().is_some();
        !is_set && self.shared.awaited.load(Ordering::SeqCst) == 0
    }

    /// How many faults have happened so far because of a text.
    pub fn caught(&self) -> usize {
        self.shared.caught.load(Ordering::SeqCst)
    }
}

impl Shared {
    fn cut(&self) {
        self.cuts.send_modify(|count| *count += 1);
    }

    fn close(&self) {
        self.rules.send_modify(|rules| rules.refuses = true);
        self.cut();
    }

    fn hold_all(&self, holds: bool) {
        self.rules.send_modify(|rules| {
            rules.holds_requests = holds;
            rules.holds_answers = holds;
        });
    }

    /// The trap that these bytes of a client trigger; `seen` has the end of what the client sent
    /// before.
    fn sprung_by(&self, seen: &mut Vec<u8>, bytes: &[u8]) -> Option<Trap> {
        let mut set = self.trap.lock().unwrap();
        let Some(trap) = set.as_mut() else {
            seen.clear();
            return None;
        };
        seen.extend(bytes);
        let is_found = seen.windows(trap.text.len()).any(|window| window == trap.text);
        seen.drain(..seen.len().saturating_sub(trap.text.len() - 1));
        if !is_found {
            return None;
        }
        self.awaited.fetch_add(1, Ordering::SeqCst);
        trap.times -= 1;
        let sprung = trap.clone();
        set.take_if(|trap| trap.times == 0);
        Some(sprung)
    }
}

async fn accept(listener: TcpListener, server: String, shared: Arc<Shared>) {
    loop {
        let (client, _) = listener.accept().await.unwrap();
        let number = shared.accepted.fetch_add(1, Ordering::SeqCst);
        let is_open = !shared.rules.borrow().refuses && !shared.rules.borrow().is_unready;
        if is_open {
            let connection = Connection {
                shared: shared.clone(),
                number,
                cut: CancellationToken::new(),
                at_answer: Mutex::default(),
            };
            tokio::spawn(connection.serve(client, server.clone()));
        }
    }
}

/// The direction of bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Direction {
    Request,
    Answer,
}

impl Direction {
    /// Whether bytes in this direction pass on the connection of this number.
    fn passes(self, rules: &Rules, number: usize) -> bool {
        let is_held = match self {
            Self::Request => rules.holds_requests,
            Self::Answer => rules.holds_answers,
        };
        !is_held && number >= rules.frozen
    }
}

/// A client's connection, and the one to the server.
struct Connection {
    shared: Arc<Shared>,
    number: usize,
    /// Ends this connection alone.
    cut: CancellationToken,
    /// What happens at the next answer.
    at_answer: Mutex<Option<ProxyFault>>,
}

impl Connection {
    async fn serve(self, client: TcpStream, server: String) {
        let mut cuts = self.shared.cuts.subscribe();
        // A server that does not run: the client sees its connection end.
        let Ok(server) = TcpStream::connect(server).await else { return };
        let _ = (client.set_nodelay(true), server.set_nodelay(true));
        let (from_client, to_client) = client.into_split();
        let (from_server, to_server) = server.into_split();
        tokio::select! {
            _ = cuts.changed() => {}
            () = self.cut.cancelled() => {}
            ((), ()) = async { tokio::join!(
                self.pump(from_client, to_server, Direction::Request),
                self.pump(from_server, to_client, Direction::Answer),
            ) } => {}
        }
        // The connection ended before the server answered.
        if self.at_answer.lock().unwrap().take().is_some() {
            self.shared.awaited.fetch_sub(1, Ordering::SeqCst);
        }
    }

    /// Carries one direction until it ends, then ends it on the other side.
    async fn pump(&self, mut from: OwnedReadHalf, mut to: OwnedWriteHalf, direction: Direction) {
        let (under_way, mut arriving) = mpsc::unbounded_channel::<(Instant, Vec<u8>)>();
        let shared = &self.shared;
        let reading = async move {
            let mut buffer = vec![0; 1 << 16];
            let (mut seen, mut begun) = (Vec::new(), Vec::new());
            while let Ok(count @ 1..) = from.read(&mut buffer).await {
                let passes = match direction {
                    Direction::Request => self.request_passes(&mut seen, &buffer[..count]).await,
                    Direction::Answer => self.answer_passes().await,
                };
                if !passes {
                    break;
                }
                let at = Instant::now() + shared.rules.borrow().delay;
                let bytes = match &shared.through {
                    None => buffer[..count].to_vec(),
                    Some(through) => {
                        begun.extend_from_slice(&buffer[..count]);
                        whole_messages(&mut begun, |message| through(direction, message))
                    }
                };
                if !bytes.is_empty() && under_way.send((at, bytes)).is_err() {
                    break;
                }
            }
        };
        let writing = async move {
            let carrying = async {
                let mut rules = shared.rules.subscribe();
                while let Some((at, bytes)) = arriving.recv().await {
                    tokio::time::sleep_until(at).await;
                    // The sender outlives every connection.
                    let _ = rules.wait_for(|rules| direction.passes(rules, self.number)).await;
                    if to.write_all(&bytes).await.is_err() {
                        return;
                    }
                }
                // The end of the stream is held like its bytes.
                let _ = rules.wait_for(|rules| direction.passes(rules, self.number)).await;
            };
            let mut half_cuts = shared.half_cuts.subscribe();
            tokio::select! {
                () = carrying => {}
                () = half_cut(&mut half_cuts, direction) => {}
            }
            let _ = to.shutdown().await;
        };
        tokio::join!(reading, writing);
    }

    /// Whether these bytes of the client pass, after the fault that they trigger.
    async fn request_passes(&self, seen: &mut Vec<u8>, bytes: &[u8]) -> bool {
        self.shared.sent.fetch_add(bytes.len(), Ordering::SeqCst);
        let Some(trap) = self.shared.sprung_by(seen, bytes) else { return true };
        if trap.at_answer {
            *self.at_answer.lock().unwrap() = Some(trap.fault);
            return true;
        }
        self.passes_after(trap.fault).await
    }

    /// Whether an answer passes, after the fault that is due with it.
    async fn answer_passes(&self) -> bool {
        let fault = self.at_answer.lock().unwrap().take();
        match fault {
            Some(fault) => self.passes_after(fault).await,
            None => true,
        }
    }

    /// Executes a fault; returns whether the bytes that triggered it pass.
    async fn passes_after(&self, fault: ProxyFault) -> bool {
        match fault {
            ProxyFault::Close => self.shared.close(),
            ProxyFault::Freeze => self.shared.hold_all(true),
            ProxyFault::Cut => self.cut.cancel(),
            ProxyFault::Silence => {}
        }
        self.shared.caught.fetch_add(1, Ordering::SeqCst);
        self.shared.awaited.fetch_sub(1, Ordering::SeqCst);
        if fault == ProxyFault::Silence {
            std::future::pending().await
        }
        fault == ProxyFault::Freeze
    }
}

/// Resolves when this direction ends.
async fn half_cut(half_cuts: &mut watch::Receiver<(Direction, u64)>, direction: Direction) {
    // The sender outlives every connection.
    while half_cuts.changed().await.is_ok() {
        if half_cuts.borrow_and_update().0 == direction {
            return;
        }
    }
}

/// Takes the complete messages out; the first four bytes of each are its length, also after a change.
fn whole_messages(begun: &mut Vec<u8>, mut through: impl FnMut(&mut Vec<u8>)) -> Vec<u8> {
    let mut whole = Vec::new();
    while let Some(length) = begun.first_chunk().map(|first| u32::from_le_bytes(*first)) {
        let length = usize::try_from(length).unwrap();
        if begun.len() < length {
            break;
        }
        let mut message: Vec<u8> = begun.drain(..length).collect();
        through(&mut message);
        whole.extend(message);
    }
    whole
}
