//! Ports for servers that tests start: chosen before the process starts, and bound by it later.
//!
//! To check that a port is free is not enough for that long, since others check at the same time:
//! two servers would get one port, and the test whose server failed to bind it would talk to the
//! other one. So each process claims blocks of ports, and hands out each of them once.

use std::net::TcpListener;
use std::sync::Mutex;

/// Below what Linux uses for outgoing connections (32768 and up): a stopped server's port must be
/// free when it starts again.
const PORTS: std::ops::Range<u16> = 10_000..32_000;

/// A broker with many listeners needs about twenty.
const BLOCK_PORTS: u16 = 50;

static CLAIMED: Mutex<Option<Block>> = Mutex::new(None);

struct Block {
    /// Bound to the block's first port until the process ends; a process that cannot bind it does
    /// not use the block.
    claims: Vec<TcpListener>,
    next: u16,
    end: u16,
}

/// A free loopback port, which no other caller gets. Nothing listens on it.
pub fn free_port() -> u16 {
    let mut claimed = CLAIMED.lock().unwrap();
    let block = claimed.get_or_insert_with(|| Block { claims: Vec::new(), next: 0, end: 0 });
    loop {
        if block.next == block.end {
            block.claim_more();
        }
        let port = block.next;
        block.next += 1;
        if bind(port).is_some() {
            return port;
        }
    }
}

impl Block {
    fn claim_more(&mut self) {
        let blocks = (PORTS.end - PORTS.start) / BLOCK_PORTS;
        let (first, claim) = loop {
            let first = PORTS.start + rand::random_range(0..blocks) * BLOCK_PORTS;
            if let Some(claim) = bind(first) {
                break (first, claim);
            }
        };
        self.claims.push(claim);
        (self.next, self.end) = (first + 1, first + BLOCK_PORTS);
    }
}

fn bind(port: u16) -> Option<TcpListener> {
    TcpListener::bind(("127.0.0.1", port)).ok()
}
