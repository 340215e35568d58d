//! What the sequencer of a process does, for its health.

use tokio::sync::watch;

use crate::feed::metrics::FeedMetrics;

/// What a sequencer does.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum SequencerStatus {
    /// It has not asked yet whether it may assign positions.
    #[default]
    Starting,
    /// Another process assigns positions.
    Standby,
    /// It assigns positions.
    Up,
    /// It assigns positions, and finds the appends of other processes by scans alone.
    Scanning,
    /// It cannot assign positions: why. It tries again.
    Failing(String),
}

/// The status of a sequencer, and the metrics that follow it.
#[derive(Debug)]
pub(super) struct StatusReport {
    sender: watch::Sender<SequencerStatus>,
}

impl StatusReport {
    pub(super) fn new() -> Self {
        Self { sender: watch::Sender::default() }
    }

    pub(super) fn subscribe(&self) -> watch::Receiver<SequencerStatus> {
        self.sender.subscribe()
    }

    /// Sets it.
    pub(super) fn set(&self, status: SequencerStatus, metrics: &FeedMetrics) {
        let fails = matches!(status, SequencerStatus::Failing(_));
        self.sender.send_if_modified(|known| {
            let is_news = *known != status;
            *known = status;
            is_news
        });
        metrics.failing.set(f64::from(fails));
    }
}
