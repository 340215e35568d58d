//! A wire (a TCP proxy) between a sink and its broker, which ends, delays or holds what passes.

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
#[derive(Clone, Copy, Debug)]
struct Rules {
    /// New connections are ended at once.
    refuses: bool,
    /// The same, for a broker that is not ready.
    shut: bool,
    /// Nothing passes to the broker; nothing is lost either.
    holds_requests: bool,
    /// The same for what the broker says.
    holds_answers: bool,
    /// Nothing passes on the first so many connections, in either direction.
    frozen: usize,
    /// How long everything is under way, in each direction.
    delay: Duration,
}

struct Shared {
    rules: watch::Sender<Rules>,
    /// Rises when every connection is to be cut.
    cuts: watch::Sender<u64>,
    /// The same for one direction, while the other goes on.
    half_cuts: watch::Sender<(Direction, u64)>,
    /// The connection on which this is sent is cut; nothing where it is empty.
    cut_at: Mutex<Vec<u8>>,
    accepted: AtomicUsize,
    sent: AtomicUsize,
    through: Option<Through>,
}

/// Reads each message of MongoDB's protocol on its way, whole, and may change what it says.
pub type Through = Box<dyn Fn(Direction, &mut Vec<u8>) + Send + Sync>;

/// A listener in front of a broker.
pub struct Wire {
    address: SocketAddr,
    shared: Arc<Shared>,
    accepting: JoinHandle<()>,
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.accepting.abort();
        self.cut();
    }
}

impl Wire {
    /// A proxy to `broker`, which lets everything pass.
    pub async fn to(broker: SocketAddr) -> Self {
        Self::on(TcpListener::bind("127.0.0.1:0").await.unwrap(), broker, None)
    }

    /// The same to a member of a replica set, whose messages all go through this.
    pub fn to_member(listener: TcpListener, member: SocketAddr, through: Through) -> Self {
        Self::on(listener, member, Some(through))
    }

    fn on(listener: TcpListener, broker: SocketAddr, through: Option<Through>) -> Self {
        let address = listener.local_addr().unwrap();
        let (rules, _) = watch::channel(Rules {
            refuses: false,
            shut: false,
            holds_requests: false,
            holds_answers: false,
            frozen: 0,
            delay: Duration::ZERO,
        });
        let (cuts, _) = watch::channel(0);
        let (half_cuts, _) = watch::channel((Direction::Answer, 0));
        let (accepted, sent) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let cut_at = Mutex::default();
        let shared = Shared { rules, cuts, half_cuts, cut_at, accepted, sent, through };
        let shared = Arc::new(shared);
        let accepting = tokio::spawn(accept(listener, broker, shared.clone()));
        Self { address, shared, accepting }
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// How many connections there have been.
    pub fn accepted(&self) -> usize {
        self.shared.accepted.load(Ordering::SeqCst)
    }

    /// How many bytes have come from the client.
    pub fn sent(&self) -> usize {
        self.shared.sent.load(Ordering::SeqCst)
    }

    /// Ends every connection, on both sides, with whatever is under way.
    pub fn cut(&self) {
        self.shared.cuts.send_modify(|count| *count += 1);
    }

    /// Cuts a connection whenever its client sends this text on it, before the broker has it.
    pub fn cut_at(&self, text: &str) {
        *self.shared.cut_at.lock().unwrap() = text.as_bytes().to_vec();
    }

    /// Ends what the broker says on every connection, and lets it hear on.
    pub fn half_close_answers(&self) {
        self.half_close(Direction::Answer);
    }

    /// Ends what the broker hears on every connection, and lets it speak on.
    pub fn half_close_requests(&self) {
        self.half_close(Direction::Request);
    }

    fn half_close(&self, direction: Direction) {
        self.shared.half_cuts.send_modify(|(which, count)| {
            *which = direction;
            *count += 1;
        });
    }

    /// Whether new connections are ended at once.
    pub fn refuse(&self, refuses: bool) {
        self.shared.rules.send_modify(|rules| rules.refuses = refuses);
    }

    /// The same, independent of [`refuse`](Self::refuse): for a broker that runs and is not ready.
    pub fn shut(&self, shut: bool) {
        self.shared.rules.send_modify(|rules| rules.shut = shut);
    }

    /// Whether nothing passes, in either direction, though all connections stay open.
    pub fn freeze(&self, frozen: bool) {
        self.shared.rules.send_modify(|rules| {
            rules.holds_requests = frozen;
            rules.holds_answers = frozen;
        });
    }

    /// Freezes the present connections for good. New ones pass.
    pub fn freeze_existing(&self) {
        let accepted = self.accepted();
        self.shared.rules.send_modify(|rules| rules.frozen = accepted);
    }

    /// Whether the broker hears, and is not heard.
    pub fn hold_answers(&self, holds: bool) {
        self.shared.rules.send_modify(|rules| rules.holds_answers = holds);
    }

    /// How long everything that is sent from now on is under way, in each direction.
    pub fn delay(&self, by: Duration) {
        self.shared.rules.send_modify(|rules| rules.delay = by);
    }
}

async fn accept(listener: TcpListener, broker: SocketAddr, shared: Arc<Shared>) {
    loop {
        let (client, _) = listener.accept().await.unwrap();
        let number = shared.accepted.fetch_add(1, Ordering::SeqCst);
        let is_open = !shared.rules.borrow().refuses && !shared.rules.borrow().shut;
        if is_open {
            tokio::spawn(serve(client, broker, shared.clone(), number));
        }
    }
}

async fn serve(client: TcpStream, broker: SocketAddr, shared: Arc<Shared>, number: usize) {
    let mut cuts = shared.cuts.subscribe();
    // A broker that is not there: the client sees its connection end.
    let Ok(server) = TcpStream::connect(broker).await else { return };
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    let own = CancellationToken::new();
    tokio::select! {
        _ = cuts.changed() => {}
        () = own.cancelled() => {}
        ((), ()) = async { tokio::join!(
            pump(from_client, to_server, &shared, &own, Direction::Request, number),
            pump(from_server, to_client, &shared, &own, Direction::Answer, number),
        ) } => {}
    }
}

/// Which way something goes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Direction {
    Request,
    Answer,
}

