//! The feed: one position for each event of a context, and reads in their order.
//!
//! ```text
//!  append ── committed ──▶ reports (of this process: commits; of all: change stream) ─┐
//!                          scan of what has no position ──────────────────────────────┤
//!                                                                                      ▼
//!                     one transaction: position of each append, head ◀── plan: behind its predecessor
//!                                                                                      │
//!  readers ◀── one snapshot: events up to the head ◀────────────────────────────────────┘
//! ```
//!
//! **Why no reader skips an event.** A position is assigned after the commit, and the head moves in the
//! same transaction, from the value that it has read. So positions up to the head are complete, whatever
//! was committed late: an event without a position is behind the head, and gets a later one. A reader
//! reads the head and the events in one snapshot.
//!
//! **Why no version precedes another one.** The transaction reads that what precedes each append has a
//! position. Nothing of that is remembered: documents may be deleted, and a stream may begin again.
//!
//! What has no position is found by its state, never by a cursor. So appends of other programs, of older
//! releases and from before the feed was enabled get positions too.
//!
//! | module | what it does |
//! |---|---|
//! | `state` | the document of the feed: id, head, owner |
//! | `report` | what an operator sees of a feed |
//! | `status` | what a sequencer does |
//! | [`sequencer`], `process`, `work` | assign positions, in one process at a time |
//! | `planner` | which appends are next; pure |
//! | `assign` | the transaction |
//! | `lookup`, `found` | reads of streams: what precedes appends, what became of them |
//! | `follow`, `repeats`, `audit`, `scan` | what is reported to the sequencer, and what it finds |
//! | `collections`, `highest` | the event streams and their index |
//! | [`reader`], `page`, `event`, `invalid` | pages, waiting, a stream; what cannot be decoded |
//! | `places`, `recent`, `stretch` | which names have events at which positions, so that a page reads no others |
//! | `fetch`, `union` | reads of the documents of a page: bounded, of many names in few commands |
//! | [`filter`] | which events a reader wants |

mod assign;
mod audit;
mod collections;
mod error;
mod event;
mod fetch;
pub mod filter;
mod follow;
mod found;
mod highest;
mod invalid;
mod lookup;
pub mod metrics;
mod page;
mod places;
mod planner;
mod process;
pub mod reader;
mod recent;
mod repeats;
mod report;
mod scan;
pub mod sequencer;
pub mod settings;
mod state;
mod status;
mod stretch;
mod union;
mod work;

pub(crate) use collections::aggregate_names;
pub use error::FeedError;
pub use event::{FeedEvent, FeedPage};
pub use filter::FeedFilter;
pub use page::MAX_PAGE_BYTES;
pub use reader::Feed;
pub use report::{FeedBacklog, FeedReport};
pub use sequencer::Sequencer;
pub use settings::FeedConfig;
pub use state::{COLLECTION, FeedState};
pub use status::SequencerStatus;
