//! The state of a connection.

use postrider_relay::sink::SinkDown;

/// Whether a link can be published on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum LinkState {
    Up,
    /// The broker requests a pause (`connection.blocked`): its memory or disk is short.
    Blocked(SinkDown),
    /// It is lost, or must not be used again.
    Down(SinkDown),
}
