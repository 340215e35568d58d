//! Configuration: where it comes from, what is wrong with it, how it is shown (contract, section 5).
//!
//! ```text
//! defaults < file < POSTRIDER__… < --set        load: merge, name the unknown, keep the origin
//!     → tree::Config                            deserialised, durations and sizes with units
//!     → resolve::Resolved                       cross-field rules; what the parts are built from
//! ```
//!
//! | module | what it holds |
//! |---|---|
//! | [`tree`] | every key, its type and its default |
//! | [`keys`] | the same keys as patterns: for suggestions, and for reading text from the environment |
//! | [`load`] | the layers, merged |
//! | [`resolve`] | the rules, and the result |
//! | [`print`] | `postrider config print` |
//! | [`secret`], [`units`] | kinds of values |

pub mod keys;
pub mod load;
pub mod print;
pub mod resolve;
pub mod secret;
pub mod tree;
pub mod units;

pub use load::{Inputs, LoadError, Loaded, Origin, load};
pub use resolve::{Problem, Resolved, resolve};
