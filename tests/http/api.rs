//! A process and its API.

use std::net::SocketAddr;

use reqwest::{Method, RequestBuilder};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::support::outbox::{TestOutbox, eventually};
use crate::support::process::{Postrider, run_with};
use crate::support::queue::mongo_settings;

/// A running process without a relay.
pub struct Api {
    pub postrider: Postrider,
    pub address: SocketAddr,
    pub client: reqwest::Client,
}

/// An answer.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub headers: reqwest::header::HeaderMap,
    pub body: Value,
    pub text: String,
}

impl Api {
    /// Starts a process with these settings, and waits until it answers.
    pub async fn start(outbox: &TestOutbox, settings: &[&str]) -> Self {
        let api = Self::begin(&with(mongo_settings(&outbox.database), settings), "").await;
        api.until_open().await;
        api
    }

    /// Starts a process, and waits only until it listens.
    pub async fn begin(settings: &[String], fail_points: &str) -> Self {
        let always = ["relay.enabled=false", "api.enabled=true"];
        let mut command = run_with(&with(settings.to_vec(), &always));
        command.env("FAILPOINTS", fail_points);
        Self::of(Postrider::of(command)).await
    }

    /// The API of a running process.
    pub async fn of(postrider: Postrider) -> Self {
        postrider.until_logged("serving the HTTP API").await;
        let lines = postrider.lines();
        let line = lines.iter().find(|line| line["message"] == "serving the HTTP API").unwrap();
        let address = line["address"].as_str().unwrap().parse().unwrap();
        // A connection of its own for each request: one that is kept may be closed by the server at the same time.
        let client = reqwest::Client::builder().pool_max_idle_per_host(0).build().unwrap();
        Self { postrider, address, client }
    }

    /// Waits until MongoDB is reached, and calls are answered, if only by 401.
    pub async fn until_open(&self) {
        self.postrider.until_ready().await;
        let open = || async { self.call(Method::GET, "/v1/instances").await.status != 503 };
        eventually("the API to be open", open).await;
    }

    pub fn request(&self, method: Method, path: &str) -> RequestBuilder {
        self.client.request(method, format!("http://{}{path}", self.address))
    }

    pub async fn call(&self, method: Method, path: &str) -> Answer {
        Answer::of(self.request(method, path)).await
    }

    pub async fn get(&self, path: &str) -> Answer {
        self.call(Method::GET, path).await
    }

    pub async fn post(&self, path: &str, body: &Value) -> Answer {
        Answer::of(self.request(Method::POST, path).json(body)).await
    }

    pub async fn put(&self, path: &str, body: &Value) -> Answer {
        Answer::of(self.request(Method::PUT, path).json(body)).await
    }

    /// Posts a text as the body.
    pub async fn post_text(&self, path: &str, body: &str) -> Answer {
        let request = self.request(Method::POST, path).header("content-type", "application/json");
        Answer::of(request.body(body.to_owned())).await
    }

    pub async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).await.unwrap()
    }

    /// Stops the process gracefully.
    pub async fn stop(mut self) {
        self.postrider.stop().await;
    }
}

impl Answer {
    pub async fn of(request: RequestBuilder) -> Self {
        let response = request.send().await.unwrap();
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        let text = response.text().await.unwrap();
        let body = serde_json::from_str(&text).unwrap_or(Value::Null);
        Self { status, headers, body, text }
    }

    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }

    /// The code of a problem, whose form is checked.
    #[track_caller]
    pub fn code(&self) -> &str {
        assert_eq!(self.header("content-type"), "application/problem+json", "{self:?}");
        assert_eq!(self.body["status"], json!(self.status), "{self:?}");
        let request = self.header("x-request-id");
        let instance = self.body["instance"].as_str().unwrap();
        assert!(instance.starts_with("urn:") && instance.ends_with(request), "{self:?}");
        for field in ["type", "title", "detail"] {
            assert!(self.body[field].is_string(), "{field}: {self:?}");
        }
        let code = self.body["code"].as_str().unwrap();
        let link = self.body["type"].as_str().unwrap();
        assert!(link.ends_with(&format!("/docs/http.md#{code}")), "{self:?}");
        code
    }

    /// The fields with flaws.
    #[track_caller]
    pub fn wrong(&self) -> Vec<&str> {
        assert_eq!((self.status, self.code()), (422, "invalid"), "{self:?}");
        let errors = self.body["errors"].as_array().unwrap();
        errors.iter().map(|error| error["field"].as_str().unwrap()).collect()
    }

    #[track_caller]
    pub fn is(&self, status: u16, code: &str) {
        assert_eq!((self.status, self.code()), (status, code), "{self:?}");
    }
}

pub fn with(settings: Vec<String>, more: &[&str]) -> Vec<String> {
    settings.into_iter().chain(more.iter().map(|setting| (*setting).to_owned())).collect()
}

/// Sends bytes, and reads until the server closes the connection.
pub async fn converse(mut stream: TcpStream, bytes: &str) -> String {
    stream.write_all(bytes.as_bytes()).await.unwrap();
    read_to_end(stream).await
}

pub async fn read_to_end(mut stream: TcpStream) -> String {
    let mut answer = Vec::new();
    // A cut connection has ended too.
    let _ = stream.read_to_end(&mut answer).await;
    String::from_utf8(answer).unwrap()
}
