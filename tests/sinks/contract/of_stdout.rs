//! Standard output: a writer that accepts a few bytes at a time, stops, or fails.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use postrider::sink::Message;
use postrider::sink::stdout::Stdout;
use tokio::io::AsyncWrite;

use crate::contract::harness::{Arrived, Harness};
use crate::support::message::message;

/// Less than any line, so that lines would mix if they could.
const AT_A_TIME: usize = 50;

/// The reader of the output.
#[derive(Clone, Debug, Default)]
pub struct Terminal(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    written: Vec<u8>,
    frozen: bool,
    /// How much more it accepts before it fails; `None` for any length.
    room: Option<usize>,
    waiting: Option<Waker>,
}

impl AsyncWrite for Terminal {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let mut state = self.0.lock().unwrap();
        if state.room == Some(0) {
            return Poll::Ready(Err(io::ErrorKind::StorageFull.into()));
        }
        if state.frozen {
            state.waiting = Some(context.waker().clone());
            return Poll::Pending;
        }
        let count = bytes.len().min(AT_A_TIME).min(state.room.unwrap_or(usize::MAX));
        state.room = state.room.map(|room| room - count);
        state.written.extend(&bytes[..count]);
        Poll::Ready(Ok(count))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

impl Terminal {
    fn change(&self, change: impl FnOnce(&mut State)) {
        let mut state = self.0.lock().unwrap();
        change(&mut state);
        if let Some(waker) = state.waiting.take() {
            waker.wake();
        }
    }
}

impl Harness for Terminal {
    type Sink = Stdout;

    const CONNECTS: bool = false;

    async fn new() -> Self {
        Self::default()
    }

    fn sink(&self, timeout: Duration) -> Stdout {
        Stdout::to(self.clone(), timeout)
    }

    fn message(&self, id: &str) -> Message {
        message(id, "somewhere", "key")
    }

    fn undeliverable(&self, _: &str) -> Option<Message> {
        None
    }

    fn impossible(&self) -> Vec<Message> {
        Vec::new()
    }

    async fn arrived(&self) -> Vec<Arrived> {
        let written = self.0.lock().unwrap().written.clone();
        Arrived::in_lines(&written)
    }

    async fn freeze(&self) {
        self.change(|state| state.frozen = true);
    }

    async fn thaw(&self) {
        self.change(|state| state.frozen = false);
    }

    async fn take_down(&self) {
        self.change(|state| state.room = Some(30));
    }

    async fn bring_back(&self) {
        self.change(|state| state.room = None);
    }

    async fn slow_down(&self, _: Duration) -> bool {
        false
    }
}
