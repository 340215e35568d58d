//! Lease, publish, settle, skip, block and requeue: the records of one key.

mod action;
mod bounds;
mod check;
mod code;
mod finish;
mod guards;
mod plan;
mod promise;
mod relay;
mod state;
mod store;
mod whole;
