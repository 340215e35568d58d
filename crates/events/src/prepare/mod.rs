//! Prepare keys: a value reserved under a key, for ever or for a time, by one of many who try.
//!
//! One document per key: `{_id: key, value, ttlAt}`, without `ttlAt` for ever; `using_prepared` adds
//! a `reservation`, a UUID by which the call recognises the key that it took. Whether a key has
//! expired the server decides, by its own clock, in the filter or pipeline of each operation:
//! its TTL monitor, which removes what has expired, comes by once a minute only.

mod document;
mod equal;
mod error;
mod key;
mod moving;
mod ttl;
mod using;
mod value;

pub use crate::names::PrepareName;
pub use error::PrepareError;
pub use key::{Outcome, PrepareKey, Prepared};
pub use ttl::Ttl;
pub use using::UsingError;
