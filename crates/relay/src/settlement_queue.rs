//! Outcomes on their way to the [settlement writer](crate::settlement_writer).

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
    /// Present where a lane waits: gets whether the record was still leased by this relay.
    pub(crate) reply: Option<oneshot::Sender<bool>>,
}

impl SettlementQueue {
    /// A queue with room for so many outcomes: beyond it lanes wait, and no more is acquired.
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
        // A writer that is gone (the hard end of a stop) has settled nothing.
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
        // A writer that is gone leaves the record to its lease.
        let _ = self.0.send(PendingSettlement { settlement, lane, sink, bytes, reply }).await;
    }
}
