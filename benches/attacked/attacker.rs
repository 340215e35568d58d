//! The attackers: a process of its own, so that its cost is known.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpSocket;

use crate::attacks::{ATTACKS, Attack, Manner, Port};
use crate::support::cost;

/// How many answers of each status, and how many requests had none.
type Answers = BTreeMap<String, usize>;

/// Makes an attack for its time; prints how much of a core it took, in percent, and what was answered.
pub async fn run(arguments: &[String]) {
    let [name, ops, api, seconds] = arguments else { panic!("ATTACK OPS API SECONDS") };
    let attack = ATTACKS.iter().find(|attack| attack.name == name).unwrap();
    let began = Instant::now();
    let end = began + Duration::from_secs(seconds.parse().unwrap());
    let answers: Arc<Mutex<Answers>> = Arc::default();
    let requests: Arc<Vec<String>> = Arc::new((attack.requests)());
    let mut clients = tokio::task::JoinSet::new();
    for port in attack.ports {
        let address: SocketAddr = match port {
            Port::Ops => ops,
            Port::Api => api,
        }
        .parse()
        .unwrap();
        for number in 0..attack.clients {
            let client = Client { attack, address, number, requests: requests.clone(), end };
            clients.spawn(client.run(answers.clone()));
        }
    }
    clients.join_all().await;
    let percent = cost::cpu_micros("self") as f64 / began.elapsed().as_secs_f64() / 10_000.0;
    println!("{percent:.1} {:?}", answers.lock().unwrap());
}

struct Client {
    attack: &'static Attack,
    address: SocketAddr,
    number: usize,
    requests: Arc<Vec<String>>,
    end: Instant,
}

impl Client {
    async fn run(self, answers: Arc<Mutex<Answers>>) {
        // A run can be repeated: each client draws from its own seed.
        let mut random = StdRng::seed_from_u64(self.number as u64);
        let mut at = self.number;
        while Instant::now() < self.end {
            let request = self.requests[at % self.requests.len()].clone().into_bytes();
            at += 1;
            let request = match self.attack.manner {
                Manner::Mutated => mutated(request, &mut random),
                Manner::Read | Manner::Unread { .. } | Manner::Half { .. } => request,
            };
            let status = match self.converse(&request).await {
                Ok(status) => status,
                Err(error) => format!("{:?}", error.kind()),
            };
            if status.starts_with('5') && status != "503" {
                eprintln!("{status}: {}", String::from_utf8_lossy(&request).escape_debug());
            }
            *answers.lock().unwrap().entry(status).or_default() += 1;
            tokio::time::sleep(self.attack.pause).await;
        }
    }

    /// Sends a request; returns the status that it saw.
    async fn converse(&self, request: &[u8]) -> std::io::Result<String> {
        let socket = TcpSocket::new_v4()?;
        if matches!(self.attack.manner, Manner::Unread { .. }) {
            // The system would take much of an answer for the client.
            socket.set_recv_buffer_size(16 << 10)?;
        }
        let mut stream = socket.connect(self.address).await?;
        match self.attack.manner {
            Manner::Half { held } => {
                stream.write_all(&request[..request.len() - 1]).await?;
                let _ = tokio::time::timeout(self.within(held), stream.read(&mut [0; 1])).await;
                Ok("held".into())
            }
            Manner::Unread { held } => {
                stream.write_all(request).await?;
                tokio::time::sleep(self.within(held)).await;
                Ok("unread".into())
            }
            Manner::Read | Manner::Mutated => {
                // An answer that begins early closes the way for the rest of a request.
                let _ = stream.write_all(request).await;
                let mut status = [0; 12];
                let read = async {
                    stream.read_exact(&mut status).await?;
                    let mut rest = vec![0; 64 << 10];
                    while stream.read(&mut rest).await? > 0 {}
                    std::io::Result::Ok(())
                };
                match tokio::time::timeout(self.within(Duration::from_secs(30)), read).await {
                    // A mutated request may await the rest of its body, or more requests.
                    Err(_) if status[0] == 0 => Ok("no answer in 30 s".into()),
                    Ok(Err(error)) if status[0] == 0 => Err(error),
                    _ => Ok(String::from_utf8_lossy(&status[9..]).into_owned()),
                }
            }
        }
    }

    fn within(&self, time: Duration) -> Duration {
        time.min(self.end.saturating_duration_since(Instant::now()))
    }
}

/// The request with one to four changes: of a byte, a piece left out, doubled, or put elsewhere.
fn mutated(mut request: Vec<u8>, random: &mut StdRng) -> Vec<u8> {
    const INTERESTING: &[&[u8]] = &[
        b"\0",
        b"\r\n",
        b"\"",
        b"{",
        b"}",
        b"[",
        b"]",
        b"$",
        b"%00",
        b"%ff",
        b"..",
        b"/",
        b"-1",
        b"1e400",
        b"null",
        b"9223372036854775808",
        b"\xff\xfe",
        b"raw:",
        b"{\"$gt\":\"\"}",
        b"{\"$date\":1}",
        b"&limit=0",
        b"?after=x",
    ];
    for _ in 0..random.random_range(1..=4) {
        let at = random.random_range(0..request.len());
        let to = (at + random.random_range(1..20)).min(request.len());
        match random.random_range(0..6) {
            0 => request[at] = random.random(),
            1 => request[at] ^= 1 << random.random_range(0..8),
            2 => drop(request.drain(at..to)),
            3 => {
                let piece = request[at..to].to_vec();
                request.splice(at..at, piece);
            }
            4 => {
                let piece: Vec<u8> = request.drain(at..to).collect();
                let to = random.random_range(0..=request.len());
                request.splice(to..to, piece);
            }
            _ => {
                let piece = INTERESTING[random.random_range(0..INTERESTING.len())];
                request.splice(at..at, piece.iter().copied());
            }
        }
        if request.is_empty() {
            return b"\r\n\r\n".to_vec();
        }
    }
    request
}
