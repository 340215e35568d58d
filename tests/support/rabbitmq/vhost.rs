//! A vhost for one test on the shared broker, with a user of its own.

use super::super::environment::{unique, variable};
use std::process::Command;

use reqwest::{Client, Method, StatusCode};
use serde_json::{Value, json};

use super::address;
use super::amqp_client::AmqpClient;
use super::node::queue_order;
use crate::support::cleanup::Cleanup;

/// The variable with the URI of the shared broker.
const URI: &str = "POSTRIDER_TEST_AMQP_URI";

/// The variable with its management API.
const API: &str = "POSTRIDER_TEST_RABBITMQ_API";

/// The variable with `rabbitmqctl` for it.
const CTL: &str = "POSTRIDER_TEST_RABBITMQCTL";

/// The password of each test's user: no error and no `Debug` may show it.
pub const PASSWORD: &str = "password-of-the-test";

/// A vhost, and the user of the same name, which may do everything in it. Both are removed when the
/// test passes.
pub struct Vhost {
    pub name: String,
    client: Client,
    _cleanup: Cleanup,
}

impl Vhost {
    pub async fn new() -> Self {
        let name = unique("test-");
        let client = Client::new();
        let own = Self { name: name.clone(), client: client.clone(), _cleanup: Cleanup::none() };
        let _cleanup = Cleanup::new(async move || {
            own.delete().await;
            own.drop_user(&own.name).await;
        });
        let vhost = Self { name, client, _cleanup };
        vhost.call(Method::PUT, &format!("vhosts/{}", vhost.name), json!({})).await;
        vhost.add_user(&vhost.name, ".*").await;
        vhost
    }

    /// A vhost with a classic queue, and a client of it.
    pub async fn with_queue(queue: &str) -> (Self, AmqpClient) {
        let vhost = Self::new().await;
        let amqp = vhost.amqp_client().await;
        amqp.classic(queue).await;
        (vhost, amqp)
    }

    /// The URI of the vhost's own user.
    pub fn uri(&self) -> String {
        self.uri_of(&self.name, PASSWORD)
    }

    /// The URI of any user.
    pub fn uri_of(&self, user: &str, password: &str) -> String {
        format!("amqp://{user}:{password}@{}/{}", address(&variable(URI)), self.name)
    }

    /// A user that may publish to exchanges of these names only; the default one's is `amq.default`.
    pub async fn add_user(&self, user: &str, write: &str) {
        let who = json!({ "password": PASSWORD, "tags": "" });
        self.call(Method::PUT, &format!("users/{user}"), who).await;
        self.permit(user, write).await;
    }

    async fn permit(&self, user: &str, write: &str) {
        let may = json!({ "configure": ".*", "write": write, "read": ".*" });
        self.call(Method::PUT, &format!("permissions/{}/{user}", self.name), may).await;
    }

    /// Permits a user to publish to a topic exchange with these routing keys only.
    pub async fn permit_routing_keys(&self, user: &str, exchange: &str, write: &str) {
        let may = json!({ "exchange": exchange, "write": write, "read": ".*" });
        self.call(Method::PUT, &format!("topic-permissions/{}/{user}", self.name), may).await;
    }

    /// Limits the `max-channels` or `max-connections` of a user.
    pub async fn limit_user(&self, user: &str, what: &str, limit: u32) {
        let value = json!({ "value": limit });
        self.call(Method::PUT, &format!("user-limits/{user}/{what}"), value).await;
    }

    /// Gives a user another password; connected clients stay connected.
    pub async fn set_password(&self, user: &str, password: &str) {
        let who = json!({ "password": password, "tags": "" });
        self.call(Method::PUT, &format!("users/{user}"), who).await;
    }

    /// Deletes it with all that it contains, while the test continues.
    pub async fn delete(&self) {
        self.call(Method::DELETE, &format!("vhosts/{}", self.name), Value::Null).await;
    }

    /// Makes it again after [`delete`](Self::delete). Its user may use it after `furnish`.
    pub async fn make_again(&self, furnish: impl AsyncFnOnce(&AmqpClient)) -> AmqpClient {
        self.call(Method::PUT, &format!("vhosts/{}", self.name), json!({})).await;
        self.permit("guest", ".*").await;
        furnish(&AmqpClient::on(&self.uri_of("guest", "guest")).await).await;
        self.permit(&self.name, ".*").await;
        self.amqp_client().await
    }

    /// A client of this vhost.
    pub async fn amqp_client(&self) -> AmqpClient {
        AmqpClient::on(&self.uri()).await
    }

    pub async fn drop_user(&self, user: &str) {
        self.call(Method::DELETE, &format!("users/{user}"), Value::Null).await;
    }

    /// The broker's report of a queue.
    pub async fn queue(&self, name: &str) -> Value {
        self.call(Method::GET, &format!("queues/{}/{name}", self.name), Value::Null).await
    }

    /// Suspends the process of a queue: it takes and confirms nothing, and no other queue is
    /// affected.
    pub async fn suspend_queue(&self, name: &str) {
        self.control_queue("suspend", name).await;
    }

    /// Resumes it. Without this the vhost cannot be deleted.
    pub async fn resume_queue(&self, name: &str) {
        self.control_queue("resume", name).await;
    }

    async fn control_queue(&self, what: &str, name: &str) {
        let eval = queue_order(what, &self.name, name);
        let command = tokio::task::spawn_blocking(move || {
            let output = Command::new(variable(CTL)).args(["eval", &eval]).output().unwrap();
            assert!(output.status.success(), "{eval}: {output:?}");
        });
        command.await.unwrap();
    }

    /// The connections to the vhost that the broker lists; it lists them some seconds late.
    pub async fn connections(&self) -> Vec<String> {
        self.connections_with("vhost", &self.name).await
    }

    /// The same of one user.
    pub async fn connections_of(&self, user: &str) -> Vec<String> {
        self.connections_with("user", user).await
    }

    async fn connections_with(&self, field: &str, value: &str) -> Vec<String> {
        let listed = self.call(Method::GET, "connections", Value::Null).await;
        let listed = listed.as_array().unwrap().iter();
        let ours = listed.filter(|connection| connection[field] == value);
        ours.map(|connection| connection["name"].as_str().unwrap().to_owned()).collect()
    }

    /// Closes connections as an operator would.
    pub async fn close_connections(&self, names: &[String]) {
        for name in names {
            let name = name.replace(' ', "%20").replace('>', "%3E");
            self.call(Method::DELETE, &format!("connections/{name}"), Value::Null).await;
        }
    }

    async fn call(&self, method: Method, path: &str, body: Value) -> Value {
        let url = format!("{}/api/{path}", variable(API));
        let mut request = self.client.request(method, &url).basic_auth("guest", Some("guest"));
        if !body.is_null() {
            request = request.json(&body);
        }
        let response = request.send().await.unwrap();
        let status = response.status();
        // A user that is already deleted is fine.
        let fine = status.is_success() || status == StatusCode::NOT_FOUND;
        assert!(fine, "{url}: {status} {}", response.text().await.unwrap());
        response.json().await.unwrap_or(Value::Null)
    }
}
