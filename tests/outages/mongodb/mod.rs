//! Outages of MongoDB: it is gone, frozen, without a majority or out of space. The relay keeps
//! running, reports it once, and resumes by itself when MongoDB is back.
//!
//! Each test was seen to fail with the code that it tests taken out of `src`.

mod disk;
mod doubled;
mod failover;
mod indexes;
mod log;
mod majority;
mod minute;
mod point;
mod pool;
mod privileges;
mod process;
mod silence;
mod stop;
mod surplus;

use crate::support::fault_proxy::FaultProxy;
use crate::support::outbox::mongodb_uri;
use crate::support::queue::host_of;

/// An open proxy to the test run's MongoDB.
async fn proxy_to_mongodb() -> FaultProxy {
    FaultProxy::to(&host_of(&mongodb_uri())).await
}
