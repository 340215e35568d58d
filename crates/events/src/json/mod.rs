//! The event store's own JSON form, as HTTP and `postrider append` read and write it.
//!
//! ```text
//! text → tree: BSON as written, without what JSON parsers lose   parse
//!      → reader: a struct, or everything that is wrong with it   read
//! ```

mod append;
mod reader;
mod stream;
mod tree;
mod value;

pub use append::{AppendAnswer, AppendRequest, EventName, EventRequest, ExpectedVersion};
pub use reader::{Form, Request, checked, if_present, read};
pub use stream::{EventAnswer, EventStreamAnswer};
pub use tree::{FieldPath, integer, parse};
pub use value::{IdText, Json, JsonObject, Time};
