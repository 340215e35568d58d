//! The end of a stream, and its erasure.

mod ends;
mod erasures;
mod pending;
mod reads;
mod roles;
mod snapshots;
mod util;
