//! One broker behind many proxies: each test uses one proxy, which it may cut, hold or delay.
//!
//! A Kafka client leaves its `bootstrap.servers` for the address that the broker advertises, so the
//! broker must know the proxy: each of these listeners advertises the proxy in front of it.

use std::ops::Deref;
use std::sync::{LazyLock, Mutex};
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};
use tokio::sync::{OnceCell, Semaphore, SemaphorePermit};

use super::node::Node;
use super::options::{Listener, Options};
use super::topic::Topic;
use crate::support::fault_proxy::FaultProxy;

/// More than tests that run at the same time; a test that finds none free waits.
const PROXIES: usize = 16;

/// The tests' own runtimes end with each test, and the tasks on them; the proxies stay.
static RUNTIME: LazyLock<Runtime> =
    LazyLock::new(|| Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap());

/// The node of this test binary, from its first use to the process's end.
static SHARED: OnceCell<Shared> = OnceCell::const_new();

struct Shared {
    node: Node,
    proxies: Vec<FaultProxy>,
    free: Mutex<Vec<usize>>,
    count: Semaphore,
}

/// Exclusive use of a proxy to the binary's broker, which continues to serve all other clients.
///
/// The effects of [`FaultProxy`]'s methods end when this value is dropped.
pub struct ProxiedBroker {
    number: usize,
    shared: &'static Shared,
    _permit: SemaphorePermit<'static>,
}

impl ProxiedBroker {
    /// Takes a proxy; the first call starts the broker.
    pub async fn take() -> Self {
        let shared = SHARED.get_or_init(Shared::start).await;
        let permit = shared.count.acquire().await.unwrap();
        let number = shared.free.lock().unwrap().pop().expect("one for each permit");
        Self { number, shared, _permit: permit }
    }

    /// `bootstrap.servers` through this proxy.
    pub fn brokers(&self) -> String {
        self.address().to_string()
    }

    /// `bootstrap.servers` of the same broker without a proxy.
    pub fn direct(&self) -> String {
        self.shared.node.brokers()
    }

    /// A topic on this broker, made and read without a proxy.
    pub async fn topic(&self, partitions: i32) -> Topic {
        self.topic_with(partitions, &[]).await
    }

    /// The same with properties of its own.
    pub async fn topic_with(&self, partitions: i32, properties: &[(&str, &str)]) -> Topic {
        Topic::on(&self.direct(), partitions, properties).await.deleted_when_dropped()
    }
}

impl Deref for ProxiedBroker {
    type Target = FaultProxy;

    fn deref(&self) -> &FaultProxy {
        &self.shared.proxies[self.number]
    }
}

impl Drop for ProxiedBroker {
    fn drop(&mut self) {
        self.refuse(false);
        self.cut_at("");
        self.delay(Duration::ZERO);
        self.cut();
        self.thaw();
        self.shared.free.lock().unwrap().push(self.number);
    }
}

impl Shared {
    async fn start() -> Self {
        // This broker is never killed, and must not lose its lead when the machine is slow for a
        // moment.
        let mut options = Options::default().property("broker.session.timeout.ms", "30000");
        let mut proxies = Vec::new();
        for number in 0..PROXIES {
            let listener = Listener::new(&format!("L{number}"), "PLAINTEXT");
            let proxy = RUNTIME.spawn(FaultProxy::to_address(listener.address())).await.unwrap();
            options = options.listener(listener.advertised_at(proxy.address()));
            proxies.push(proxy);
        }
        let node = Node::with(options).await;
        let free = Mutex::new((0..PROXIES).rev().collect());
        Self { node, proxies, free, count: Semaphore::new(PROXIES) }
    }
}
