//! A way to MongoDB that can lose an answer: the server has done it, the client never hears.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use bson::doc;
use postrider::outbox::collections::Collections;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::outbox::TestOutbox;
use super::queue::host_of;

/// The outbox through a proxy on loopback.
pub struct Proxy {
    pub collections: Collections,
    inner: Arc<Inner>,
}

#[derive(Default)]
struct Inner {
    /// The answers to the next commands whose bytes contain this are lost, as many as this.
    needle: Mutex<Option<(Vec<u8>, usize)>>,
    lost: AtomicUsize,
}

impl Proxy {
    pub async fn before(outbox: &TestOutbox) -> Self {
        let admin = outbox.client.database("admin");
        let hello = admin.run_command(doc! { "hello": 1 }).await.unwrap();
        let server = hello.get_str("primary").unwrap().to_owned();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let inner = Arc::new(Inner::default());
        let accepting = inner.clone();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let server = TcpStream::connect(&server).await.unwrap();
                tokio::spawn(pass(accepting.clone(), client, server));
            }
        });
        // It must not learn the server's own address from the replica set.
        let uri = outbox.uri.replace(&host_of(&outbox.uri), &address.to_string());
        let uri = uri.replace("replicaSet=rs0", "directConnection=true");
        let client = postrider::store::connect::client(&uri).await.unwrap();
        Self { collections: Collections::new(client, &outbox.database, ""), inner }
    }

    /// Loses the answer to the next command that contains this text, and the connection with it.
    pub fn lose_answer_to(&self, text: &str) {
        self.lose_answers_to(text, 1);
    }

    /// The same for so many of them.
    pub fn lose_answers_to(&self, text: &str, count: usize) {
        *self.inner.needle.lock().unwrap() = Some((text.as_bytes().to_vec(), count));
    }

    /// How many answers were lost.
    pub fn lost(&self) -> usize {
        self.inner.lost.load(Ordering::SeqCst)
    }
}

impl Inner {
    fn is_to_be_lost(&self, command: &[u8]) -> bool {
        let mut needle = self.needle.lock().unwrap();
        let Some((text, left)) = needle.as_mut() else { return false };
        let found = command.windows(text.len()).any(|window| window == text.as_slice());
        if found {
            *left -= 1;
            if *left == 0 {
                *needle = None;
            }
        }
        found
    }
}

/// One command at a time and one answer to each, as the driver talks.
async fn pass(inner: Arc<Inner>, mut client: TcpStream, mut server: TcpStream) {
    loop {
        let Some(command) = message(&mut client).await else { return };
        if server.write_all(&command).await.is_err() {
            return;
        }
        let Some(answer) = message(&mut server).await else { return };
        if inner.is_to_be_lost(&command) {
            inner.lost.fetch_add(1, Ordering::SeqCst);
            return;
        }
        if client.write_all(&answer).await.is_err() {
            return;
        }
        // A monitoring client gets more than one answer to one `hello`: those it may miss,
        // but not the rest of the conversation.
        if is_exhaust(&answer) {
            let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
            return;
        }
    }
}

/// `moreToCome` in the flags of an OP_MSG.
fn is_exhaust(message: &[u8]) -> bool {
    const OP_MSG: [u8; 4] = 2013_i32.to_le_bytes();
    message.len() > 16 && message[12..16] == OP_MSG && message[16] & 2 != 0
}

/// One message of the wire protocol: its first four bytes are its length.
async fn message(from: &mut TcpStream) -> Option<Vec<u8>> {
    let mut length = [0; 4];
    from.read_exact(&mut length).await.ok()?;
    let mut message = vec![0; usize::try_from(i32::from_le_bytes(length)).ok()?];
    message[..4].copy_from_slice(&length);
    from.read_exact(&mut message[4..]).await.ok()?;
    Some(message)
}
