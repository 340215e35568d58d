//! The state of a connection.

use postrider_relay::sink::SinkDown;

/// Whether a link can be published on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum LinkState {
    /// It can.
    Up,
    /// The broker has asked for a pause (`connection.blocked`): memory or disk are short.
    Blocked(SinkDown),
    /// It is gone, or must not be used again.
    Down(SinkDown),
}
