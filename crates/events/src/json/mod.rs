//! The event store's own JSON form, as HTTP and `postrider append` read and write it.
//!
//! ```text
//! text → tree: BSON as written                 parse
//!      → reader: a struct, or all its flaws    read
//! ```

mod append;
mod ending;
mod flaws;
mod reader;
mod tree;
mod value;

pub use append::{AppendRequest, EventName, EventRequest, ExpectedVersion};
pub use ending::{EndRequest, EraseRequest, ReasonText};
pub use flaws::MAX_FLAWS;
pub use reader::{BodyError, Form, Request, checked, if_present, read, read_body, read_completed};
pub use tree::parse;
pub(crate) use value::as_written;
pub use value::{IdText, Json, JsonObject, Time, int64};
