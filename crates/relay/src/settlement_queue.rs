//! Queues outcomes for the [settlement writer](crate::settlement_writer).

use std::sync::Arc;

use postrider_outbox::settle::{Outcome, Settlement};
use tokio::sync::{mpsc, oneshot};

use crate::lane::Lane;
use crate::lease::LeasedRecord;

/// The sending end.
#[derive(Debug)]
pub(crate) struct SettlementQueue(mpsc::Sender<PendingSettlement>);

/// One outcome that is not written yet.
#[derive(Debug)]
pub(crate) struct PendingSettlement {
    pub(crate) settlement: Settlement,
    pub(crate) lane: Arc<Lane>,
    pub(crate) sink: String,
    /// The record's size.
    pub(crate) bytes: usize,
    /// Present if a lane waits: receives whether the record was still leased by this relay.
    pub(crate) reply: Option<oneshot::Sender<bool>>,
}

impl SettlementQueue {
    /// Creates a queue with room for this many outcomes: beyond it lanes wait, and no more is
    /// acquired.
    pub(crate) fn new(room: usize) -> (Self, mpsc::Receiver<PendingSettlement>) {
        let (sender, receiver) = mpsc::channel(room);
        (Self(sender), receiver)
    }

    /// Queues an outcome, which the writer batches; the lane continues meanwhile.
    pub(crate) async fn settle(
        &self,
        lane: &Arc<Lane>,
        leased: LeasedRecord,
        sink: &str,
        outcome: Outcome,
    ) {
        self.send(lane, leased, sink, outcome, None).await;
    }

    /// Queues an outcome and waits until a majority has it. Returns whether the record was still
    /// leased by this relay.
    pub(crate) async fn settle_and_wait(
        &self,
        lane: &Arc<Lane>,
        leased: LeasedRecord,
        sink: &str,
        outcome: Outcome,
    ) -> bool {
        let (reply, answer) = oneshot::channel();
        self.send(lane, leased, sink, outcome, Some(reply)).await;
        // A writer that has ended (a stop after its timeout) has settled nothing.
        answer.await.unwrap_or(false)
    }

    async fn send(
        &self,
        lane: &Arc<Lane>,
        leased: LeasedRecord,
        sink: &str,
        outcome: Outcome,
        reply: Option<oneshot::Sender<bool>>,
    ) {
        leased.settling();
        let settlement = Settlement {
            id: leased.record.id.clone(),
            lease: leased.lease.id,
            attempt: leased.attempt(),
            outcome,
        };
        let (lane, sink, bytes) = (lane.clone(), sink.to_owned(), leased.record.size());
        // If the writer has ended, the record stays leased until the lease expires.
        let _ = self.0.send(PendingSettlement { settlement, lane, sink, bytes, reply }).await;
    }
}