impl Direction {
    /// Whether what goes this way on the connection of this number passes.
    fn passes(self, rules: &Rules, number: usize) -> bool {
        let is_held = match self {
            Self::Request => rules.holds_requests,
            Self::Answer => rules.holds_answers,
        };
        !is_held && number >= rules.frozen
    }
}

/// Resolves when this direction is to end.
async fn half_cut(half_cuts: &mut watch::Receiver<(Direction, u64)>, direction: Direction) {
    // The sender outlives every connection.
    while half_cuts.changed().await.is_ok() {
        if half_cuts.borrow_and_update().0 == direction {
            return;
        }
    }
}

impl Shared {
    /// Whether what was sent so far (its end is in `line`) and now holds the text to cut at.
    fn is_cut_at(&self, line: &mut Vec<u8>, sent: &[u8]) -> bool {
        let text = self.cut_at.lock().unwrap();
        if text.is_empty() {
            return false;
        }
        line.extend(sent);
        let found = line.windows(text.len()).any(|window| window == text.as_slice());
        line.drain(..line.len().saturating_sub(text.len() - 1));
        found
    }
}

/// Takes the messages out that are complete; the first four bytes of each are its length, which
/// stays as it was.
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

/// Carries one direction until it ends, then ends it on the other side.
async fn pump(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    shared: &Shared,
    own: &CancellationToken,
    direction: Direction,
    number: usize,
) {
    let (under_way, mut arriving) = mpsc::unbounded_channel::<(Instant, Vec<u8>)>();
    let reading = async move {
        let mut buffer = vec![0; 1 << 16];
        let (mut line, mut begun) = (Vec::new(), Vec::new());
        while let Ok(count @ 1..) = from.read(&mut buffer).await {
            if direction == Direction::Request {
                shared.sent.fetch_add(count, Ordering::SeqCst);
                if shared.is_cut_at(&mut line, &buffer[..count]) {
                    own.cancel();
                    break;
                }
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
                let _ = rules.wait_for(|rules| direction.passes(rules, number)).await;
                if to.write_all(&bytes).await.is_err() {
                    return;
                }
            }
            // The end is held like all that came before it.
            let _ = rules.wait_for(|rules| direction.passes(rules, number)).await;
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
